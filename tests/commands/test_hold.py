"""What csub hold and release decide and say."""

from __future__ import annotations

from pathlib import Path

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from ..wait_until import wait_until

GO = "echo $$ > ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done"

PACK = ("--gres=gpu:1", "--degree=1", "--pack-size=4", "--time=5")


def read_reasons(user: CsubUser, job_id: str) -> dict[int, str | None]:
    return {number: row["reason"] for number, row in user.members(job_id).items()}


def read_slurm(user: CsubUser, job_id: str) -> str:
    """State and reason that Slurm itself shows."""
    return user.run(["squeue", "-h", "--states=all", "-o", "%T %r", "-j", job_id]).stdout.strip()


def find_member(user: CsubUser, number: int) -> Path:
    return min(user.state.glob(f"packs/*/members/{number:04d}"))


def test_a_pack_with_nothing_but_held_members_left_gives_the_gpu_back(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING"})
    user.csub("hold", f"{job_id}/2", f"{job_id}/3")
    user.run(["touch", "go.1", "go.2", "go.3"])
    wait_until(lambda: read_slurm(user, job_id).startswith("COMPLETED"), "the pack is over")
    # However often csub is called: they stay, and nobody submits them by himself.
    for _ in range(2):
        queue = user.csub("queue")
        assert queue.stderr == ""
        assert [line.split()[0] for line in queue.stdout.splitlines()[1:]] == [
            f"{job_id}/2", f"{job_id}/3",
        ]  # fmt: skip
    rows = user.members(job_id)
    assert {rows[number]["state"] for number in (2, 3)} == {"PENDING"}
    assert {rows[number]["reason"] for number in (2, 3)} == {"JobHeldUser"}
    assert not (user.home / "ran.2").exists()

    released = user.csub("release", f"{job_id}/2")
    assert f"{job_id}/2: the pack has ended, submitted again as job" in released.stderr
    new_id = released.stderr.rsplit(None, 1)[1]
    user.wait_for_states(f"{new_id}/2", "COMPLETED")
    assert user.output("ran.2")
    user.csub("cancel", f"{job_id}/3")
    user.wait_for_states(f"{job_id}/3", "CANCELLED")
    assert not (user.home / "ran.3").exists()
    user.csub("queue")
    assert not list(user.state.glob("open/*"))
    assert not list(user.state.glob("packs/*/members/*/env"))


def test_a_pack_submitted_with_hold_is_released_in_whole_or_in_part(user: CsubUser) -> None:
    user.script("go.sh", GO)
    user.run(["touch", "go.1", "go.2"])
    whole = user.submit("pack", *PACK, "--hold", "go.sh 1", "go.sh 2")
    assert set(read_reasons(user, whole).values()) == {"JobHeldUser"}
    user.csub("release", whole)
    assert [row["state"] for row in user.finish(whole).values()] == ["COMPLETED"] * 2

    part = user.submit("pack", *PACK, "-H", "go.sh 1", "go.sh 2")
    user.csub("release", f"{part}/1")
    wait_until(lambda: read_slurm(user, part).startswith("COMPLETED"), "the pack is over")
    rows = user.members(part)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "PENDING"]
    assert rows[2]["reason"] == "JobHeldUser"
    # The new pack does not inherit --hold.
    new_id = user.csub("release", f"{part}/2").stderr.rsplit(None, 1)[1]
    user.wait_for_states(f"{new_id}/2", "COMPLETED")


