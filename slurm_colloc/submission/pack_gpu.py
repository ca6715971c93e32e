"""The GPU of a pack that somebody wants to join, and what is known of its members there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity
from slurm_colloc.settings import Settings
from slurm_colloc.store.records import PackRecord
from slurm_colloc.submission.collect import Candidate
from slurm_colloc.submission.destination import Destinations, match_gpu_type
from slurm_colloc.submission.knowledge import Knowledge, gather_knowledge
from slurm_colloc.submission.parts import complete_capacity


@dataclasses.dataclass(frozen=True)
class PackGpu:
    """The GPU of a pack.

    Attributes:
        gpu_type: The type that the pack asks for; None for any.
        capacity: What it brings with it.
        knowledge: What is known there of those present and, behind them, the joiner; None where
            nothing is.
    """

    gpu_type: str | None
    capacity: Capacity
    knowledge: Knowledge | None

    def ask_for(self, job: Job) -> Job:
        """A job that asks for it, as its pack does."""
        return dataclasses.replace(job, gpu_type=self.gpu_type)


def find_pack_gpu(
    record: PackRecord,
    candidates: Sequence[Candidate],
    settings: Settings,
    destinations: Destinations,
) -> PackGpu:
    """The GPU that a pack has, or asks for: without a type it may be any of its nodes'.

    Args:
        record: The pack.
        candidates: Those present and, behind them, the joiner.
        settings: The settings.
        destinations: Tells where the pack may land.

    Raises:
        SlurmUnreachable: Slurm does not answer.
    """
    gpu_type = record.gpu_type
    if gpu_type is None and record.request is not None:
        gpu_type = record.request.gpu_type
    asking = [
        dataclasses.replace(c, job=dataclasses.replace(c.job, gpu_type=gpu_type))
        for c in candidates
    ]
    destination = destinations.read(asking[-1].job)
    try:
        knowledge = gather_knowledge(asking, settings)
    except UsageProblem:
        # A member's --profile-like names what has been forgotten since.
        return PackGpu(gpu_type, destination.capacity, None)
    if not knowledge.profiles:
        return PackGpu(gpu_type, destination.capacity, None)
    match = match_gpu_type(knowledge.gpu_models, destination, dict(record.group))
    # What was submitted without a type cannot be given one any more.
    if match.is_other or match.gpu_type is not None:
        knowledge = knowledge.as_of_another_gpu(match.reason)
    return PackGpu(gpu_type, complete_capacity(destination.capacity, knowledge), knowledge)
