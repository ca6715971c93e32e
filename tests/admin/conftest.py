"""A nodes' tree that is built once, places to install it, and private clusters to try it on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.administration.slurm_conf import Places
from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import find_installation

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@pytest.fixture(scope="session")
def node_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of `make node-tree`; on this machine it runs with the system's libraries, too."""
    tree = tmp_path_factory.mktemp("tree") / "node"
    options = [] if shutil.which("patchelf") else ["--system-libraries"]
    builder = ROOT / "packaging" / "node_tree.py"
    done = subprocess.run(
        [sys.executable, "-B", builder, tree, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tree


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory of root's with a short path, that stands for `/`."""
    if os.geteuid() != 0:
        pytest.skip("only root can install hooks")
    directory = Path(tempfile.mkdtemp(prefix="adm", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def places(base: Path) -> Places:
    """The places below it, with an interpreter that is only there."""
    found = Places(base=str(base))
    python = Path(found.prefix_path, "bin", "python")
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return found


@pytest.fixture
def sandbox(base: Path) -> Iterator[Sandbox]:
    """A private cluster that is not up yet."""
    try:
        find_installation(os.environ)
    except SlurmUnreachable as problem:
        pytest.skip(str(problem))
    found = Sandbox(base / "c")
    yield found
    found.down(purge=True)
