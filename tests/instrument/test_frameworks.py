"""Compilers, launchers and trainers: counted as they say, and left as they are."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from .counted_programs import PROGRAMS, Ended, build_environment, run

pytestmark = [
    pytest.mark.long,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing"),
]


def read_last(ended: Ended) -> Any:
    """The JSON of the last line."""
    assert ended.code == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["model", "step", "whole", "graph"])
def test_torch_compile_compiles_the_same_and_steps_are_counted(tmp_path: Path, what: str) -> None:
    argv: list[str | Path] = [sys.executable, PROGRAMS / "compiled.py", what]
    counted = run(argv, tmp_path)
    plain = {k: v for k, v in build_environment(tmp_path).items() if k != "SLURM_COLLOC_PROGRESS"}
    with_it = read_last(counted)
    without = read_last(run(argv, tmp_path / "none", environment=plain))
    # Graphs and captured calls are the same, so nothing was split or compiled again.
    assert with_it["stats"] == without["stats"]
    for reason, number in with_it["breaks"].items():
        assert number <= without["breaks"].get(reason, 0), reason
    if what == "graph":
        # No Python runs at such a step; docs/progress.md says what to do.
        assert counted.progress is None
        return
    assert counted.progress is not None
    assert counted.progress.steps == with_it["steps"]


def test_ranks_of_torchrun_step_together_and_share_the_samples(tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    argv: list[str | Path] = [sys.executable, *launch, str(PROGRAMS / "distributed.py")]
    ended = run(argv, tmp_path)
    assert ended.code == 0, ended.stderr
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(said) == 2
    assert ended.progress is not None
    by_pid = {process.pid: process for process in ended.progress.processes}
    for rank in said:
        process = by_pid[rank["pid"]]
        assert (process.rank, process.world) == (rank["rank"], 2)
        assert (process.steps, process.samples) == (rank["steps"], rank["samples"])
    assert ended.progress.steps == said[0]["steps"]
    assert ended.progress.samples == sum(rank["samples"] for rank in said)
    assert ended.progress.trainers == 2


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("with_lightning.py", ("lightning",)),
        ("with_trainer.py", ("transformers", "accelerate")),
    ],
)
def test_trainers_are_counted_as_they_count_themselves(
    tmp_path: Path, program: str, modules: tuple[str, ...]
) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is missing; pip install -e '.[scripts]'")
    directory = tmp_path / "progress"
    directory.mkdir()
    environment = build_environment(directory, HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        environment.pop(name, None)
    argv: list[str | Path] = [sys.executable, PROGRAMS / program, tmp_path / "out"]
    ended = run(argv, directory, environment=environment, cwd=tmp_path)
    said = read_last(ended)
    assert ended.progress is not None
    assert (ended.progress.steps, ended.progress.skipped) == (said["steps"], 0)
    assert ended.progress.samples == said["samples"]
