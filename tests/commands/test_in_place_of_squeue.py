"""csub under the name squeue: the values of tasks that wait in a pack that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..cluster.conftest import CsubUser

CSUB = Path(sys.executable).parent / "csub"
WAITS = "while [ ! -e go ]; do sleep 0.1; done"


@pytest.fixture
def linked(user: CsubUser) -> CsubUser:
    """A user whose squeue is a link to csub."""
    folder = user.home / "mybin"
    folder.mkdir()
    (folder / "squeue").symlink_to(CSUB)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    user.script("go.sh", WAITS)
    return user


def test_a_task_that_waits_in_a_pack_that_runs_has_no_start(linked: CsubUser) -> None:
    words = ("--array=1-3", "--gres=gpu:1", "--degree=2", "--pack-size=3", "--time=5")
    job_id = linked.submit(*words, "go.sh")
    linked.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    shown = linked.run(["squeue", "-h", "-r", "-o", "%i|%T|%M|%S"]).stdout.splitlines()
    rows = {row.split("|")[0]: row.split("|")[1:] for row in shown}
    assert rows[f"{job_id}_1"][0] == "RUNNING"
    assert rows[f"{job_id}_1"][2].startswith("20")
    assert rows[f"{job_id}_3"] == ["PENDING", "0:00", "N/A"]
    linked.run(["touch", "go"])
    linked.finish(job_id)
