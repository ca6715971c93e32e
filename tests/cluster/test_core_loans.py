"""A training that waits for data borrows the core that its neighbour has left, on a real Slurm."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import explained, journal

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
]

# Each item takes a hundredth of a second of a core, and there are two workers.
TRAIN = """\
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Decoded(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, row):
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
        return torch.ones(8)

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in DataLoader(Decoded(), batch_size=4, num_workers=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if Path(sys.argv[1]).exists():
        break
"""


@pytest.fixture(scope="module")
def two_core_cluster() -> Iterator[Sandbox]:
    """One node with one GPU and the two CPUs that it really has."""
    with running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=2) as sandbox:
        yield sandbox


@pytest.fixture
def owner(two_core_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(two_core_cluster, accounts[0]) as somebody:
        yield somebody


def test_a_training_that_waits_for_data_borrows_a_core(owner: CsubUser) -> None:
    stop = owner.home / "stop"
    (owner.home / "train.py").write_text(TRAIN)
    owner.script("train.sh", f'exec {sys.executable} "$HOME/train.py" {stop}')
    owner.script("short.sh", "sleep 3")
    words = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=1G", "--time=30", "--degree=2")
    job_id = owner.submit("pack", *words, "train.sh", "short.sh")
    with explained(owner, job_id):
        lent = wait_until(lambda: journal(owner, job_id, "cores"), "a loan", patience_s=180)
    assert [(event["member"], event["cores"], event["own"]) for event in lent] == [(1, 2, 1)]
    assert lent[0]["wait_share"] > 0.3

    def is_told() -> bool:
        told = owner.csub("why", f"{job_id}/1").stdout
        return re.search(r"on 2 of 2 cores: it waited \d+ % for data with 1", told) is not None

    # Whether it helps depends on what else the machine does: then it may end again.
    wait_until(is_told, "csub why tells of it")
    stop.touch()
    rows = owner.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    report = owner.csub("report", job_id, "--detail").stdout
    assert "had up to 2 of 2 cores instead of 1" in " ".join(report.split()), report
