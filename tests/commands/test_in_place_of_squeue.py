"""csub under the name squeue: the values of tasks that wait in a pack that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..bed import CsubUser

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


def test_where_the_second_question_fails_no_task_seems_gone(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-2", "--gres=gpu:1", "--degree=2", "go.sh")
    linked.wait_for_states(job_id, "RUNNING")
    asked = ["squeue", "-h", "-t", "RUNNING", "-o", "%i"]
    assert linked.run(asked).stdout.split() == [f"{job_id}_1", f"{job_id}_2"]
    folder = linked.home / "slurms"
    folder.mkdir()
    real = linked.find("squeue")
    (folder / "squeue").write_text(
        "#!/bin/sh\n"
        'case " $* " in *" --states=all "*) echo "error: no answer" >&2; exit 1 ;; esac\n'
        f'exec {real} "$@"\n'
    )
    (folder / "squeue").chmod(0o755)
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{folder}:{linked.environment['PATH']}"
    ended = linked.run(asked, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: no answer\n"
    linked.run(["touch", "go"])
    linked.finish(job_id)
