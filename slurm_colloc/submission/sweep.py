"""Nothing forgotten: what interrupted submissions and ended Slurm jobs have left.

Every csub call looks at the packs that may still change. A pack without a job id whose csub and
sbatch are gone is looked up in Slurm by its comment, and dropped if Slurm does not know it. A pack
whose Slurm job is over is marked with Slurm's last word.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.slurm.formats import SlurmJob
from slurm_colloc.store.packs import (
    State,
    is_local_alive,
    read_ended,
    read_slurm_job_id,
    write_ended,
)
from slurm_colloc.store.records import PackRecord
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


def sweep(state: State, slurm: SlurmCommands, jobs: Mapping[str, SlurmJob] | None) -> list[str]:
    """Bring the state up to date with Slurm.

    Args:
        state: The state directory.
        slurm: For questions about jobs that squeue does not show any more.
        jobs: What squeue shows; None where Slurm did not answer, and then only what runs
            without Slurm is looked at.

    Returns:
        What was found, a sentence each.
    """
    notes = []
    absent: dict[str, str] = {}
    for pack_id in state.list_open():
        record = state.read_pack(pack_id)
        path = state.pack_path(pack_id)
        if record is None:
            if not state.is_being_submitted(pack_id.rpartition(".")[0]):
                state.forget_open(pack_id)
            continue
        if record.local:
            if not is_local_alive(path) and not state.is_being_submitted(record.submission):
                _mark(state, record, SlurmJobState.FAILED)
            continue
        if jobs is None:
            continue
        job_id = read_slurm_job_id(path)
        if job_id is None:
            job_id = _adopt(state, record, jobs)
            if job_id is None:
                if state.is_being_submitted(record.submission):
                    continue
                state.discard(pack_id)
                notes.append(f"a submission of {record.name} was interrupted before Slurm had it")
                continue
        job = jobs.get(job_id)
        if job is None:
            absent[job_id] = pack_id
        elif job.state in OVER:
            _mark(state, record, job.state)
    known = slurm.read_accounting(list(absent)) if absent else {}
    for job_id, pack_id in absent.items():
        record = state.read_pack(pack_id)
        if record is not None:
            _mark(state, record, known.get(job_id, SlurmJobState.ABSENT))
    for submission in state.list_making():
        if not state.is_being_submitted(submission):
            state.drop_making(submission)
    return notes


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
    state.forget_open(record.pack_id)
