"""What csub cancel, requeue, hold and release do to one GPU set, they do not do to the others."""

from __future__ import annotations

from ..bed import CsubUser
from ..wait_until import wait_until

WAIT = "echo >>began.$SLURM_ARRAY_TASK_ID; while [ ! -e go ]; do sleep 0.1; done"
TWO = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=100M", "--time=5", "--gpus-per-pack=2")


def submit(user: CsubUser, *more: str) -> tuple[str, list[int], list[int]]:
    """Four members on two GPUs; its id, and the members of the first set and of the second."""
    user.script("go.sh", WAIT)
    job_id = user.submit(*TWO, "--degree=2", "--array=1-4", *more, "go.sh")
    packs = sorted((user.state / "packs").iterdir(), key=lambda path: "~" in path.name)
    first, second = (
        sorted(int(entry.name) for entry in (pack / "members").iterdir()) for pack in packs
    )
    assert sorted(first + second) == [1, 2, 3, 4]
    return job_id, first, second


def name(job_id: str, numbers: list[int]) -> list[str]:
    return [f"{job_id}/{number}" for number in numbers]


def test_cancelling_all_of_one_gpu_set_leaves_the_others(user: CsubUser) -> None:
    job_id, first, second = submit(user)
    user.wait_for_states(job_id, "RUNNING")
    user.csub("cancel", "--yes", *name(job_id, second))
    user.wait_for_states(
        job_id, dict.fromkeys(first, "RUNNING") | dict.fromkeys(second, "CANCELLED")
    )
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert [rows[number]["state"] for number in first] == ["COMPLETED"] * 2
    assert {rows[number]["cause"] for number in second} == {"cancelled"}


def test_cancelling_all_ends_the_slurm_job(user: CsubUser) -> None:
    job_id, *_ = submit(user)
    user.wait_for_states(job_id, "RUNNING")
    user.csub("cancel", "--yes", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    asked = ["squeue", "-h", "-u", user.name]
    wait_until(lambda: not user.run(asked).stdout.strip(), "the Slurm job is over")


def test_requeueing_all_of_one_gpu_set_starts_no_other_again(user: CsubUser) -> None:
    job_id, first, second = submit(user, "--requeue")
    user.wait_for_states(job_id, "RUNNING")
    user.csub("requeue", *name(job_id, second))
    wait_until(
        lambda: all(user.output(f"began.{number}").count("\n") == 2 for number in second),
        "both start anew",
    )
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert [user.output(f"began.{number}").count("\n") for number in first] == [1, 1]


def test_a_held_gpu_set_holds_the_job_only_once_all_are_held(user: CsubUser) -> None:
    job_id, first, second = submit(user, "--begin=now+1hour")
    user.csub("hold", *name(job_id, first))
    assert user.run(["squeue", "-h", "-j", job_id, "-o", "%r"]).stdout.strip() == "BeginTime"
    user.csub("hold", *name(job_id, second))
    assert user.run(["squeue", "-h", "-j", job_id, "-o", "%r"]).stdout.strip() == "JobHeldUser"
    user.csub("release", f"{job_id}/{first[0]}")
    held = {number: row["state"] for number, row in user.members(job_id).items()}
    reasons = {number: row["reason"] for number, row in user.members(job_id).items()}
    assert set(held.values()) == {"PENDING"}
    assert [number for number in sorted(reasons) if "held" in reasons[number].lower()] == sorted(
        [first[1], *second]
    ), reasons
