"""Programs that use the Executor, on a fake Slurm."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from ..bed import CsubUser
from ..commands.conftest import slurm, user
from ..fake_slurm.cluster import FakeSlurm

__all__ = ["slurm", "user"]

_HEAD = """\
import json
from pathlib import Path
from slurm_colloc import Executor, Job, MemberFailed, submit

def answer(value):
    Path("answer.json").write_text(json.dumps(value))

"""


@pytest.fixture
def run_python(user: CsubUser) -> Callable[[str], Any]:
    """Run a program as the user does; what it hands to `answer`."""

    def run(text: str, *, head: str = _HEAD) -> Any:
        (user.home / "program.py").write_text(head + textwrap.dedent(text))
        user.run([sys.executable, "program.py"], environment={"PYTHONDONTWRITEBYTECODE": "1"})
        return json.loads((user.home / "answer.json").read_text())

    return run


def list_slurm_jobs(slurm: FakeSlurm) -> list[Any]:
    """The jobs that Slurm was given, one an element."""
    return list(slurm.look().values())
