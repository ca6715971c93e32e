"""The end of a pack: Slurm's last word on it, and what becomes of members that never started.

Also: what the packs of a submission hold for each other, looked at once for a whole sweep.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError, SlurmError, SlurmUnreachable, StateError
from slurm_colloc.model.job_ids import format_task_ids
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import RESUBMISSIONS, MemberState, SlurmJobState, is_guest
from slurm_colloc.model.quantities import format_count
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmJob, find_marked
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State, StateReader, list_member_files
from slurm_colloc.store.atomic_files import hold_lock, is_there, write_atomic
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    CANCELLING,
    begin_attempt,
    cancel_left,
    group_by_home,
    name_member,
    put_environment_aside,
    read_attempt,
    read_home,
    read_state,
    remove_environment,
)
from slurm_colloc.store.pack_directory import (
    PackRecord,
    drop_unfinished,
    list_members,
    read_chain,
    read_ended,
    read_moved,
    read_slurm_job_id,
    read_spec,
    write_ended,
)
from slurm_colloc.store.runner_requests import Action, is_cancel_asked, list_requests
from slurm_colloc.store.written_ends import write_down_ends

# ---- What the packs of a submission hold for each other, looked at once for a whole sweep --------
#
# Of an array in a thousand packs each would otherwise look at the thousand others.


@dataclass(frozen=True)
class Sisters:
    """The packs of one submission.

    Attributes:
        sources: By the id of a pack: those out of which members are on their way to it.
        cancelled: The numbers of members that a runner of theirs was asked to cancel.
    """

    sources: Mapping[str, tuple[Path, ...]]
    cancelled: frozenset[int]


class SisterLook:
    """Looks at the packs of each submission once.

    It is for packs whose Slurm job is over: their runners take nothing over any more, so that what
    is on its way to one of them was so at the look.

    Args:
        state: The state directory.
    """

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._found: dict[str, Sisters] = {}

    def find(self, record: PackRecord) -> Sisters:
        """The packs of a pack's submission, itself among them."""
        key = record.shown_id or record.submission
        found = self._found.get(key)
        if found is None:
            paths = map(self._state.pack_path, self._state.list_sisters(record))
            found = self._found[key] = _look_at([path for path in paths if is_there(path)])
        return found


def _look_at(paths: list[Path]) -> Sisters:
    sources: dict[str, list[Path]] = {}
    cancelled: set[int] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            for taker in {taking.taker for taking in inbox.list_leaving(str(path)).values()}:
                sources.setdefault(taker, []).append(path)
        cancelled |= {
            request.number for request in list_requests(path) if request.action is Action.CANCEL
        }
    return Sisters({taker: tuple(own) for taker, own in sources.items()}, frozenset(cancelled))


# ----
# The end of a pack: Slurm's last word on it, and what becomes of members that never started.

_NOT_OVER = (SlurmJobState.PENDING, SlurmJobState.ABSENT)
OVER = frozenset(s for s in SlurmJobState if not s.may_have_runner and s not in _NOT_OVER)
"""How a Slurm job may have ended."""


def list_successors(
    path: Path, record: PackRecord, job_id: str, jobs: Mapping[str, SlurmJob]
) -> tuple[list[str], str]:
    """The Slurm jobs that are to follow that of a chain, by chain.json and by their comment.

    Args:
        path: The pack's directory.
        record: Its pack.json.
        job_id: Its Slurm job.
        jobs: What squeue shows.

    Returns:
        They; and why its chain.json cannot be read, in words, empty where it can.
    """
    from slurm_colloc.model.chain import ChainRecord, list_unrecorded

    chain, problem = ChainRecord(), ""
    try:
        chain = read_chain(path)
    except StateError as error:
        problem = error.message
    link = chain.find_successor(job_id)
    found = [link.job_id] if link is not None else []
    found += list_unrecorded(chain, find_marked(jobs, record.submission, record.array_index))
    return [name for name in found if name != job_id], problem


