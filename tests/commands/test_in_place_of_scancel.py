"""csub under the name scancel: tasks of packs end as members, all else is Slurm's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..cluster.conftest import CsubUser
from ..wait_until import wait_until

CSUB = Path(sys.executable).parent / "csub"
WAITS = "while [ ! -e go ]; do sleep 0.1; done"


@pytest.fixture
def linked(user: CsubUser) -> CsubUser:
    """A user whose scancel is a link to csub."""
    folder = user.home / "mybin"
    folder.mkdir()
    (folder / "scancel").symlink_to(CSUB)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    user.script("go.sh", WAITS)
    return user


def test_tasks_of_a_pack_end_alone_and_silently(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-5", "--gres=gpu:1", "--degree=5", "go.sh")
    linked.wait_for_states(job_id, "RUNNING")
    ended = linked.run(["scancel", f"{job_id}_2", f"{job_id}_[4-5]"])
    assert (ended.stdout, ended.stderr) == ("", "")
    linked.run(["touch", "go"])
    states = {number: row["state"] for number, row in linked.finish(job_id).items()}
    assert states == {
        1: "COMPLETED", 2: "CANCELLED", 3: "COMPLETED", 4: "CANCELLED", 5: "CANCELLED",
    }  # fmt: skip


def test_jobs_that_csub_does_not_know_are_slurms(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-2", "--gres=gpu:1", "--degree=2", "go.sh")
    words = ["--parsable", "--array=1-2", "--wrap", WAITS]
    other = linked.run(["sbatch", *words]).stdout.strip()
    linked.wait_for_states(job_id, "RUNNING")
    linked.run(["scancel", f"{other}_1,{job_id}_1"])
    ask = ["squeue", "-h", "-r", "-t", "all", "-j", other, "-o", "%i %T"]
    wait_until(lambda: f"{other}_1 CANCELLED" in linked.run(ask).stdout, "its task has ended")
    assert f"{other}_2 RUNNING" in linked.run(ask).stdout
    linked.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING"})
    # Whole jobs are Slurm's.
    linked.run(["scancel", job_id, other])
    states = [row["state"] for row in linked.finish(job_id).values()]
    assert states == ["CANCELLED", "CANCELLED"]


def test_a_submission_of_several_slurm_jobs_ends_whole(linked: CsubUser) -> None:
    linked.script("one.sh", WAITS, directives="#SBATCH --gres=gpu:1")
    linked.script("two.sh", WAITS, directives="#SBATCH --gres=gpu:1 --no-requeue")
    job_id = linked.submit("pack", "one.sh", "two.sh")
    linked.wait_for_states(job_id, "RUNNING")
    assert len(linked.run(["squeue", "-h", "-o", "%A"]).stdout.split()) == 2
    other = linked.run(["sbatch", "--parsable", "--wrap", WAITS]).stdout.strip()
    ended = linked.run(["scancel", job_id, other])
    assert (ended.stdout, ended.stderr) == ("", "")
    states = [row["state"] for row in linked.finish(job_id).values()]
    assert states == ["CANCELLED", "CANCELLED"]
    wait_until(lambda: not linked.run(["squeue", "-h", "-o", "%A"]).stdout, "all have ended")


def test_where_the_state_cannot_be_read_slurms_own_ends_its_jobs(linked: CsubUser) -> None:
    job_id = linked.run(["sbatch", "--parsable", "--wrap", WAITS]).stdout.strip()
    settings = linked.home / "settings.toml"
    settings.write_text("degree = []\n")
    linked.extra["SLURM_COLLOC_SETTINGS"] = str(settings)
    ended = linked.run(["scancel", job_id])
    assert "settings.toml" in ended.stderr
    assert ended.stderr.endswith("; only Slurm is asked\n")
    wait_until(lambda: not linked.run(["squeue", "-h", "-o", "%A"]).stdout, "it has ended")


def test_where_no_scancel_is_slurms_that_is_said(linked: CsubUser) -> None:
    python = str(Path(sys.executable).parent)
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{python}"
    ended = linked.run([str(linked.home / "mybin" / "scancel"), "4711"], check=False)
    assert ended.returncode == 4
    assert "every scancel in PATH leads back to csub" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_end_of_slurms_own_by_a_signal_is_told_as_shells_tell_it(linked: CsubUser) -> None:
    folder = linked.home / "slurms"
    folder.mkdir()
    (folder / "scancel").write_text("#!/bin/sh\nkill -TERM $$\n")
    (folder / "scancel").chmod(0o755)
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{folder}:{linked.environment['PATH']}"
    assert linked.run(["scancel", "--name=a"], check=False).returncode == 128 + 15
