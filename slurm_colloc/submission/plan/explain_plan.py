"""Why the plan of a call looks as it does: each of its parts by what that was planned with.

A submission does not load it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Capacity, Plan
from slurm_colloc.planning.explanation import (
    PackExplanation,
    PairExplanation,
    PlanExplanation,
)
from slurm_colloc.planning.job_needs import Question, label_jobs
from slurm_colloc.planning.pack_request import build_lone_pack
from slurm_colloc.planning.pair_reasons import (
    PAIRS_MOST,
    count_pairs_apart,
    explain_pairs,
    merge_alike,
)
from slurm_colloc.planning.plan_packs import compute_reason_to_run_alone
from slurm_colloc.planning.plan_reasons import build_explanation
from slurm_colloc.submission.plan.plan_call import CallPlan, PlannedPart


def explain_call_plan(call_plan: CallPlan) -> PlanExplanation:
    """Explain a plan; packs in its order, and of pairs in different packs the first ones."""
    labels = label_jobs((job.name, job.number) for job in call_plan.jobs)
    own = [_explain_part(planned, labels) for planned in call_plan.parts]
    by_first = {
        pack.members[0].job_index: pack for explanation in own for pack in explanation.packs
    }
    # The parts' Slurm jobs are numbered through the whole call, as its plan has them.
    packs = [
        replace(by_first[pack.members[0].job_index], slurm_job=pack.slurm_job)
        for pack in call_plan.plan.packs
    ]
    pairs = [pair for explanation in own for pair in explanation.pairs]
    for first, second in itertools.combinations(call_plan.parts, 2):
        found = _explain_across(first, second, call_plan, labels, most=PAIRS_MOST - len(pairs))
        pairs = list(merge_alike((*pairs, *found), labels))
    told = sorted(pairs[:PAIRS_MOST], key=lambda pair: (pair.first_index, pair.second_index))
    return PlanExplanation(
        tuple(packs),
        tuple(told),
        count_pairs_apart(call_plan.plan) - sum(pair.pairs for pair in told),
        call_plan.plan.reasons,
        call_plan.plan.packs_at_once,
    )


def _explain_across(
    first: PlannedPart,
    second: PlannedPart,
    call_plan: CallPlan,
    labels: Sequence[str],
    *,
    most: int,
) -> list[PairExplanation]:
    """What keeps jobs of two parts apart, a pair of kinds at a time.

    That is what Slurm is asked, or that one of them does not share, so no limit counts.
    """
    kinds = [_find_kinds(planned, call_plan) for planned in (first, second)]
    found = []
    for mine, theirs in itertools.islice(itertools.product(*kinds), max(0, most)):
        (i, one), (j, other) = sorted(
            [(mine[0], _find_job(first, mine[0])), (theirs[0], _find_job(second, theirs[0]))],
            key=lambda indexed: indexed[0],
        )
        jobs = (one, other)
        lone = tuple(build_lone_pack(place, job, "") for place, job in enumerate(jobs))
        question = Question(jobs, {}, Capacity(), call_plan.policy)
        ((pair,), _) = explain_pairs(Plan(lone, None, ()), question, (labels[i], labels[j]))
        count = len(mine) * len(theirs)
        found.append(replace(pair, first_index=i, second_index=j, pairs=count))
    return found


def _find_job(planned: PlannedPart, index: int) -> Job:
    return planned.part.jobs[planned.part.indices.index(index)]


def _find_kinds(planned: PlannedPart, call_plan: CallPlan) -> list[list[int]]:
    """The jobs of a part, by their indices in the call: those of one name together."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for index, job in zip(planned.part.indices, planned.part.jobs, strict=True):
        why = compute_reason_to_run_alone(job, call_plan.policy)
        kinds.setdefault((job.name, why), []).append(index)
    return list(kinds.values())


def _explain_part(planned: PlannedPart, labels: Sequence[str]) -> PlanExplanation:
    """A part's explanation, with its jobs counted among all of the call."""
    part = planned.part
    found = build_explanation(
        planned.plan,
        part.jobs,
        part.knowledge.profiles,
        part.capacity,
        planned.policy,
        part.knowledge.calibration,
        [labels[index] for index in part.indices],
        curves=part.knowledge.curves,
    )
    if part.indices == tuple(range(len(part.indices))):
        return found
    return replace(
        found,
        packs=tuple(_renumber_pack(pack, part.indices) for pack in found.packs),
        pairs=tuple(_renumber_pair(pair, part.indices) for pair in found.pairs),
    )


def _renumber_pack(pack: PackExplanation, indices: Sequence[int]) -> PackExplanation:
    members = (replace(member, job_index=indices[member.job_index]) for member in pack.members)
    return replace(pack, members=tuple(members))


def _renumber_pair(pair: PairExplanation, indices: Sequence[int]) -> PairExplanation:
    return replace(
        pair,
        first_index=indices[pair.first_index],
        second_index=indices[pair.second_index],
        pack_indices=tuple(indices[index] for index in pair.pack_indices),
    )