def test_a_running_or_ended_member_cannot_be_held(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    refused = user.csub("hold", f"{job_id}/1", check=False)
    assert refused.returncode == 2
    assert f"{job_id}/1: a running job cannot be held" in refused.stderr
    assert not (find_member(user, 1) / "held").exists()
    both = user.csub("hold", job_id)
    assert f"{job_id}/1: a running job cannot be held" in both.stderr
    assert read_reasons(user, job_id)[2] == "JobHeldUser"
    user.csub("release", f"{job_id}/2")
    assert f"{job_id}/2 is not held" in user.csub("release", f"{job_id}/2").stderr
    user.run(["touch", "go.1", "go.2"])
    user.finish(job_id)
    ended = user.csub("hold", job_id, check=False)
    assert ended.returncode == 2
    assert "already ended" in ended.stderr


def test_a_held_member_stays_held_through_a_requeue_of_its_pack(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "--requeue", "go.sh 1", "go.sh 2")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    user.csub("hold", f"{job_id}/2")
    user.csub("requeue", job_id)
    user.run(["touch", "go.1", "go.2"])
    wait_until(lambda: user.members(job_id)[1]["state"] == "COMPLETED", "the second attempt ended")
    rows = user.members(job_id)
    assert rows[1]["starts"] == 2
    assert rows[2]["state"] == "PENDING"
    assert not (user.home / "ran.2").exists()


def test_a_cancelled_pack_takes_its_held_members_with_it(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2")
    user.wait_for_states(job_id, {1: "RUNNING"})
    user.csub("hold", f"{job_id}/2")
    user.run(["scancel", job_id])
    user.wait_for_states(job_id, "CANCELLED")
    pending = user.submit("pack", *PACK, "--begin=now+1hour", "go.sh 1", "go.sh 2")
    user.csub("hold", f"{pending}/2")
    user.run(["scancel", pending])
    user.wait_for_states(pending, "CANCELLED")
    assert not (user.home / "ran.2").exists()


def test_a_local_pack_runs_again_for_a_member_that_was_held(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", "--local", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING"})
    user.csub("hold", f"{job_id}/2", f"{job_id}/3")
    user.run(["touch", "go.1", "go.2", "go.3"])
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "PENDING", 3: "PENDING"})
    user.csub("release", f"{job_id}/2")
    user.wait_for_states(job_id, {2: "COMPLETED", 3: "PENDING"})
    user.csub("cancel", f"{job_id}/3")
    rows = user.wait_for_states(job_id, {3: "CANCELLED"})
    assert rows[1]["starts"] == rows[2]["starts"] == 1
    assert not (user.home / "ran.3").exists()


def test_a_job_alone_and_a_task_of_an_array_are_held(user: CsubUser) -> None:
    user.script("go.sh", "echo $$ > ran.$SLURM_ARRAY_TASK_ID")
    alone = user.submit("--gres=gpu:1", "--begin=now+1hour", "go.sh")
    user.csub("hold", alone)
    assert read_slurm(user, alone) == "PENDING JobHeldUser"
    user.run(["scontrol", "update", f"JobId={alone}", "StartTime=now"])
    # Released behind csub's back: it is csub's mark that counts, and the GPU is given back.
    user.run(["scontrol", "release", alone])
    wait_until(lambda: read_slurm(user, alone).startswith("COMPLETED"), "its Slurm job is over")
    assert not (user.home / "ran.").exists()
    again = user.csub("release", alone).stderr.rsplit(None, 1)[1]
    user.wait_for_states(again, "COMPLETED")
    assert (user.home / "ran.").exists()

    tasks = user.submit(
        "--array=0-3", "--degree=2", "--gres=gpu:1", "--time=5", "--begin=now+1hour", "go.sh"
    )
    user.csub("hold", f"{tasks}/2-3")
    reasons = user.run(["squeue", "-h", "-r", "-o", "%K %r", "-j", tasks]).stdout.splitlines()
    # The last pack has the highest index of an array.
    first, second = sorted(reasons, key=lambda line: int(line.split()[0]))
    assert (first.split()[1], second.split()[1]) == ("BeginTime", "JobHeldUser")
    user.run(["scontrol", "update", f"JobId={tasks}", "StartTime=now"])
    user.wait_for_states(tasks, {0: "COMPLETED", 1: "COMPLETED", 2: "PENDING", 3: "PENDING"})
    user.csub("release", f"{tasks}/3")
    user.wait_for_states(tasks, {2: "PENDING", 3: "COMPLETED"})
    again = user.csub("release", f"{tasks}/2").stderr.rsplit(None, 1)[1]
    user.wait_for_states(f"{again}/2", "COMPLETED")
    assert user.output("ran.2")


def test_without_the_controller_members_are_held_and_the_rest_is_said(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    pending = user.submit("pack", *PACK, "--begin=now+1hour", "go.sh 4", "go.sh 5")
    user.wait_for_states(job_id, {1: "RUNNING"})
    slurm.stop_controller()
    # The runner needs no controller to leave a member alone.
    whole = user.csub("hold", f"{job_id}/2", pending, check=False)
    slurm.start_controller()
    assert whole.returncode == 4
    assert whole.stderr.startswith("csub: error: Slurm's controller does not answer")
    # What was marked before Slurm was asked stays marked, and a second call does the rest.
    assert set(read_reasons(user, pending).values()) == {"JobHeldUser"}
    user.csub("hold", pending)
    assert read_slurm(user, pending) == "PENDING JobHeldUser"
    assert read_reasons(user, job_id)[2] == "JobHeldUser"
    assert read_reasons(user, job_id)[3] == "Degree"
