"""Real packs on a real Slurm: a sandbox for the whole run, and users who submit to it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import USERS, CsubUser, can_reach_checkout, running_sandbox, user_of


@pytest.fixture(scope="session")
def accounts() -> Iterator[tuple[str, ...]]:
    """Ordinary users, made for the tests where root runs them."""
    made = []
    if os.geteuid() == 0:
        for name in USERS:
            try:
                pwd.getpwnam(name)
            except KeyError:
                subprocess.run(
                    ["useradd", "--no-create-home", name], check=True, capture_output=True
                )
                made.append(name)
    yield USERS
    for name in made:
        subprocess.run(["userdel", name], check=False, capture_output=True)


# A sandbox takes a second or two to come up and go. Each of these is there once for a worker, as
# soon as a test asks for it; tests leave it whole and its queue empty. They are several, because
# slurm.conf binds tasks to CPUs on all nodes or on none, and the simulated GPUs are in the
# environment of all commands of a sandbox.


@pytest.fixture(scope="session")
def cluster() -> Iterator[Sandbox]:
    """Two nodes of 16 claimed CPUs and 2 GPUs each."""
    with running_sandbox(cpus_per_node=16) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def small_cluster() -> Iterator[Sandbox]:
    """One node with one GPU, so that one job is enough to keep it busy."""
    with running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=16) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def honest_cluster() -> Iterator[Sandbox]:
    """One node with the CPUs that the machine really has, and one GPU: members are bound."""
    with running_sandbox(
        nodes=1, gpus_per_node=1, cpus_per_node=len(os.sched_getaffinity(0))
    ) as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the shared sandbox."""
    with user_of(cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture
def other_user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A second user of the shared sandbox; skipped where tests cannot act as another user."""
    if os.geteuid() != 0 or not can_reach_checkout(accounts[1]):
        pytest.skip("a second user needs root and a checkout that ordinary users can read")
    with user_of(cluster, accounts[1]) as somebody:
        yield somebody


@pytest.fixture
def small(small_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the cluster with one GPU."""
    with user_of(small_cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture
def honest_user(honest_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the sandbox with real CPUs."""
    with user_of(honest_cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture(scope="session")
def mps_cluster() -> Iterator[Sandbox]:
    """One node with four simulated GPUs, on which MPS works."""
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    with running_sandbox(nodes=1, gpus_per_node=4, cpus_per_node=96, simgpu=True) as sandbox:
        yield sandbox


@pytest.fixture
def mps_user(mps_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the sandbox with simulated GPUs."""
    with user_of(mps_cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture
def other_mps_user(mps_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A second user of it; skipped where tests cannot act as another user."""
    if os.geteuid() != 0 or not can_reach_checkout(accounts[1]):
        pytest.skip("a second user needs root and a checkout that ordinary users can read")
    with user_of(mps_cluster, accounts[1]) as somebody:
        yield somebody
