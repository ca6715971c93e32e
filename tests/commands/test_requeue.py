"""What csub requeue decides and says."""

from __future__ import annotations

from ..bed import CsubUser
from ..wait_until import wait_until

GO = "echo start >> ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done"

PACK = ("--gres=gpu:1", "--degree=2", "--pack-size=4", "--time=5")


def count_starts(user: CsubUser, name: str) -> int:
    return len(user.output(f"ran.{name}").splitlines())


def start_pack(user: CsubUser, *options: str) -> str:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, *options, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    return job_id


def test_what_cannot_be_requeued_is_refused_in_one_sentence(user: CsubUser) -> None:
    job_id = start_pack(user)
    fixed = user.submit("pack", *PACK, "--no-requeue", "go.sh 4", "go.sh 5")
    pending = user.submit("pack", *PACK, "--begin=now+1hour", "go.sh 6", "go.sh 7")
    user.wait_for_states(fixed, "RUNNING")
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "COMPLETED", 3: "RUNNING"})
    for target, code, words in (
        (
            f"{job_id}/1",
            2,
            f"{job_id}/1: already ended: csub retry {job_id} tries again what",
        ),
        (f"{fixed}/2", 2, f"{fixed}/2: submitted with --no-requeue"),
        (fixed, 2, f"{fixed}/1, {fixed}/2: submitted with --no-requeue"),
        (f"{pending}/1", 2, f"{pending}/1: already pending"),
        (pending, 2, "already pending"),
        (f"{job_id}/7", 7, "has no member 7"),
    ):
        refused = user.csub("requeue", target, check=False)
        assert refused.returncode == code, (target, refused)
        assert refused.stderr.startswith("csub: error: ")
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1
    # One that cannot be requeued does not stand in the way of another.
    mixed = user.csub("requeue", f"{fixed}/2", f"{job_id}/2", check=False)
    assert mixed.returncode == 2
    user.run(["touch", "go.2", "go.3", "go.4", "go.5"])
    assert user.finish(job_id)[2]["starts"] == 2
    assert user.finish(fixed)[2]["starts"] == 1


def test_a_member_that_was_requeued_can_be_held(user: CsubUser) -> None:
    job_id = start_pack(user)
    user.csub("requeue", f"{job_id}/1")
    user.wait_for_states(job_id, {1: "PENDING", 3: "RUNNING"})
    user.csub("hold", f"{job_id}/1")
    user.run(["touch", "go.1", "go.2", "go.3"])
    user.wait_for_states(job_id, {1: "PENDING", 2: "COMPLETED", 3: "COMPLETED"})
    wait_until(
        lambda: not user.run(["squeue", "-h", "-j", job_id], check=False).stdout.strip(),
        "the pack is over",
    )
    assert user.members(job_id)[1]["reason"] == "JobHeldUser"
    new_id = user.csub("release", f"{job_id}/1").stderr.rsplit(None, 1)[1]
    user.wait_for_states(f"{new_id}/1", "COMPLETED")
    assert count_starts(user, "1") == 2


def test_a_member_of_a_pack_without_slurm_is_requeued(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", "--local", *PACK, "go.sh 1", "go.sh 2")
    user.wait_for_states(job_id, "RUNNING")
    wait_until(lambda: count_starts(user, "2") == 1, "the second has begun")
    user.csub("requeue", f"{job_id}/2")
    wait_until(lambda: count_starts(user, "2") == 2, "the second has begun again")
    user.run(["touch", "go.1", "go.2"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2
    assert [row["starts"] for row in rows.values()] == [1, 2]


STUBBORN = (
    "trap 'touch asked.$1' TERM; echo start >> ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done"
)


def test_second_thoughts_about_a_requeue_win(user: CsubUser) -> None:
    """Requeued, and cancelled while its script still saves what it has."""
    user.script("go.sh", STUBBORN)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    wait_until(lambda: count_starts(user, "1") == 1, "the first has begun")
    user.csub("requeue", f"{job_id}/1")
    wait_until((user.home / "asked.1").exists, "it has been asked to end")
    user.csub("cancel", f"{job_id}/1")
    user.run(["touch", "go.1", "go.2", "go.3"])
    rows = user.finish(job_id)
    assert {number: row["state"] for number, row in rows.items()} == {
        1: "CANCELLED", 2: "COMPLETED", 3: "COMPLETED"
    }  # fmt: skip
    assert (rows[1]["starts"], count_starts(user, "1")) == (1, 1)


def test_a_member_that_was_cancelled_is_not_requeued(user: CsubUser) -> None:
    user.script("go.sh", STUBBORN)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2")
    user.wait_for_states(job_id, "RUNNING")
    wait_until(lambda: count_starts(user, "2") == 1, "the second has begun")
    user.csub("cancel", f"{job_id}/2")
    wait_until((user.home / "asked.2").exists, "it has been asked to end")
    user.csub("requeue", f"{job_id}/2")
    user.run(["touch", "go.1", "go.2"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "CANCELLED"]
    assert count_starts(user, "2") == 1
