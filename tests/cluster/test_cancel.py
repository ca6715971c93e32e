"""Cancelling members, and looking at them: queue, show, logs, wait."""

from __future__ import annotations

import json

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

FOREVER = "while :; do sleep 0.1; done"


def read_pid(user: CsubUser, name: str) -> int:
    return int(wait_until(lambda: user.output(name).strip(), f"{name} is there"))


@pytest.mark.smoke
def test_cancelling_one_running_member_leaves_the_others(user: CsubUser) -> None:
    user.script("trap.sh", f"trap 'echo term >> got.$1; exit 0' TERM; echo $$ > pid.$1; {FOREVER}")
    user.script("deaf.sh", f"trap 'echo term >> got.$1' TERM; echo $$ > pid.$1; {FOREVER}")
    user.script("go.sh", "echo $$ > pid.$1; while [ ! -e go ]; do sleep 0.1; done; echo $$")
    job_id = user.submit("pack", "--gres=gpu:1", "trap.sh 1", "deaf.sh 2", "go.sh 3", "go.sh 4")
    user.wait_for_states(job_id, "RUNNING")
    for number in (1, 2):
        read_pid(user, f"pid.{number}")
    user.csub("cancel", f"{job_id}/1", f"{job_id}/2")
    user.wait_for_states(
        job_id, {1: "CANCELLED", 2: "CANCELLED", 3: "RUNNING", 4: "RUNNING"}
    )  # fmt: skip
    assert user.output("got.1") == user.output("got.2") == "term\n"
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["CANCELLED"] * 2 + ["COMPLETED"] * 2
    assert rows[1]["exit_code"] == {"code": 0, "signal": 0}
    assert rows[2]["exit_code"] == {"code": 0, "signal": 9}
    for number in (3, 4):
        assert user.output(f"slurm-{job_id}_{number}.out") == user.output(f"pid.{number}")
        assert rows[number]["starts"] == 1
    again = user.csub("cancel", f"{job_id}/1")
    assert f"{job_id}/1: already ended" in again.stderr


@pytest.mark.smoke
def test_cancelling_a_whole_submission(user: CsubUser) -> None:
    user.script("trap.sh", f"trap 'echo term; exit 0' TERM; echo up; {FOREVER}")
    job_id = user.submit("--array=1-6", "--gres=gpu:1", "--degree=2", "--pack-size=3", "trap.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING", 4: "RUNNING"})
    for number in (1, 2, 4, 5):
        wait_until(lambda n=number: user.output(f"slurm-{job_id}_{n}.out"), f"{number} is up")  # type: ignore[misc]
    user.csub("cancel", job_id)
    rows = user.wait_for_states(job_id, "CANCELLED")
    assert sorted(rows) == [1, 2, 3, 4, 5, 6]
    for number in (1, 2, 4, 5):
        lines = user.output(f"slurm-{job_id}_{number}.out").splitlines()
        assert (lines[0], lines.count("term")) == ("up", 1)
    assert not (user.home / f"slurm-{job_id}_3.out").exists()
    assert json.loads(user.csub("queue", "--json").stdout) == []
    assert user.run(["csub", "wait", job_id], check=False).returncode != 0


@pytest.mark.smoke
def test_logs_follow_a_member_to_its_end(user: CsubUser) -> None:
    user.script("talk.sh", "for i in 1 2 3; do echo line $i; sleep 0.5; done; printf last")
    job_id = user.submit("pack", "--gres=gpu:1", "talk.sh", "talk.sh")
    following = user.start(["csub", "logs", "-f", f"{job_id}/2"])
    try:
        told, complaint = following.communicate(timeout=60)
    finally:
        following.kill()
        following.wait()
    assert (told, complaint) == ("line 1\nline 2\nline 3\nlast", "")
    assert following.returncode == 0
    user.finish(job_id)
    assert user.csub("logs", f"{job_id}/1").stdout == told
    both = user.csub("logs", job_id).stdout
    assert both.count("==> ") == 2
    assert both.count("line 3") == 2


def test_an_output_says_at_once_that_its_job_was_cancelled(user: CsubUser) -> None:
    """The last member goes with the pack: at Slurm's KILL its runner would write nothing more."""
    user.script("deaf.sh", f"trap '' TERM; echo up; {FOREVER}")
    job_id = user.submit("pack", "--gres=gpu:1", "deaf.sh", "deaf.sh")
    for number in (1, 2):
        wait_until(lambda n=number: user.output(f"slurm-{job_id}_{n}.out"), f"{number} is up")  # type: ignore[misc]
    user.csub("cancel", f"{job_id}/1")
    user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING"})
    user.csub("cancel", f"{job_id}/2")
    output = f"slurm-{job_id}_2.out"
    wait_until(lambda: "CANCELLED AT" in user.output(output), "its output says so")
    assert json.loads(user.csub("queue", "--json").stdout), "it was told while the member still ran"
    user.finish(job_id)
    for number in (1, 2):
        assert user.output(f"slurm-{job_id}_{number}.out").count("CANCELLED AT") == 1
