"""A storm of pauses over programs as users write them: each lives, and counts as it prints."""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import ProcessId
from slurm_colloc.runtime.pack_monitor import injected_environment
from slurm_colloc.runtime.pause_members import StepProcesses, resume
from slurm_colloc.store.progress_counters import read_member_progress

from ..wait_until import wait_until
from .running_member import RunningMember

pytestmark = [pytest.mark.long, pytest.mark.torch]

PROGRAM = Path(__file__).parent / "programs" / "stormy.py"
PAUSES = 1000
PYTHON = [sys.executable, str(PROGRAM)]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
PROGRAMS = {
    "loader": ([*PYTHON, "loader"], ("torch",)),
    "ranks": ([*RANKS, str(PROGRAM), "ranks"], ("torch",)),
    "lightning": ([*PYTHON, "lightning"], ("torch", "lightning")),
    "trainer": ([*PYTHON, "trainer"], ("torch", "transformers", "accelerate")),
    "server": ([*PYTHON, "server"], ()),
}


def has_trained(counters: Path) -> bool:
    """Whether a program is past its first steps."""
    found = read_member_progress(str(counters))
    return found is not None and found.steps > 20


def test_a_thousand_random_pauses_hurt_no_program(
    start: Callable[..., RunningMember], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(20261125)
    stop = tmp_path / "stop"
    members: dict[str, tuple[RunningMember, Path]] = {}
    processes = StepProcesses(str(tmp_path))
    held: list[ProcessId] = []
    for name, (words, modules) in PROGRAMS.items():
        if any(importlib.util.find_spec(module) is None for module in modules):
            continue
        counters = tmp_path / f"{name}.progress"
        counters.mkdir()
        with monkeypatch.context() as changed:
            changed.setenv("HF_HUB_OFFLINE", "1")
            for key, value in injected_environment({}, str(counters)).items():
                changed.setenv(key, value)
            members[name] = start(*words, str(stop)), counters
        wait_until(
            partial(has_trained, counters),
            f"{name} trains",
            patience_s=240,
        )
        # The next has the machine for its start.
        wrapper = members[name][0].wrapper_pid
        held += processes.stop({0: wrapper})[0].processes
    assert "server" in members
    resume(held)
    wrappers = {index: member.wrapper_pid for index, (member, _) in enumerate(members.values())}
    for _ in range(PAUSES):
        some = chance.sample(sorted(wrappers), chance.randint(1, len(wrappers)))
        stopped = processes.stop({index: wrappers[index] for index in some})
        time.sleep(chance.uniform(0.0, 0.03))
        for one in stopped.values():
            resume(one.processes)
        time.sleep(chance.uniform(0.0, 0.02))
    alive = [name for name, (member, _) in members.items() if member.process.poll() is None]
    assert alive == list(members)
    stop.touch()
    for name, (member, counters) in members.items():
        assert member.process.wait(120) == 0, (name, member.output)
        printed = int(member.output.strip().splitlines()[-1].removeprefix("steps "))
        counted = read_member_progress(str(counters))
        assert counted is not None
        assert counted.steps == printed, name
