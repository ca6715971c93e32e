"""Lightning requeues itself before its time limit: with sbatch, and as one member of two."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.long]

PROGRAM = Path(__file__).parent / "programs" / "train_until_requeued.py"
STEPS = 800
"""Longer than a member's limit: in a pack it is its own times the accepted slowdown."""
PATIENCE_S = 500
HEAD = """#!/bin/bash
#SBATCH --gres=gpu:1 --nodes=1 --ntasks-per-node=1 --cpus-per-task=2 --mem=1500M
#SBATCH --signal=SIGUSR1@30 --requeue --open-mode=append
"""
TRAIN = f"""{HEAD}#SBATCH --time=2
srun {sys.executable} train_until_requeued.py
"""
NEIGHBOUR = f"""{HEAD}#SBATCH --time=10
echo start >>neighbour
while ! [ -e ended ]; do sleep 0.5; done
"""


def lay_out(user: CsubUser, name: str) -> Path:
    folder = user.home / name
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    (folder / "train.sh").write_text(TRAIN)
    (folder / "neighbour.sh").write_text(NEIGHBOUR)
    for place in (folder, *folder.iterdir()):
        os.chown(place, user.uid, user.gid)
        place.chmod(0o755)
    return folder


def read_starts(folder: Path) -> list[tuple[int, int]]:
    """Restart count and first step of each start."""
    rows = [line.split() for line in (folder / "starts").read_text().splitlines()]
    return [(int(restart), int(step)) for restart, step in rows]


def check_training(folder: Path) -> int:
    """It has stopped in the middle and gone on where its checkpoint was; how often it started.

    On a busy machine the second start may reach its limit, too.
    """
    assert (folder / "ended").read_text() == f"{STEPS}\n"
    starts = read_starts(folder)
    assert len(starts) > 1
    assert [restart for restart, _ in starts] == list(range(len(starts)))
    begins = [begin for _, begin in starts]
    assert begins[0] == 0
    assert begins == sorted(set(begins))
    steps = [int(line) for line in (folder / "steps").read_text().split()]
    # What came after a checkpoint is done again; what was before it never is.
    assert set(steps) == set(range(STEPS))
    assert steps[begins[-1] - STEPS :] == list(range(begins[-1], STEPS))
    assert len(steps) < STEPS * 1.5
    return len(starts)


def test_a_member_that_requeues_itself_goes_on_from_its_checkpoint(user: CsubUser) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    by_sbatch, by_csub = lay_out(user, "by-sbatch"), lay_out(user, "by-csub")
    words = ["--parsable", "train.sh"]
    control = user.run(["sbatch", *words], directory=by_sbatch).stdout.strip()
    pack = ["csub", "pack", "--parsable", "--degree=2", "--no-pause", "train.sh", "neighbour.sh"]
    job_id = user.run(pack, directory=by_csub).stdout.strip()
    wait_until((by_sbatch / "ended").exists, "sbatch's training ends", patience_s=PATIENCE_S)
    rows = user.finish(job_id, patience_s=PATIENCE_S)
    check_training(by_sbatch)
    starts = check_training(by_csub)
    assert {row["slurm_job_id"] for row in rows.values()} == {rows[1]["slurm_job_id"]}
    assert [(row["state"], row["starts"]) for row in rows.values()] == [
        ("COMPLETED", starts),
        ("COMPLETED", 1),
    ]
    assert (by_csub / "neighbour").read_text() == "start\n"
    states = user.run(["squeue", "-h", "--states=all", "-j", control, "-o", "%T"]).stdout.split()
    assert states in (["COMPLETED"], ["COMPLETING"], ["RUNNING"])