class Ending:
    """A pack whose Slurm job is over.

    Args:
        state: The state directory.
        slurm: Slurm.
        settings: The settings.
        record: The pack.
        job_id: Its Slurm job.
        last: Slurm's last word on it.
        look: What has looked at the packs of its submission; None for a look of its own.
    """

    def __init__(
        self,
        state: State,
        slurm: SlurmAccess,
        settings: Settings,
        *,
        record: PackRecord,
        job_id: str,
        last: SlurmJobState,
        look: SisterLook | None = None,
    ) -> None:
        self._state = state
        self._look = look or SisterLook(state)
        self._slurm = slurm
        self._settings = settings
        self._record = record
        self._job_id = job_id
        self._last = last
        self._path = state.pack_path(record.pack_id)

    def settle(self) -> list[str]:
        """Write down how it ended, and submit again what never started; what to tell."""
        with hold_lock(self._path / "lock", 0) as locked:
            # Somebody else is at it, or at joining it: the next call looks again.
            if not locked or not os.path.lexists(self._state.open / self._record.pack_id):
                return []
            told = read_ended(self._path)
            if told is None:
                write_ended(self._path, self._last, self._find_end_time())
            elif self._last in (SlurmJobState.COMPLETED, SlurmJobState.FAILED):
                # Its runner had no time for all of them, and said so.
                self._last = told
            drop_unfinished(self._path)
            write_down_ends(self._path)
            # Looked at first: a pack that turns out to have a job id never loses it again.
            is_moving = self._is_moving()
            is_leaving = not self._finish_take_overs()
            never = list_never_started(self._path)
            held = list_held(self._path)
            never = [number for number in never if number not in held]
            if self._last is SlurmJobState.CANCELLED:
                held = []
            never = self._cancel_asked(never)
            notes: list[str] = []
            is_done = True
            own_id = self._job_id.partition("_")[0]
            for job_id, numbers in group_by_home(self._path, never):
                said, is_settled = self._submit_again(numbers, job_id or own_id)
                notes += said
                is_done = is_done and is_settled
            # Who is held outlives the pack, with what is needed to submit it once released.
            if is_done and not held and not is_moving and not is_leaving:
                close_books(self._state, self._record, self._last)
            return notes

    def _finish_take_overs(self) -> bool:
        """Move on what packs have taken over from each other, up to this one.

        Returns:
            Whether no member of this pack is on its way to another one any more.
        """
        own, path = self._record.pack_id, str(self._path)
        sources = map(self._state.pack_path, self._state.list_sources(own))
        for other in (*self._look.find(self._record).sources.get(own, ()), *sources):
            with contextlib.suppress(OSError):
                for number, taking in inbox.list_leaving(str(other)).items():
                    if taking.taker == own:
                        inbox.move(str(other), path, number, taking.number)
        for number, (taker, there) in inbox.list_leaving(path).items():
            target = self._state.pack_path(taker)
            if inbox.give_back(path, number, str(target)):
                continue
            with hold_lock(target / "lock", 0) as locked:
                if locked and inbox.move(path, str(target), number, there):
                    # Its books may be closed; the next look sees what has come.
                    write_atomic(self._state.open / taker, b"")
        return not inbox.list_leaving(path)

    def _cancel_asked(self, never: Sequence[int]) -> list[int]:
        """Those of which no cancel was asked; for the others no runner came to do it."""
        found = []
        for number in never:
            if self._is_cancel_asked(number):
                cancel_left(self._path, number)
            else:
                found.append(number)
        return found

    def _is_cancel_asked(self, number: int) -> bool:
        """By this pack, or by one in which the member may have been before."""
        if is_cancel_asked([(self._path, number)]):
            return True
        home = read_home(self._path, number)
        if home is None:
            return number in self._look.find(self._record).cancelled
        path = self._state.pack_path(home.pack_id)
        return is_there(path) and is_cancel_asked([(path, home.number)])

    def _find_end_time(self) -> float | None:
        """When its Slurm job ended; asked only where it tells more than the runner wrote."""
        # A damaged file is told of by those that need it.
        with contextlib.suppress(StateError):
            attempt = read_attempt(self._path)
            records = (read_state(self._path, n, attempt) for n in list_members(self._path))
            if all(record is not None and record.ended_at is not None for record in records):
                return None
        if self._last is SlurmJobState.CANCELLED and read_attempt(self._path) == 0:
            # csub has cancelled it before it began, and knows when.
            with contextlib.suppress(OSError):
                return os.stat(self._path / CANCELLING).st_mtime
        ended_at = self._slurm.read_end_time(self._job_id)
        # The clock of another host may be ahead.
        return None if ended_at is None else min(ended_at, time.time())

    def _is_moving(self) -> bool:
        """A member is being submitted again, and it is not known whether Slurm has it."""
        moved = {read_moved(self._path, number) for number in list_members(self._path)}
        return any(
            pack_id is not None and read_slurm_job_id(self._state.pack_path(pack_id)) is None
            for pack_id in moved
        )

    def _submit_again(self, never: Sequence[int], base: str) -> tuple[list[str], bool]:
        """What to tell, and whether it is settled; what Slurm did not answer is tried again.

        Args:
            never: Members of one submission that never started.
            base: Its id.
        """
        known = [name_member(self._path, base, number).number for number in never]
        names = f"{base}/{format_task_ids(tuple(sorted(known)))}"
        count = format_count(len(never), "member")
        ended = f"{count} never started ({names}; the pack: {self._last.value})"
        obstacle = self._find_obstacle(never)
        if obstacle is None:
            return [], True
        if obstacle:
            return [f"{ended}; not submitted again: {obstacle}"], True
        # A runner that is taken for dead and still lives starts none of them any more.
        begin_attempt(self._path, 0)
        try:
            # Half of what csub queue would load, and seldom needed.
            from slurm_colloc.submission.upkeep.resubmit_members import resubmit

            job_id = resubmit(self._state, self._slurm, self._settings, self._record.pack_id, never)
        except (SlurmUnreachable, StateError) as error:
            return [f"{ended}; the next call of csub will try to submit them again: {error}"], False
        except CollocError as error:
            return [f"{ended}; not submitted again: {error}"], True
        return [f"{ended}; submitted again as job {job_id}"], True

    def _find_obstacle(self, never: Sequence[int]) -> str | None:
        """Why they are not submitted again; '' if they are, None if that is not expected."""
        if self._last is SlurmJobState.CANCELLED:
            # Who cancelled this Slurm job did not mean members of another submission.
            return self._find_reason_in_options(never) if all(map(is_guest, never)) else None
        if self._last is SlurmJobState.COMPLETED:
            # What came by itself after its runner had ended was never refused.
            if all(inbox.find_taker(str(self._path), number) for number in never):
                return self._find_reason_in_options(never)
            return "their pack completed without them"
        return self._find_reason_in_its_end() or self._find_reason_in_options(never)

    def _find_reason_in_its_end(self) -> str:
        began = read_attempt(self._path) > 0
        if not began and self._last in (SlurmJobState.FAILED, SlurmJobState.OUT_OF_MEMORY):
            return "its batch script failed at once, csub logs or its output file says why"
        if not began and self._last is SlurmJobState.TIMEOUT:
            return "its deadline has passed"
        if self._last is SlurmJobState.ABSENT:
            return "Slurm has forgotten the job, which may have been cancelled"
        if self._record.resubmissions >= RESUBMISSIONS:
            return f"that was done {RESUBMISSIONS} times already"
        return ""

    def _find_reason_in_options(self, never: Sequence[int]) -> str:
        wishes = {read_spec(self._path, number).job.requeue for number in never}
        if False in wishes:
            return "--no-requeue was given"
        if None in wishes and not self._site_requeues():
            return "the site does not requeue jobs (JobRequeue=0), and --requeue was not given"
        return ""

    def _site_requeues(self) -> bool:
        with contextlib.suppress(SlurmError):
            return self._slurm.read_config().get("JobRequeue") == "1"
        return False


