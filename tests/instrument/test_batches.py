"""Batches and their samples are counted exactly, whatever they are and however they are read."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from .bed import PROGRAMS, run, run_python

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
