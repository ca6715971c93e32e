"""Runs programs as a member's Python runs them, and reads what was counted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.runtime.pack_monitor import injected_environment
from slurm_colloc.store.progress_counters import MemberProgress, read_member_progress

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it counted."""

    code: int
    stdout: str
    stderr: str
    progress: MemberProgress | None

    def steps_of(self, pid: int) -> tuple[int, int, int]:
        """Steps, skipped steps and samples of one process."""
        assert self.progress is not None
        (process,) = [p for p in self.progress.processes if p.pid == pid]
        return process.steps, process.skipped, process.samples


def build_environment(directory: Path | str, **more: str) -> dict[str, str]:
    """The environment of a member that is counted."""
    plain = {
        name: value
        for name, value in os.environ.items()
        # What measures the coverage of tests would be counted and timed too.
        if not name.startswith(("SLURM_COLLOC", "COVERAGE_", "COV_", "PYTHONPATH"))
    }
    plain |= {"OMP_NUM_THREADS": "1", **more}
    return plain | injected_environment(plain, str(directory))


def run(
    argv: Sequence[str | Path],
    directory: Path | str,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a program to its end."""
    done = subprocess.run(
        [str(word) for word in argv],
        env=dict(environment) if environment is not None else build_environment(directory),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, read_member_progress(str(directory)))


def run_python(
    code: str, directory: Path | str, *, python: str = sys.executable, **more: str
) -> Ended:
    """Run a piece of Python."""
    return run([python, "-c", code], directory, environment=build_environment(directory, **more))
