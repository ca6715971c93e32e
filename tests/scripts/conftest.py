"""The sandbox and the users of tests/cluster, for the scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..cluster.conftest import accounts

__all__ = ["accounts"]


@pytest.fixture(scope="session")
def scripts_cluster() -> Iterator[Sandbox]:
    """Eight GPUs, so that many scripts run at the same time; a requeued job waits 5 s."""
    with running_sandbox(
        gpus_per_node=4,
        cpus_per_node=32,
        host_memory_mb_per_node=64000,
        # Job ids that cannot be taken for another number in a file.
        extra_conf=("FirstJobId=7654001",),
    ) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def scripts_user(scripts_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """One user for all scripts."""
    with user_of(scripts_cluster, accounts[0]) as somebody:
        yield somebody
