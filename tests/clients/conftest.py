"""An environment of their own for clients of Slurm, made once for a checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..cluster.conftest import accounts

__all__ = ["accounts"]

ROOT = Path(__file__).parents[2]


HERE = Path(__file__).parent
MAKING_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits for a gigabyte of packages."""
    for item in items:
        if "clients_python" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(MAKING_S))


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The Python that has the packages of the extra `clients`; one worker at a time makes it."""
    lock = os.open(HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make_python()
    finally:
        os.close(lock)


def make_python() -> Path:
    folder = ROOT / ".clients"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = project["optional-dependencies"]["clients"]
    key = "\n".join([sys.version, *packages, *project["dependencies"]])
    python, made = folder / "bin" / "python", folder / "made-of"
    if not made.exists() or made.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        # csub itself, too: its Executor and its launcher of hydra are used from there.
        subprocess.run([*pip, *packages, "-e", ROOT], check=True, stdin=subprocess.DEVNULL)
        made.write_text(key)
    return python


@pytest.fixture(scope="session")
def clients_cluster() -> Iterator[Sandbox]:
    # Ids that are no number in a script.
    extra = ("FirstJobId=4711",)
    with running_sandbox(gpus_per_node=2, cpus_per_node=16, extra_conf=extra) as sandbox:
        yield sandbox


@pytest.fixture
def user(clients_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(clients_cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture(scope="module")
def clients_user(clients_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """One for all tests of a module."""
    with user_of(clients_cluster, accounts[1]) as somebody:
        yield somebody


def put_csub_in_place(user: CsubUser) -> Path:
    """A directory in which Slurm's names are links to csub."""
    csub = shutil.which("csub", path=user.environment["PATH"])
    assert csub is not None
    links = user.home / "links"
    user.run(["mkdir", str(links)])
    for name in ("sbatch", "scancel", "squeue", "sacct", "scontrol", "sstat", "sattach"):
        user.run(["ln", "-s", csub, str(links / name)])
    return links