def list_never_started(path: Path) -> list[int]:
    """Members of a pack that no runner has started, and that has not been cancelled or moved.

    Raises:
        StateError: It cannot be told of one.
    """
    attempt = read_attempt(path)
    found = []
    for files in list_member_files(path):
        record = read_state(path, files.number, attempt, files.names)
        if record is not None and (record.starts or record.is_final):
            continue
        # Its wrapper says so before its script begins; its runner may have been killed just then.
        if any(fnmatch.fnmatchcase(name, "run.*.started") for name in files.names):
            continue
        if files.is_cancelled or files.taker not in ("", path.name):
            continue
        if not files.is_moved or read_moved(path, files.number) is None:
            found.append(files.number)
    return found


def list_held(path: Path) -> list[int]:
    """Members that wait until they are released, also those that had run and were requeued.

    Raises:
        StateError: It cannot be told of one.
    """
    attempt = read_attempt(path)
    found = []
    for files in list_member_files(path):
        number = files.number
        is_here = not files.is_cancelled and files.taker in ("", path.name)
        if is_here and files.is_held and read_moved(path, number) is None:
            record = read_state(path, number, attempt, files.names)
            if record is None or record.state is MemberState.PENDING:
                found.append(number)
    return found


def close_books(state: State, record: PackRecord, last: SlurmJobState) -> None:
    """Write Slurm's last word on a pack, after which it is not looked at any more."""
    path = state.pack_path(record.pack_id)
    if read_ended(path) is None:
        write_ended(path, last)
    if last in OVER:
        # Its runner may have had no time for it.
        for number in list_members(path):
            is_cancelled = is_there(path / "members" / format_number(number) / "cancelled")
            is_unwanted = is_cancelled or last is SlurmJobState.CANCELLED
            put_away = remove_environment if is_unwanted else put_environment_aside
            put_away(path, number)
    state.forget_open(record.pack_id)
