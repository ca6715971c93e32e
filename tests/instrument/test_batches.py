"""Batches and their samples are counted exactly, whatever they are and however they are read."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from .counted_programs import PROGRAMS, run, run_python

pytestmark = pytest.mark.long


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing")
@pytest.mark.parametrize(
    "way", ["read_shapes", "read_in_threads", "read_after_faults", "read_in_a_child_of_a_reader"]
)
def test_batches_and_samples_are_what_the_program_says(tmp_path: Path, way: str) -> None:
    ended = run([sys.executable, PROGRAMS / "batches.py", way], tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.progress is not None
    counted = {p.pid: (p.batches, p.samples) for p in ended.progress.processes}
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert counted == {one["pid"]: (one["batches"], one["samples"]) for one in said}


def test_only_the_thread_that_steps_waits_for_its_batches(tmp_path: Path) -> None:
    code = (
        "import threading\n"
        "from slurm_colloc import progress\n"
        "tally = progress._TALLY\n"
        "tally.count_batch(1, 8, 100, 1100)\n"
        "tally.count_step(7)\n"
        "tally.count_batch(1, 8, 2000, 2500)\n"
        "ahead = threading.Thread(target=tally.count_batch, args=(1, 8, 3000, 9000))\n"
        "ahead.start(); ahead.join()\n"
    )
    ended = run_python(code, tmp_path)
    assert ended.progress is not None
    assert (ended.progress.batches, ended.progress.samples) == (3, 8)
    assert ended.progress.wait_s == pytest.approx(1500e-9)


@pytest.mark.parametrize(
    ("workers", "known"), [(2, 2), (0, 0), (None, None), (-3, None), (1 << 80, None), ("2", None)]
)
def test_workers_are_those_of_the_loader_that_steps_follow(
    tmp_path: Path, workers: object, known: int | None
) -> None:
    code = (
        "from slurm_colloc import progress\n"
        "tally = progress._TALLY\n"
        f"tally.count_batch(1, 8, 100, 1100, {workers!r})\n"
        "tally.count_step(7)\n"
        # A validation's.
        "tally.count_batch(2, 8, 2000, 2500, 7)\n"
    )
    ended = run_python(code, tmp_path)
    assert ended.progress is not None
    assert ended.progress.batches == 2, ended.stderr
    assert ended.progress.loader_workers == known


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing")
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_says_how_many_workers_its_loader_has(tmp_path: Path, workers: int) -> None:
    code = (
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"for batch in DataLoader(torch.ones(8, 1), batch_size=4, num_workers={workers}):\n"
        "    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
        "for batch in DataLoader(torch.ones(8, 1), batch_size=4, num_workers=1): pass\n"
    )
    program = tmp_path / "train.py"
    program.write_text(code)
    ended = run([sys.executable, program], tmp_path)
    assert ended.progress is not None, ended.stderr
    assert (ended.progress.batches, ended.progress.loader_workers) == (4, workers)
