"""csub probe: a job runs alone until its rate is known; what it shows is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..bed import CsubUser
from .mps import journal, pack_directory

pytestmark = pytest.mark.slurm

GPU = ("--share=mps", "--gres=gpu:1", "-c1", "--mem=1G")
LONG = (*GPU, "--time=30")

# Without PyTorch, so it says itself how far it is. It uses the simulated GPU through a child.
TRAIN = """\
import subprocess, sys, time
from pathlib import Path
from slurm_colloc import progress

use = subprocess.Popen(["simgpu", "run", "--seconds=300", "--gpu-memory=2G", "--sm=20"])
stop = Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.02)
    progress.step(samples=8)
use.kill()
"""


def write_training(user: CsubUser) -> Path:
    """A training that runs until a file is there; the file."""
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" {stop}')
    return stop


def read_summary(user: CsubUser, job_id: str) -> dict[str, Any]:
    (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
    return dict(summary)


def count_steps(user: CsubUser, job_id: str, number: int) -> int:
    latest = json.loads((pack_directory(user, job_id) / "latest.json").read_text())
    return int(latest["members"].get(str(number), {}).get("steps") or 0)


def states(user: CsubUser, job_id: str) -> list[str]:
    return [row["state"] for _, row in sorted(user.members(job_id).items())]


@pytest.mark.smoke
def test_probe_ends_by_itself_and_shows_the_usage_profile(mps_user: CsubUser) -> None:
    user = mps_user
    write_training(user)
    with_a_day = ("--gres=gpu:1", "-c1", "--mem=1G", "--time=1-0")
    told = user.csub("probe", "--wait", *with_a_day, "train.sh", "--lr", "0.1")
    assert "Signature:" in told.stdout
    (row,) = user.members("last").values()
    assert (row["state"], row["reason"]) == ("CANCELLED", "its probe window is over")
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    assert profile["steps_per_s"]["mean"] > 0
    assert profile["gpu_memory_peak_mb"] >= 2048
    # The run itself is of the same signature.
    job_id = user.submit("pack", *LONG, "train.sh --lr 0.1", "train.sh --lr 0.2")
    user.wait_for_states(job_id, "RUNNING")
    assert journal(user, job_id, "probe") == []
    user.csub("cancel", "--yes", job_id)


def test_probe_refuses_what_it_cannot_do(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("tell.sh", "true")
    told = user.csub("probe", "tell.sh", check=False)
    assert told.returncode == 2
    assert "tell.sh asks for no GPU" in told.stderr
    told = user.csub("probe", "--array=1-2", "--gres=gpu:1", "tell.sh", check=False)
    assert told.returncode == 2
    assert "takes one job" in told.stderr
    told = user.csub("probe", "--gres=gpu:1", "--mem=100M", "tell.sh", check=False)
    assert told.returncode == 2
    assert "csub probe would measure nothing: --mem is 100 MB" in told.stderr
    assert user.csub("queue").stdout.count("\n") <= 1
