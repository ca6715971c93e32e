"""The Slurm jobs of other packs: whether they wait for their turn alone, and ending empty ones.

Slurm is asked in a thread: a controller that does not answer holds up nothing.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.sister_packs import SisterPack
from slurm_colloc.slurm.output_formats import SlurmJob, find_job_of
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.pack.emptied_pack import empty_pack, has_left_to_run
from slurm_colloc.store.pack_reading import list_gpu_set_packs

FRESH_S = 5.0
"""How long an answer of Slurm counts."""

RETRY_S = 30.0

_HELD_BACK = ("JobHeld", "Dependency", "BeginTime", "JobHoldMaxRequeue", "DeadLine")
"""Beginnings of Slurm's reasons of jobs that must not start, and whose members must not either."""

_NEEDS_ITS_END = re.compile(r"(?:afterok|aftercorr|afternotok):([^?,]+)")
_WAITS = re.compile(r"[a-z]+:([^?,]+)")


class EmptiedJobs:
    """What Slurm says of the other packs of a submission, and what it is told of them.

    Args:
        slurm: Slurm; None where the pack runs without it.
        journal: The pack's log.
    """

    def __init__(self, slurm: SlurmAccess | None, journal: Journal) -> None:
        self._slurm = slurm
        self._journal = journal
        self._thread: threading.Thread | None = None
        self._jobs: Mapping[str, SlurmJob] = {}
        self._dependencies: list[str] | None = None
        self._asks_dependencies = self._has_asked_dependencies = False
        self._asked_at = float("-inf")
        self._to_cancel: dict[str, float] = {}

    @property
    def is_asking(self) -> bool:
        """Slurm is being asked."""
        return self._thread is not None and self._thread.is_alive()

    def work(self) -> None:
        """Have those cancelled whose time has come; never waits."""
        now = time.monotonic()
        # A thread may take one off the list at any moment.
        due = [job_id for job_id, moment in list(self._to_cancel.items()) if now >= moment]
        if due and self._slurm is not None:
            self._start(lambda: self._cancel(due))

    def knows(self, sister: SisterPack) -> bool:
        """Whether it is known if members may leave a pack; otherwise Slurm is asked."""
        is_plain = bool(sister.attempt) and not sister.guests_of
        if self._slurm is None or sister.job_id is None or is_plain:
            return True
        self._asks_dependencies = self._asks_dependencies or bool(sister.guests_of)
        is_known = self._has_asked_dependencies or not sister.guests_of
        if is_known and time.monotonic() - self._asked_at <= FRESH_S:
            return True
        self._start(self._ask)
        return False

    def may_take_from(self, sister: SisterPack) -> bool:
        """Whether members may leave a pack of which that is known.

        It waits for nothing but its turn, or it runs. From one of another submission none may where
        a job waits for its Slurm job, which would end without them.
        """
        if self._slurm is None or sister.job_id is None:
            return False
        if sister.attempt and not sister.guests_of:
            return True
        if sister.guests_of and (
            self._dependencies is None
            or any(waits_for(text, sister.job_id) for text in self._dependencies)
        ):
            return False
        job = find_job_of(self._jobs, sister.job_id, sister.record.submission)
        if job is None:
            return False
        if sister.attempt:
            return job.state is SlurmJobState.RUNNING
        return job.state is SlurmJobState.PENDING and not job.reason.startswith(_HELD_BACK)

    def cancel(self, sister: SisterPack) -> None:
        """Have the job of a pack cancelled that has nothing left to run."""
        if sister.job_id is not None:
            self._to_cancel[sister.job_id] = 0.0
            self.work()

    def _start(self, action: Callable[[], None]) -> None:
        if not self.is_asking:
            self._thread = threading.Thread(target=action, daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        assert self._slurm is not None
        asked_at = time.monotonic()
        try:
            if self._asks_dependencies:
                self._has_asked_dependencies = True
                self._dependencies = self._slurm.list_dependencies()
            self._jobs = self._slurm.list_jobs()
        except SlurmError as error:
            self._journal.write("not_asked", reason=str(error))
            self._jobs, self._dependencies = {}, None
        self._asked_at = asked_at

    def _cancel(self, due: list[str]) -> None:
        assert self._slurm is not None
        for job_id in due:
            self._to_cancel[job_id] = time.monotonic() + RETRY_S
            try:
                if any(needs_its_end(text, job_id) for text in self._slurm.list_dependencies()):
                    # It starts, finds that it is empty, and completes.
                    self._journal.write("not_cancelled", job=job_id, reason="a job needs its end")
                else:
                    self._slurm.cancel(job_id)
                    self._journal.write("cancelled", job=job_id)
            except SlurmError as error:
                self._journal.write("not_cancelled", job=job_id, reason=str(error))
            else:
                del self._to_cancel[job_id]


def needs_its_end(dependency: str, job_id: str) -> bool:
    """Whether a dependency, as squeue shows it, tells how a job must end, and not only that.

    `afterok:4711_*(unfulfilled)` means every element of the array, `afterok:4711_3` one.
    """
    return _names(_NEEDS_ITS_END, dependency, job_id)


def waits_for(dependency: str, job_id: str) -> bool:
    """Whether a dependency, as squeue shows it, names a job in any way."""
    return _names(_WAITS, dependency, job_id)


def _names(pattern: re.Pattern[str], dependency: str, job_id: str) -> bool:
    base = job_id.partition("_")[0]
    for targets in pattern.findall(dependency):
        for target in targets.split(":"):
            name = target.partition("(")[0].partition("+")[0]
            if name in (job_id, base, f"{base}_*"):
                return True
    return False


def empty_job(state: State, sister: SisterPack, taker: str) -> bool:
    """Close all packs of a Slurm job that has nothing left; False while one of its GPU sets has.

    Args:
        state: The state directory.
        sister: One of its packs, whose lock is held.
        taker: The pack that has taken its members.
    """
    paths = [state.pack_path(name) for name in list_gpu_set_packs(sister.record)]
    others = [path for path in paths if path != sister.path and path.is_dir()]
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(hold_lock(path / "lock", 0)) for path in others):
            return False
        if any(has_left_to_run(path) for path in (sister.path, *others)):
            return False
        return all(empty_pack(path, taker) for path in (sister.path, *others))
