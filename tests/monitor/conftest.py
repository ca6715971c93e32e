"""A pack with a monitor, on simulated GPUs where a test asks for them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.sandbox.simgpu.install import make_simulation
from slurm_colloc.sandbox.simgpu.models import A100_40, H200

from ..simgpu.conftest import Simulation
from .bed import Bed


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    """A pack without members yet."""
    made = Bed(tmp_path)
    yield made
    made.close()


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    """A node with an H200, which has GPM, and an A100, which has not."""
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    # Not below pytest's own directory: its path is too long for sockets.
    directory = Path(tempfile.mkdtemp(prefix="mon", dir="/var/tmp"))
    directory.chmod(0o755)
    made = Simulation(directory / "sim")
    try:
        make_simulation(made.directory, {"n1": [H200, A100_40]})
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.communicate()
        shutil.rmtree(directory, ignore_errors=True)
