"""Plans of a few jobs, explained."""

from __future__ import annotations

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Policy, UsageProfile
from slurm_colloc.planning.explanation import PairExplanation, PlanExplanation
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, build_call


def explain_jobs(
    jobs: list[Job],
    known: dict[int, UsageProfile],
    policy: Policy = POLICY,
    capacity: Capacity = ROOMY,
) -> PlanExplanation:
    """The plan of these jobs."""
    made = plan(jobs, known, capacity, policy, CALIBRATION)
    return build_explanation(made, jobs, known, capacity, policy, CALIBRATION)


def explain(
    *kinds: tuple[str, UsageProfile | None], policy: Policy = POLICY, capacity: Capacity = ROOMY
) -> PlanExplanation:
    """The plan of jobs by name and profile."""
    return explain_jobs(*build_call(*kinds), policy, capacity)


def find_pair(explanation: PlanExplanation, first: str, second: str) -> PairExplanation:
    """The pair of jobs of these names."""
    return next(p for p in explanation.pairs if {p.first, p.second} == {first, second})
