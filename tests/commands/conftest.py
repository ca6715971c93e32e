"""csub as a user calls it, on a fake Slurm: what it decides, and what it says."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser
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
    """The user who runs the tests, with a home and a state of their own."""
    home = tmp_path / "home"
    home.mkdir()
    # Of a sandbox this uses only `env`, which the fake has too.
    sandbox = cast(Sandbox, slurm)
    return CsubUser(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid(), home, sandbox)


@pytest.fixture
def scripts(user: CsubUser) -> CsubUser:
    """A user with one good script and many bad ones."""
    user.script("ok.sh", "exit 0")
    (user.home / "folder").mkdir()
    for name, text in {
        "empty.sh": "",
        "plain.sh": "echo hello\n",
        "dos.sh": "#!/bin/bash\r\necho hello\r\n",
        "bad_time.sh": "#!/bin/bash\n\n#SBATCH --time=abc\n",
        "bad_name.sh": "#!/bin/bash\n#SBATCH --tiem=5\n",
        "bad_quote.sh": "#!/bin/bash\n#SBATCH --job-name='a\n",
        "het.sh": "#!/bin/bash\n#SBATCH hetjob\n",
    }.items():
        (user.home / name).write_text(text, newline="")
    return user
