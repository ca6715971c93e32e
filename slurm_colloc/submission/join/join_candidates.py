"""Which open packs a job may ask for a place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.planning.join.same_kind import Asked, find_difference
from slurm_colloc.slurm.output_formats import SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.submission.jobs.call_jobs import Candidate
from slurm_colloc.submission.upkeep.sweep import OpenPack, find_job


def list_candidates(
    candidate: Candidate,
    state: State,
    packs: Sequence[OpenPack],
    jobs: Mapping[str, SlurmJob],
    *,
    running: bool,
) -> Iterator[tuple[str, SlurmJob]]:
    """Packs that ask Slurm for the same kind of thing: running ones first, then by their age.

    Args:
        candidate: The job.
        state: The state directory.
        packs: The open packs.
        jobs: What squeue shows of them.
        running: Running ones, too.
    """
    waiting: list[tuple[str, SlurmJob]] = []
    wanted = Asked(candidate.job.group, candidate.job.gpu_type)
    # Their ids tell seconds only.
    for pack in sorted(packs, key=lambda pack: pack.record.created_at if pack.record else 0):
        record = pack.record
        if record is None or record.closed or record.policy is None or state.is_elsewhere(record):
            continue
        job = find_job(record, pack.job_id, jobs)
        if job is None:
            continue
        if find_difference(wanted, Asked(record.group, record.gpu_type)):
            continue
        if job.state is SlurmJobState.RUNNING and running and record.request is not None:
            yield pack.pack_id, job
        elif job.state is SlurmJobState.PENDING:
            waiting.append((pack.pack_id, job))
    yield from waiting
