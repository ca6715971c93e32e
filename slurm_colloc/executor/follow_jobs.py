"""One thread of a process that gives jobs their results as their members end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import CollocError

if TYPE_CHECKING:
    from slurm_colloc.executor.future_job import Job

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
STATES_EVERY_S = (0.5, 10.0)
"""How often states are asked for at first and at last: results are files, states are Slurm's."""


class JobFollower:
    """Looks for results and ends of jobs until all have them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._jobs: set[Job[Any]] = set()
        self._thread: threading.Thread | None = None

    def follow(self, jobs: Iterable[Job[Any]]) -> None:
        """Follow jobs that were just submitted, or found again."""
        with self._lock:
            self._jobs.update(jobs)
            self._wake.set()
            if self._thread is None and self._jobs:
                self._thread = threading.Thread(target=self._run, name="csub-jobs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        states_pause, states_at = STATES_EVERY_S[0], 0.0
        while True:
            with self._lock:
                self._jobs = {job for job in self._jobs if not job.done()}
                jobs = list(self._jobs)
                if not jobs:
                    self._thread = None
                    return
            collect_results(jobs)
            if time.monotonic() >= states_at:
                look_at_states([job for job in jobs if not job.done()])
                states_at = time.monotonic() + states_pause
                states_pause = min(STATES_EVERY_S[1], states_pause * 1.3)
            if self._wake.wait(pause):
                self._wake.clear()
                pause, states_pause = FIRST_PAUSE_S, STATES_EVERY_S[0]
            else:
                pause = min(LONGEST_PAUSE_S, pause * 1.2)


def collect_results(jobs: Iterable[Job[Any]]) -> None:
    """Settle jobs whose results are there; one listing for each submission."""
    there: dict[Path, frozenset[str]] = {}
    for job in jobs:
        directory = job.calls_directory
        if directory is None:
            continue
        if directory not in there:
            try:
                there[directory] = frozenset(path.name for path in directory.iterdir())
            except OSError:
                there[directory] = frozenset()
        if job.result_name in there[directory]:
            job.settle_by_result()


def look_at_states(jobs: list[Job[Any]]) -> None:
    """Settle jobs whose members have ended without a result."""
    from slurm_colloc.executor.job_states import read_states

    if not jobs:
        return
    asked = time.monotonic()
    try:
        states = read_states(job.member for job in jobs)
    except (CollocError, OSError):
        # Slurm or the file system does not answer: that says nothing about the members.
        return
    for job in jobs:
        job.settle_by_state(states.get(job.member), asked)


follower = JobFollower()
