"""A member as its wrapper runs it: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from slurm_colloc.runtime import programs

from ..wait_until import wait_until

WRAPPER = Path(programs.__file__).parent / "wrapper.py"


class RunningMember:
    """A member's wrapper and what it runs.

    Attributes:
        wrapper_pid: Its wrapper.
        folder: Where its script runs.
    """

    def __init__(self, pack: Path, number: int, argv: list[str]) -> None:
        self.folder = pack / "members" / f"{number:04d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        prefix = self.folder / "run.1.1"
        environment = {
            **os.environ,
            "SLURM_COLLOC_PACK": str(pack),
            "SLURM_COLLOC_START": str(prefix),
        }
        launch = {
            "schema": 1,
            "argv": argv, "environment": list(environment.items()), "cpus": [], "umask": 0o22,
            "directory": str(self.folder), "output": str(self.folder / "out"), "error": None,
            "input": None, "truncate": False, "prefix": str(prefix), "runner_pid": os.getpid(),
            "together": 0, "shares_cgroup": False,
            "kill_wait_s": 5.0, "passes_on": False, "own_tmpdir": "", "is_step": False,
        }  # fmt: skip
        path = Path(f"{prefix}.launch")
        path.write_text(json.dumps(launch))
        self.process = subprocess.Popen(
            [sys.executable, "-IB", WRAPPER, str(path)], start_new_session=True
        )
        self.wrapper_pid = self.process.pid
        wait_until(Path(f"{prefix}.started").exists, "its wrapper is up")

    @property
    def output(self) -> str:
        """What its script has written."""
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""
