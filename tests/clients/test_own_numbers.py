"""Programs that name things after SLURM_JOB_ID: tasks that share a GPU are jobs of their own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from ..bed import CsubUser

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.long]

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 300
HEAD = """#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=900M --time=5
"""


def lay_out(user: CsubUser, name: str, body: str, program: str) -> Path:
    """A directory of the user's with a script and the program that it runs."""
    folder = user.home / name
    folder.mkdir()
    shutil.copy(PROGRAMS / program, folder)
    (folder / "train.sh").write_text(HEAD + body)
    for place in (folder, *folder.iterdir()):
        os.chown(place, user.uid, user.gid)
        place.chmod(0o755)
    return folder


def run_with_both(
    user: CsubUser, body: str, program: str, tasks: str = "--array=0-1"
) -> tuple[Path, Path]:
    """Run two tasks with sbatch, then with csub, which share a GPU; where each has run."""
    by_sbatch, by_csub = (lay_out(user, name, body, program) for name in ("sbatch", "csub"))
    words = [tasks, "train.sh"]
    user.run(["sbatch", "--wait", *words], directory=by_sbatch, timeout_s=PATIENCE_S)
    answer = user.run(["csub", "--parsable", *words], directory=by_csub).stdout.strip()
    rows = user.finish(answer, patience_s=PATIENCE_S)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}, user.describe(answer)
    assert len(list(user.state.glob("packs/*"))) == 1
    return by_sbatch, by_csub


def read_outputs(folder: Path) -> list[str]:
    return sorted(
        line for path in folder.glob("slurm-*.out") for line in path.read_text().split("\n") if line
    )


@pytest.mark.parametrize("nodes", ["1", "1:2"])
def test_tasks_do_not_train_as_one_job_of_torchrun(user: CsubUser, nodes: str) -> None:
    torchrun = f"{sys.executable} -m torch.distributed.run"
    body = f"""
{torchrun} --nnodes={nodes} --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \\
    --rdzv_endpoint=localhost:$((10000 + SLURM_JOB_ID % 50000)) count_workers.py 2>/dev/null
"""
    by_sbatch, by_csub = run_with_both(user, body, "count_workers.py")
    expected = ["WORLD_SIZE 1 rank 0"] * 2
    assert read_outputs(by_csub) == expected
    assert read_outputs(by_sbatch) == expected


def test_tasks_have_folders_of_their_own_from_lightnings_logger(user: CsubUser) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    body = f"{sys.executable} train_with_logger.py $SLURM_ARRAY_TASK_ID >/dev/null 2>&1\n"
    for folder in run_with_both(user, body, "train_with_logger.py"):
        versions = sorted(folder.glob("runs/lightning_logs/version_*"))
        assert len(versions) == 2, versions
        tasks = {
            line
            for version in versions
            for line in (version / "hparams.yaml").read_text().splitlines()
        }
        assert tasks == {"task: 0", "task: 1"}
        for version in versions:
            assert len(list(version.glob("checkpoints/*.ckpt"))) == 1
            assert "loss" in (version / "metrics.csv").read_text()
