"""Processes that run for as long as a test needs them, and the parts of a runner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.runtime.step_command import StartedProcess, start_process

from .stepped_runner import SteppedRunner


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StartedProcess]:
    """Something that runs."""
    running = start_process(
        [sys.executable, "-c", "import time; time.sleep(300)"], {}, str(tmp_path / "log")
    )
    yield running
    running.kill()
    while running.poll() is None:
        time.sleep(0.01)


@pytest.fixture
def build_bed(tmp_path: Path) -> Iterator[Callable[..., SteppedRunner]]:
    """Makes the parts of a runner, once a test has said for which pack."""
    beds = []

    def build(**changes: Any) -> SteppedRunner:
        beds.append(SteppedRunner(tmp_path, **changes))
        return beds[-1]

    yield build
    for bed in beds:
        bed.close()


@pytest.fixture
def bed(build_bed: Callable[..., SteppedRunner]) -> SteppedRunner:
    """The parts of a runner of three members, of which two run at once."""
    return build_bed()
