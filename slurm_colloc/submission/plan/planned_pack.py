"""A pack of a plan, with the jobs that are its members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.model.plan import PackPlan
from slurm_colloc.submission.jobs.call_jobs import Candidate


@dataclass(frozen=True)
class PlannedPack:
    """A pack as it is submitted.

    Attributes:
        plan: Its plan.
        candidates: Its members' jobs with what travels alongside them, in the order of the plan's
            members.
    """

    plan: PackPlan
    candidates: tuple[Candidate, ...]


def add_candidates(
    packs: Iterable[PackPlan], candidates: Sequence[Candidate]
) -> tuple[PlannedPack, ...]:
    """Packs with their members' jobs.

    Args:
        packs: The packs, whose members are counted among these candidates.
        candidates: The jobs that were planned.
    """
    return tuple(
        PlannedPack(pack, tuple(candidates[member.job_index] for member in pack.members))
        for pack in packs
    )
