"""A fake Slurm for one test: its programs on PATH, and what the test may do to it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .processes import signal_all
from .state import CLUSTER, VARIABLE, open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .state import Job

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0

_ALIVE = ("RUNNING", "COMPLETING")

_PROGRAMS = {
    "sbatch": "sbatch:main", "squeue": "squeue:main", "scontrol": "scontrol:main",
    "scancel": "scancel:main", "srun": "srun:main", "sinfo": "others:sinfo",
    "sacct": "others:sacct", "sacctmgr": "others:sacctmgr",
}  # fmt: skip
_MISSING = (
    "salloc",
    "sattach",
    "sbcast",
    "sdiag",
    "sprio",
    "sreport",
    "sshare",
    "sstat",
    "strigger",
)
_STUB = """\
#!{python} -IS
import os, sys
sys.path.insert(0, {root!r})
os.environ.setdefault({variable!r}, {conf!r})
from tests.fake_slurm.{module} import {function}
sys.exit({function}(sys.argv[1:]))
"""
_REFUSAL = """\
#!{python} -IS
import sys
sys.path.insert(0, {root!r})
from tests.fake_slurm.program import refuse
refuse({name!r}, "anything")
"""


class FakeSlurm:
    """A cluster of two nodes with two GPUs each, where jobs start at once.

    Args:
        directory: An empty directory for all that it knows.
        cluster: Its name.
        in_site_prefix: Its programs alone know where its slurm.conf lies, as if they were built so.
    """

    def __init__(
        self, directory: Path, cluster: str = CLUSTER, *, in_site_prefix: bool = False
    ) -> None:
        self.directory = directory
        self._in_site_prefix = in_site_prefix
        (directory / "spool").mkdir()
        (directory / "jobs.json").write_text('{"next_id": 1, "jobs": {}}')
        (directory / "slurm.conf").write_text(f"ClusterName={cluster}\n")
        (directory / "calls").touch()
        for name, place in _PROGRAMS.items():
            self._install("bin", name, place)
        self._install("programs", "slurmstepd", "slurmstepd:main")
        for name in _MISSING:
            # Otherwise the one of a Slurm that is installed would be found.
            self._write(
                "bin", name, _REFUSAL.format(python=sys.executable, root=str(ROOT), name=name)
            )

    def _install(self, folder: str, name: str, place: str) -> None:
        module, _, function = place.partition(":")
        text = _STUB.format(
            python=sys.executable,
            root=str(ROOT),
            module=module,
            function=function,
            variable=VARIABLE,
            conf=str(self.directory / "slurm.conf"),
        )
        self._write(folder, name, text)

    def _write(self, folder: str, name: str, text: str) -> None:
        (self.directory / folder).mkdir(exist_ok=True)
        (self.directory / folder / name).write_text(text)
        (self.directory / folder / name).chmod(0o755)

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """What makes csub and the tests use it."""
        path = (os.environ if base is None else base)["PATH"]
        named = {} if self._in_site_prefix else {VARIABLE: str(self.directory / "slurm.conf")}
        return {"PATH": f"{self.directory / 'bin'}:{path}", **named}

    def pause(self) -> None:
        """Let no job start, until `go_on`."""
        (self.directory / "paused").touch()

    def go_on(self) -> None:
        """Start what waits for nothing else."""
        (self.directory / "paused").unlink()
        self.look()

    def stop_controller(self) -> None:
        """Have every program find no controller."""
        (self.directory / "away").touch()

    def start_controller(self) -> None:
        """Take that back."""
        (self.directory / "away").unlink()

    def look(self) -> dict[str, Job]:
        """All jobs, after whatever can start has started."""
        with open_state(str(self.directory)) as state:
            return state.jobs

    def list_all_calls(self) -> list[list[str]]:
        """Every call of a program, in order: its name and its arguments."""
        lines = (self.directory / "calls").read_text().splitlines()
        return [[str(word) for word in json.loads(line)] for line in lines]

    def close(self) -> None:
        """End all jobs, and fail where the fake was asked for something that it does not have."""
        (self.directory / "paused").touch()
        deadline = time.monotonic() + PATIENCE_S
        while not self._end_jobs():
            assert time.monotonic() < deadline, self.look()
            time.sleep(0.02)
        unknown = self.directory / "unknown"
        assert not unknown.exists(), unknown.read_text()

    def _end_jobs(self) -> bool:
        """Have all running jobs end; True once they have."""
        with open_state(str(self.directory)) as state:
            running = [job for job in state.jobs.values() if job["state"] in _ALIVE]
            for job in running:
                job.update(ending="CANCELLED", state="COMPLETING")
                signal_all([job["supervisor"]], signal.SIGUSR1)
        return not running
