"""A pack with a monitor, on simulated GPUs where a test asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.simgpu.gpu_models import A100_40, H200

from ..simgpu.conftest import Simulation, running_simulation
from .watched_pack import WatchedPack


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[WatchedPack]:
    """A pack without members yet."""
    made = WatchedPack(tmp_path)
    yield made
    made.close()


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    """A node with an H200, which has GPM, and an A100, which has not."""
    with running_simulation("mon", {"n1": [H200, A100_40]}) as made:
        yield made
