"""csub as a user calls it, on a fake Slurm: what it decides, and what it says."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from slurm_colloc.sandbox.cluster import Sandbox

from ..cluster.conftest import CsubUser
from ..fake_slurm.cluster import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    """A fake Slurm of the test's own, with nothing in it."""
    directory = tmp_path / "slurm"
    directory.mkdir()
    fake = FakeSlurm(directory)
    yield fake
    fake.close()


@pytest.fixture
def user(tmp_path: Path, slurm: FakeSlurm) -> CsubUser:
    """Whoever runs the tests, with a home and a state of their own."""
    home = tmp_path / "home"
    home.mkdir()
    # Of a sandbox this uses only `env`, which the fake has too.
    sandbox = cast(Sandbox, slurm)
    return CsubUser(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid(), home, sandbox)
