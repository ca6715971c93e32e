"""Nothing forgotten: what interrupted submissions and ended Slurm jobs have left.

Every csub call looks at the packs that may still change. A pack without a job id whose csub and
sbatch are gone is looked up in Slurm by its comment, and dropped if Slurm does not know it. A pack
whose Slurm job is over is marked with Slurm's last word; members of it that never started are
submitted again where that is allowed, and named where it is not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import SlurmError, StateError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.quantities import format_count
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import (
    SlurmAccess,
    SlurmJob,
    compute_hidden_state,
    find_job_of,
    find_marked,
)
from slurm_colloc.store.all_packs import State, StateReader, explain_unreadable, find_submission
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.pack_directory import (
    PackRecord,
    is_local_alive,
    is_unanswered,
    read_ended,
    read_slurm_job_id,
    write_record,
)
from slurm_colloc.store.written_ends import is_of_another_host, write_down_ends
from slurm_colloc.submission.upkeep.ended_packs import (
    OVER,
    Ending,
    SisterLook,
    close_books,
    list_held,
    list_never_started,
    list_successors,
)

UNANSWERED_S = 600.0
"""How long a submission that Slurm did not answer is kept for a job that may turn up."""


@dataclass(frozen=True)
class OpenPack:
    """An open pack as it was at one moment.

    Attributes:
        pack_id: Its id.
        record: Its pack.json; None if it is not in its place.
        job_id: Its Slurm job; None if that was not written down yet.
        in_work: The csub that submits it, or its sbatch, was alive.
    """

    pack_id: str
    record: PackRecord | None
    job_id: str | None
    in_work: bool


def look_at_open_packs(state: StateReader, damaged: list[StateError]) -> list[OpenPack]:
    """Look at the open packs; to be called before Slurm is asked.

    A pack that is submitted while Slurm is asked is not in its answer, and must not be judged by
    it. For the same reason the lock is looked at first and what it protects afterwards.

    Args:
        state: The state directory.
        damaged: Takes what is wrong with packs that cannot be read; they are left as they are.
    """
    found = []
    for pack_id in state.list_open():
        try:
            # Somebody else's submission is not judged, and its lock left alone.
            in_work = not isinstance(state, State) or (
                state.is_being_submitted(find_submission(pack_id))
            )
            record = state.read_pack(pack_id)
            if record is not None and state.is_elsewhere(record) and not _may_claim(state, record):
                continue
            job_id = None if record is None else read_slurm_job_id(state.pack_path(pack_id))
        except (OSError, StateError) as error:
            damaged.append(explain_unreadable(state.pack_path(pack_id), error))
            continue
        found.append(OpenPack(pack_id, record, job_id, in_work))
    return found


def sweep(
    state: State,
    slurm: SlurmAccess,
    packs: Sequence[OpenPack],
    jobs: Mapping[str, SlurmJob] | None,
    settings: Settings,
) -> list[str]:
    """Bring the state up to date with Slurm.

    Args:
        state: The state directory.
        slurm: For questions about jobs that squeue does not show any more.
        packs: The open packs as they were before Slurm was asked.
        jobs: What squeue shows; None where Slurm did not answer, and then only what runs
            without Slurm is looked at.
        settings: The settings, for what is submitted again.

    Returns:
        What was found, a sentence each.
    """
    notes: list[str] = []
    absent: dict[str, PackRecord] = {}
    over: dict[str, tuple[PackRecord, SlurmJobState]] = {}
    for pack in packs:
        with _apart(state, pack.pack_id, notes):
            record = pack.record
            if record is None or record.local:
                if not pack.in_work:
                    notes += _sweep_without_slurm(state, pack.pack_id, record)
                continue
            if jobs is None or (state.is_elsewhere(record) and not _claim(state, record, jobs)):
                continue
            job_id = pack.job_id or _adopt(state, record, jobs)
            if job_id is None:
                notes += _drop_interrupted(state, pack, record)
                continue
            last = _read_last_word(state.pack_path(pack.pack_id), find_job(record, job_id, jobs))
            chained = record.chain and last is not None
            goes_on = chained and _goes_on(state, slurm, record, job_id, jobs=jobs, notes=notes)
            last = None if goes_on else last
            if last is SlurmJobState.ABSENT:
                absent[job_id] = record
            elif last is not None:
                over[job_id] = (record, last)
    known = slurm.read_accounting(list(absent)) if absent else {}
    for job_id, record in absent.items():
        over[job_id] = (record, known.get(job_id) or compute_hidden_state(jobs or {}, job_id))
    look = SisterLook(state)
    for job_id, (record, last) in over.items():
        with _apart(state, record.pack_id, notes):
            notes += Ending(
                state, slurm, settings, record=record, job_id=job_id, last=last, look=look
            ).settle()
    for submission in state.list_making():
        with contextlib.suppress(StateError):
            # Where it cannot be told whether it is being made, the next call looks again.
            if not state.is_being_submitted(submission):
                state.drop_making(submission)
    return notes


def _goes_on(
    state: State,
    slurm: SlurmAccess,
    record: PackRecord,
    job_id: str,
    *,
    jobs: Mapping[str, SlurmJob],
    notes: list[str],
) -> bool:
    """Pass a chain on whose runner was killed before it could do so itself.

    Returns:
        Whether another job has taken the place of the pack's, which is over.
    """
    path, job = state.pack_path(record.pack_id), find_job(record, job_id, jobs)
    coming, problem = list_successors(path, record, job_id, jobs)
    if problem:
        notes.append(f"{problem}: {record.name} goes on in the next link that Slurm shows, if any")
    successor = next((name for name in coming if name in jobs), None)
    if successor is None:
        return False
    if job is not None and job.state is SlurmJobState.CANCELLED:
        # One that is over, or not to be cancelled now, finds nothing left when it comes up.
        with contextlib.suppress(SlurmError):
            slurm.cancel(successor)
        return False
    with hold_lock(path / "lock", 0) as locked:
        if locked and read_slurm_job_id(path) == job_id:
            state.pass_on(record, successor)
    return True


@contextlib.contextmanager
def _apart(state: State, pack_id: str, notes: list[str]) -> Iterator[None]:
    """What is wrong with one pack is told, and keeps no other from being looked at."""
    try:
        yield
    except (OSError, StateError) as error:
        problem = explain_unreadable(state.pack_path(pack_id), error)
        notes.append(f"{problem.message}; the next call of csub looks at its pack again")


def foresee(
    packs: Sequence[OpenPack], jobs: Mapping[str, SlurmJob], slurm: SlurmAccess
) -> dict[str, SlurmJob]:
    """What squeue shows, with how jobs have ended that it does not show any more.

    It is what a sweep would write into the state, for one who only reads it.

    Args:
        packs: The open packs as they were before Slurm was asked.
        jobs: What squeue shows.
        slurm: For questions about the others.
    """
    seen = dict(jobs)
    wanted = [
        (pack.job_id, pack.record)
        for pack in packs
        if pack.record is not None and not pack.record.local and pack.job_id is not None
    ]
    absent = [job_id for job_id, record in wanted if find_job(record, job_id, jobs) is None]
    known = slurm.read_accounting(absent) if absent else {}
    for job_id in absent:
        state = known.get(job_id) or compute_hidden_state(jobs, job_id)
        seen[job_id] = SlurmJob(job_id, state, "", "", "", "", "")
    return seen


def find_job(
    record: PackRecord, job_id: str | None, jobs: Mapping[str, SlurmJob]
) -> SlurmJob | None:
    """What squeue shows of a pack's job; None where it shows none, or one of another pack."""
    return find_job_of(jobs, job_id or "", record.submission)


