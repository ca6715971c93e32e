"""A training that doubles its batch is measured anew once; one that evaluates is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import explained, journal
from .test_measured_packs import count_steps, wait_for_decision

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=700M", "--time=30")
TRAIN = """\
import os, time
from pathlib import Path
from slurm_colloc import progress

# A step takes as long for a batch twice as large.
task, batch, begun, evaluated = os.environ["SLURM_ARRAY_TASK_ID"], 32, time.monotonic(), 0
while not Path("stop").exists():
    time.sleep(0.05)
    if task == "1" and Path("double").exists():
        batch = 64
    progress.step(samples=batch)
    epochs = int((time.monotonic() - begun) / 15)
    if task == "2" and epochs > evaluated:
        evaluated = epochs
        time.sleep(4)
"""

SCHEDULED = """\
import os, time
from pathlib import Path
import torch
from bs_scheduler import LambdaBS
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.randn(640, 4)), batch_size=32)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
if os.environ["SLURM_ARRAY_TASK_ID"] == "1":
    scheduler = LambdaBS(loader, lambda epoch: 2 if Path("double").exists() else 1)
else:
    # It passes.
    scheduler = LambdaBS(loader, lambda epoch: 2 if epoch % 40 == 39 else 1)
while not Path("stop").exists():
    for (batch,) in loader:
        # A step takes as long for a batch twice as large.
        time.sleep(0.05)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    scheduler.step()
"""


def test_a_batch_that_doubles_is_one_new_measurement(mps_user: CsubUser) -> None:
    check_one_new_measurement(mps_user, TRAIN)


@pytest.mark.torch
def test_so_is_one_that_bs_scheduler_doubles(mps_user: CsubUser) -> None:
    pytest.importorskip("torch")
    package = pytest.importorskip("bs_scheduler", reason="bs-scheduler is not installed")
    mps_user.extra["PYTHONPATH"] = str(Path(package.__file__).parents[1])
    check_one_new_measurement(mps_user, SCHEDULED)


def check_one_new_measurement(user: CsubUser, program: str) -> None:
    (user.home / "train.py").write_text(program)
    user.script("train.sh", 'exec python3 "$HOME/train.py"')
    job_id = user.submit("--array=1-2", *OPTIONS, "train.sh")

    def list_reasons() -> list[str]:
        return [e["reason"] for e in journal(user, job_id) if e["event"] == "measures"]

    with explained(user, job_id):
        wait_for_decision(user, job_id)
        assert list_reasons() == ["it has settled"]
        before = count_steps(user, job_id, 1)
        wait_until(lambda: count_steps(user, job_id, 1) > before + 600, "it has evaluated")
        assert list_reasons() == ["it has settled"]
        (user.home / "double").touch()
        wait_until(lambda: len(list_reasons()) > 1, "it is measured anew", patience_s=240)
        # As many steps as are enough to see a change.
        before = count_steps(user, job_id, 1)
        wait_until(lambda: count_steps(user, job_id, 1) > before + 900, "it goes on")
    (user.home / "stop").touch()
    user.finish(job_id)
    assert list_reasons() == ["it has settled", "member 1 has changed"]
