"""csub requeue."""

from __future__ import annotations

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

GO = "echo start >> ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done"
PACK = ("--gres=gpu:1", "--degree=2", "--pack-size=4", "--time=5")


def count_starts(user: CsubUser, name: str) -> int:
    return len(user.output(f"ran.{name}").splitlines())


def start_pack(user: CsubUser, *options: str) -> str:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, *options, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    return job_id


@pytest.mark.smoke
def test_a_requeued_member_starts_again_and_its_neighbours_do_not(user: CsubUser) -> None:
    job_id = start_pack(user)
    wait_until(lambda: count_starts(user, "1") == 1, "the first has begun")
    user.csub("requeue", f"{job_id}/1")
    # Its place goes to the one that waited; it is behind that one now.
    user.wait_for_states(job_id, {1: "PENDING", 2: "RUNNING", 3: "RUNNING"})
    user.run(["touch", "go.1", "go.2", "go.3"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    assert [rows[number]["starts"] for number in (1, 2, 3)] == [2, 1, 1]
    assert [count_starts(user, name) for name in "123"] == [2, 1, 1]


@pytest.mark.smoke
def test_a_requeued_pack_runs_its_unfinished_members_again(user: CsubUser) -> None:
    job_id = start_pack(user)
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "COMPLETED", 3: "RUNNING"})
    user.csub("requeue", job_id)
    again = user.csub("requeue", job_id, check=False)
    # It waits again by now, or Slurm is not done with it yet and refuses.
    assert again.stderr.startswith("csub: error: ")
    assert again.stderr.count("\n") == 1
    assert again.returncode == (2 if "already pending" in again.stderr else 4), again.stderr
    user.run(["touch", "go.2", "go.3"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    assert [count_starts(user, name) for name in "123"] == [1, 2, 2]
