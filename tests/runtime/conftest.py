"""Processes that run for as long as a test needs them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.runtime.launch.step_command import StartedProcess, start_process


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
