"""runner.json: which process runs a pack, so that no other one is taken for it.

A pid says nothing on another host that sees the same path, nor after the process has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record


@dataclasses.dataclass(frozen=True)
class RunnerProcess:
    """The process of a pack's newest runner.

    Attributes:
        host: Where it runs, as uname(2) has it.
        pid: Its process id there.
        start_ticks: Its start, in clock ticks after boot (proc(5)).
    """

    host: str
    pid: int
    start_ticks: int


def write_runner(pack: Path | str, runner: RunnerProcess) -> None:
    """Write down which process runs a pack.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{pack}/runner.json", dataclasses.asdict(runner))


def read_runner(pack: Path | str) -> RunnerProcess | None:
    """Which process runs a pack, or has; None where none wrote it down.

    Raises:
        StateError: It is damaged.
    """
    return read_record(f"{pack}/runner.json", RunnerProcess)


def is_of_another_host(pack: Path | str) -> bool:
    """A pack's newest runner runs, or has run, on another machine that sees the same path."""
    with contextlib.suppress(StateError):
        runner = read_runner(pack)
        return runner is not None and runner.host != os.uname().nodename
    return False
