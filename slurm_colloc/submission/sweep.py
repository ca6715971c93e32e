"""Nothing forgotten: what interrupted submissions and ended Slurm jobs have left.

Every csub call looks at the packs that may still change. A pack without a job id whose csub and
sbatch are gone is looked up in Slurm by its comment, and dropped if Slurm does not know it. A pack
whose Slurm job is over is marked with Slurm's last word.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.slurm.formats import SlurmJob
from slurm_colloc.store.directory import (
    is_local_alive,
    is_unanswered,
    list_members,
    read_ended,
    read_slurm_job_id,
    write_ended,
)
from slurm_colloc.store.packs import State
from slurm_colloc.store.records import PackRecord
from slurm_colloc.store.states import remove_environment
from slurm_colloc.submission.request import PACK_TOKEN

OVER = frozenset(
    {
        SlurmJobState.COMPLETED,
        SlurmJobState.FAILED,
        SlurmJobState.CANCELLED,
        SlurmJobState.TIMEOUT,
        SlurmJobState.OUT_OF_MEMORY,
        SlurmJobState.PREEMPTED,
        SlurmJobState.NODE_FAIL,
    }
)


UNANSWERED_S = 600.0
"""How long a submission that Slurm did not answer is kept for a job that may turn up."""


@dataclasses.dataclass(frozen=True)
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


def look_at_open_packs(state: State, damaged: list[StateError]) -> list[OpenPack]:
    """Look at the open packs; to be called before Slurm is asked.

    A pack that is submitted while Slurm is asked is not in its answer, and must not be judged by
    it. For the same reason the lock is looked at first and what it protects afterwards.

    Args:
        state: The state directory.
        damaged: Takes what is wrong with packs that cannot be read; they are left as they are.
    """
    found = []
    for pack_id in state.list_open():
        in_work = state.is_being_submitted(pack_id.rpartition(".")[0])
        try:
            record = state.read_pack(pack_id)
        except StateError as problem:
            damaged.append(problem)
            continue
        if record is not None and state.is_elsewhere(record):
            continue
        job_id = None if record is None else read_slurm_job_id(state.pack_path(pack_id))
        found.append(OpenPack(pack_id, record, job_id, in_work))
    return found


def sweep(
    state: State,
    slurm: SlurmCommands,
    packs: Sequence[OpenPack],
    jobs: Mapping[str, SlurmJob] | None,
) -> list[str]:
    """Bring the state up to date with Slurm.

    Args:
        state: The state directory.
        slurm: For questions about jobs that squeue does not show any more.
        packs: The open packs as they were before Slurm was asked.
        jobs: What squeue shows; None where Slurm did not answer, and then only what runs
            without Slurm is looked at.

    Returns:
        What was found, a sentence each.
    """
    notes = []
    absent: dict[str, PackRecord] = {}
    for pack in packs:
        record = pack.record
        if record is None or record.local:
            if not pack.in_work:
                _sweep_without_slurm(state, pack.pack_id, record)
            continue
        if jobs is None:
            continue
        job_id = pack.job_id or _adopt(state, record, jobs)
        if job_id is None:
            if not pack.in_work and not _may_turn_up(state, record):
                state.discard(pack.pack_id)
                notes.append(f"a submission of {record.name} was interrupted before Slurm had it")
        elif job_id not in jobs:
            absent[job_id] = record
        elif jobs[job_id].state in OVER:
            _mark(state, record, jobs[job_id].state)
    known = slurm.read_accounting(list(absent)) if absent else {}
    for job_id, record in absent.items():
        _mark(state, record, known.get(job_id, SlurmJobState.ABSENT))
    for submission in state.list_making():
        if not state.is_being_submitted(submission):
            state.drop_making(submission)
    return notes


def _may_turn_up(state: State, record: PackRecord) -> bool:
    """Slurm's controller did not answer the submission, and may still be at it."""
    return is_unanswered(state.pack_path(record.pack_id)) and (
        time.time() - record.created_at < UNANSWERED_S
    )


def _sweep_without_slurm(state: State, pack_id: str, record: PackRecord | None) -> None:
    if record is None:
        state.forget_open(pack_id)
    elif not is_local_alive(state.pack_path(pack_id)):
        _mark(state, record, SlurmJobState.FAILED)


def _adopt(state: State, record: PackRecord, jobs: Mapping[str, SlurmJob]) -> str | None:
    """Find the job of an interrupted submission by its comment."""
    token = PACK_TOKEN.format(submission=record.submission)
    for element_id, job in jobs.items():
        if token in job.comment:
            base, _, index = element_id.partition("_")
            if not record.is_array or index == str(record.index):
                state.record_pack_job(record, base)
                return element_id
    return None


def _mark(state: State, record: PackRecord, last: SlurmJobState) -> None:
    path = state.pack_path(record.pack_id)
    if read_ended(path) is None:
        write_ended(path, last)
    if last in OVER:
        # Its runner may have had no time for it.
        for number in list_members(path):
            remove_environment(path, number)
    state.forget_open(record.pack_id)