def _read_last_word(path: Path, job: SlurmJob | None) -> SlurmJobState | None:
    """How a pack's job ended: ABSENT where that is not known, None while it is not over."""
    if job is None:
        return read_ended(path) or SlurmJobState.ABSENT
    return job.state if job.state in OVER else None


def _drop_interrupted(state: State, pack: OpenPack, record: PackRecord) -> list[str]:
    if pack.in_work or _may_turn_up(state, record):
        return []
    state.discard(pack.pack_id)
    return [f"a submission of {record.name} was interrupted before it reached Slurm"]


def _may_turn_up(state: State, record: PackRecord) -> bool:
    """Slurm's controller did not answer the submission, and may still be at it."""
    return is_unanswered(state.pack_path(record.pack_id)) and (
        time.time() - record.created_at < UNANSWERED_S
    )


def _sweep_without_slurm(state: State, pack_id: str, record: PackRecord | None) -> list[str]:
    if record is None:
        state.forget_open(pack_id)
    elif is_of_another_host(state.pack_path(pack_id)):
        # Whether its runner lives is seen there alone: not every file system shares its locks.
        return []
    elif not is_local_alive(state.pack_path(pack_id)):
        if list_held(state.pack_path(pack_id)):
            # They wait to be released.
            return []
        write_down_ends(state.pack_path(pack_id))
        never = list_never_started(state.pack_path(pack_id))
        close_books(state, record, SlurmJobState.FAILED)
        if never:
            names = format_count(len(never), "member")
            return [f"{names} of a pack without Slurm never started: its runner was killed"]
    return []


def _may_claim(state: StateReader, record: PackRecord) -> bool:
    """A pack whose cluster was not known may turn out to be of this one."""
    return not record.cluster and bool(state.cluster) and isinstance(state, State)


def _claim(state: State, record: PackRecord, jobs: Mapping[str, SlurmJob]) -> bool:
    """Write down that a pack is of this cluster: its mark in what squeue shows is the proof."""
    element_id = _find_by_mark(record, jobs)
    if element_id is None:
        return False
    path = state.pack_path(record.pack_id)
    with hold_lock(path / "lock", 0) as locked:
        newest = state.read_pack(record.pack_id) if locked else None
        if newest is not None:
            here = replace(newest, cluster=state.cluster)
            write_record(path, here)
            state.record_pack_job(here, element_id.partition("_")[0])
    return newest is not None


def _adopt(state: State, record: PackRecord, jobs: Mapping[str, SlurmJob]) -> str | None:
    """Find the job of an interrupted submission by its comment."""
    element_id = _find_by_mark(record, jobs)
    if element_id is not None:
        state.record_pack_job(record, element_id.partition("_")[0])
    return element_id


def _find_by_mark(record: PackRecord, jobs: Mapping[str, SlurmJob]) -> str | None:
    return next(iter(find_marked(jobs, record.submission, record.array_index)), None)
