"""csub hold and csub release."""

from __future__ import annotations

import re

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

GO = "echo $$ > ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done"
PACK = ("--gres=gpu:1", "--degree=1", "--pack-size=4", "--time=5")


def read_reasons(user: CsubUser, job_id: str) -> dict[int, str | None]:
    return {number: row["reason"] for number, row in user.members(job_id).items()}


def read_slurm(user: CsubUser, job_id: str) -> str:
    """State and reason that Slurm itself shows."""
    return user.run(["squeue", "-h", "--states=all", "-o", "%T %r", "-j", job_id]).stdout.strip()


def wait_for_start(user: CsubUser, job_id: str) -> None:
    wait_until(lambda: user.members(job_id)[1]["state"] != "PENDING", "the pack has begun")


def wait_for_end(user: CsubUser, job_id: str) -> None:
    command = ["squeue", "-h", "-j", job_id]
    wait_until(lambda: not user.run(command, check=False).stdout.strip(), "the pack is over")


def wait_for_completed(user: CsubUser, member: str) -> None:
    """Wherever it is now: it may have been submitted again."""
    wait_until(
        lambda: '"state": "COMPLETED"' in user.csub("show", "--json", member).stdout,
        f"{member} has run",
    )


@pytest.mark.smoke
def test_a_held_member_of_a_running_pack_lets_the_others_go_first(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING", 3: "PENDING"})
    user.csub("hold", f"{job_id}/2")
    assert read_reasons(user, job_id)[2] == "JobHeldUser"
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "PENDING", 3: "RUNNING"})
    user.csub("release", f"{job_id}/2")
    user.run(["touch", "go.2", "go.3"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    assert rows[2]["started_at"] >= rows[3]["ended_at"]
    assert rows[2]["slurm_job_id"] == job_id


@pytest.mark.smoke
def test_holding_all_of_a_pending_pack_holds_its_slurm_job(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "--begin=now+1hour", "go.sh 1", "go.sh 2")
    user.csub("hold", f"{job_id}/1")
    assert "JobHeld" not in read_slurm(user, job_id)
    user.csub("hold", f"{job_id}/2")
    assert read_slurm(user, job_id) == "PENDING JobHeldUser"
    assert set(read_reasons(user, job_id).values()) == {"JobHeldUser"}
    user.csub("release", f"{job_id}/1")
    assert "JobHeld" not in read_slurm(user, job_id)
    assert read_reasons(user, job_id)[2] == "JobHeldUser"
    user.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
    user.run(["touch", "go.1"])
    wait_until(lambda: read_slurm(user, job_id).startswith("COMPLETED"), "the pack is over")
    rows = user.members(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "PENDING"]


def test_hold_and_start_at_the_same_moment_leave_no_doubt(user: CsubUser) -> None:
    """Whatever csub says is what happens: held means not started, refused means running."""
    user.script("short.sh", "echo $$ >> ran.$1")
    for turn in range(3):
        words = [f"short.sh {turn}.{number}" for number in range(1, 7)]
        job_id = user.submit("pack", "--gres=gpu:1", "--degree=2", "--pack-size=6", *words)
        wait_for_start(user, job_id)
        holds = [user.start(["csub", "hold", f"{job_id}/{number}"]) for number in (3, 5)]
        said = {number: ended.communicate()[1] for number, ended in zip((3, 5), holds, strict=True)}
        codes = {number: ended.returncode for number, ended in zip((3, 5), holds, strict=True)}
        wait_for_end(user, job_id)
        rows = user.members(job_id)
        for number in (3, 5):
            ran = user.output(f"ran.{turn}.{number}")
            if codes[number] == 0:
                assert rows[number]["state"] == "PENDING", (rows[number], user.describe(job_id))
                assert ran == ""
            else:
                assert codes[number] == 2, said[number]
                why = r": (a running job cannot be held|already ended)"
                assert re.search(why, said[number]), said[number]
                assert rows[number]["state"] == "COMPLETED", user.describe(job_id)
                assert len(ran.splitlines()) == 1


def test_release_and_the_end_of_the_pack_at_the_same_moment_lose_nothing(user: CsubUser) -> None:
    user.script("go.sh", GO)
    for turn in range(3):
        first, second = f"{turn}a", f"{turn}b"
        user.run(["touch", f"go.{second}"])
        job_id = user.submit("pack", *PACK, f"go.sh {first}", f"go.sh {second}")
        user.wait_for_states(job_id, {1: "RUNNING"})
        user.csub("hold", f"{job_id}/2")
        release = user.start(["csub", "release", f"{job_id}/2"])
        user.run(["touch", f"go.{first}"])
        said = release.communicate()[1]
        assert release.returncode == 0, said
        wait_for_completed(user, f"{job_id}/2")
        assert len(user.output(f"ran.{second}").splitlines()) == 1
