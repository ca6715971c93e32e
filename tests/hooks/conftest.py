"""Copies of the hooks whose program only says that it was started, and how."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "hooks"
STARTED = 10
"""What the program ends with: the one status that the prolog turns into a failure of its own."""

FAILED = 1
"""What the program ends with: nothing else in a hook does."""

_PROGRAM = """\
#!{python} -IB
import json, os, sys
fds = {{}}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink(f"/proc/self/fd/{{fd}}")
    except OSError:
        pass  # it was that of the list
umask = os.umask(0)
seen = dict(argv=sys.argv, env=dict(os.environ), cwd=os.getcwd(), umask=umask, fds=fds)
with open({record!r}, "w") as file:
    json.dump(seen, file)
sys.exit({status})
"""


def list_shells() -> list[tuple[str, ...]]:
    """The shells of this machine that a site may have as /bin/sh."""
    wanted = (("dash",), ("bash", "--posix"), ("busybox", "sh"), ("zsh", "--emulate", "sh"))
    return [("sh",), *(words for words in wanted if shutil.which(words[0]))]


@dataclass(frozen=True)
class Installed:
    """The two hooks with the constants of a test.

    Attributes:
        root: Everything of them is below it.
    """

    root: Path

    @property
    def jobs(self) -> Path:
        """Where checkpoints lie."""
        return self.root / "run" / "jobs"

    @property
    def record(self) -> Path:
        """What the program saw; absent while it was not started."""
        return self.root / "seen.json"

    def hook(self, name: str) -> Path:
        """`prolog` or `epilog`."""
        return self.root / f"{name}.sh"

    def run(
        self,
        name: str,
        environment: Mapping[bytes, bytes],
        shell: tuple[str, ...] = (),
        **arguments: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a hook with this environment and nothing else."""
        words = [shutil.which(shell[0]) or shell[0], *shell[1:]] if shell else []
        return subprocess.run(
            [*words, str(self.hook(name))],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
            **arguments,
        )

    def seen(self) -> dict[str, Any]:
        """What the program was started with."""
        value = json.loads(self.record.read_text())
        assert isinstance(value, dict)
        return value


def install(root: Path, constants: Mapping[str, str] | None = None) -> Installed:
    """Copy the hooks with other constants, as an administrator's installation does."""
    installed = Installed(root)
    program = root / "opt" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(
        _PROGRAM.format(python=sys.executable, record=str(installed.record), status=STARTED)
    )
    program.chmod(0o755)
    installed.jobs.mkdir(parents=True)
    values = {
        "prefix": str(root / "opt"),
        "run": str(root / "run"),
        "policy": str(root / "node.toml"),
        **(constants or {}),
    }
    for name in ("prolog", "epilog"):
        lines = (HOOKS / f"{name}.sh").read_text().splitlines()
        for key, value in values.items():
            places = [n for n, line in enumerate(lines) if line.startswith(f"{key}=")]
            assert len(places) == 1, f"{name}.sh: one line {key}= is needed"
            lines[places[0]] = f"{key}={value}"
        installed.hook(name).write_text("\n".join(lines) + "\n")
        installed.hook(name).chmod(0o755)
    return installed


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Hooks whose program is not meant to be started."""
    return install(tmp_path_factory.mktemp("hooks"))


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """Hooks of one test."""
    return install(tmp_path)
