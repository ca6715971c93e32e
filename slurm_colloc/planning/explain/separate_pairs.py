"""Which jobs are in different packs, a pair of kinds at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.plan import Plan, Rule
from slurm_colloc.planning.explain.explanation import (
    PairExplanation,
)
from slurm_colloc.planning.explain.pair_reasons import PairReasons, add_alike
from slurm_colloc.planning.job_needs import (
    Question,
    build_subject,
    choose_time_limit_s,
    forget_loads,
    label_jobs,
)
from slurm_colloc.planning.plan_packs import BucketKey, compute_reason_to_run_alone
from slurm_colloc.planning.priced_packs import Subject

PAIRS_MOST = 120
"""Pairs that are told; the others are counted. All of 16 jobs are."""
_EXPLAINED_MOST = 500
"""Pairs of kinds that are explained: those that turn out to be alike are shown once."""
_KINDS_MOST = 400


def explain_pairs(
    plan: Plan, question: Question, labels: Sequence[str] | None = None
) -> tuple[tuple[PairExplanation, ...], int]:
    """Say what keeps jobs in different packs, once for those that are alike in packs alike.

    First it is looked whether the two may share at all, then whether the second may come on top
    of the first one's pack, or the other way round; then what they would cost. Where exactly one
    limit is named, raising that one alone makes the pair, or the pack with the job, legal.

    Args:
        plan: The plan.
        question: What it answers.
        labels: What its jobs are called in sentences; None where there are no further jobs that
            they could be confused with.

    Returns:
        The pairs, those that are alike once, and how many pairs of jobs none of them stands for.
    """
    if question.policy.rule is Rule.FIRST_FIT:
        question = forget_loads(question)
    subjects = [build_subject(question, index) for index in range(len(question.jobs))]
    if labels is None:
        labels = label_jobs((job.name, job.number) for job in question.jobs)
    reasons = PairReasons(plan, question, subjects, labels)
    kinds = _divide_by_packs(_find_kinds(question, subjects, reasons.keys), plan, reasons.places)
    found: dict[object, PairExplanation] = {}
    explained = 0
    for first, second in _list_pairs(kinds[:_KINDS_MOST]):
        apart = _find_apart(first, second, reasons.places)
        if apart is None:
            continue
        if len(found) == PAIRS_MOST or explained == _EXPLAINED_MOST:
            break
        explained += 1
        pairs = _count_apart(first, second, reasons.places)
        add_alike(found, reasons.explain(*apart, pairs), labels)
    told = sum(pair.pairs for pair in found.values())
    return tuple(found.values()), count_pairs_apart(plan) - told


def count_pairs_apart(plan: Plan) -> int:
    """How many pairs of jobs are in different packs."""
    sizes = [len(pack.members) for pack in plan.packs]
    return math.comb(sum(sizes), 2) - sum(math.comb(size, 2) for size in sizes)


def _find_kinds(
    question: Question, subjects: Sequence[Subject], keys: Mapping[int, BucketKey]
) -> list[list[int]]:
    """The jobs of the call, those together that planning takes for alike; in the user's order."""
    kinds: dict[object, list[int]] = {}
    durations: dict[object, set[int | None]] = {}
    for own in keys.values():
        durations.setdefault((own.group, own.gpu_type, own.is_over), set()).add(own.longest_s)
    for index, (job, subject) in enumerate(zip(question.jobs, subjects, strict=True)):
        why = compute_reason_to_run_alone(job, question.policy)
        key = keys.get(index)
        # What it asks for is told of one that asks for too much, or too little.
        asked = None
        if key is not None and (
            key.is_over or len(durations[key.group, key.gpu_type, key.is_over]) > 1
        ):
            asked = (choose_time_limit_s(job, question.capacity),)
        kind = (job.group, job.gpu_type, key, why, asked, subject.kind)
        kinds.setdefault(kind, []).append(index)
    return list(kinds.values())


def _divide_by_packs(
    kinds: Sequence[Sequence[int]], plan: Plan, places: Mapping[int, int]
) -> list[list[list[int]]]:
    """The jobs of each kind, those together whose packs are alike: one may be full, one not."""
    kind_of = {index: number for number, jobs in enumerate(kinds) for index in jobs}
    looks = [
        (pack.degree, *sorted(kind_of[member.job_index] for member in pack.members))
        for pack in plan.packs
    ]
    divided = []
    for jobs in kinds:
        alike: dict[object, list[int]] = {}
        for index in jobs:
            alike.setdefault(looks[places[index]], []).append(index)
        divided.append(list(alike.values()))
    return divided


def _list_pairs(
    kinds: Sequence[Sequence[list[int]]],
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Pairs of jobs of alike packs: one of every pair of kinds, then a second of each, ..."""
    waiting = [
        itertools.combinations_with_replacement(first, 2)
        if first is second
        else itertools.product(first, second)
        for first, second in itertools.combinations_with_replacement(kinds, 2)
    ]
    while waiting:
        left = []
        for pairs in waiting:
            pair = next(pairs, None)
            if pair is not None:
                yield pair
                left.append(pairs)
        waiting = left


def _find_apart(
    first: Sequence[int], second: Sequence[int], places: Mapping[int, int]
) -> tuple[int, int] | None:
    """A job of each kind that are in different packs."""
    i = first[0]
    for j in second:
        if places[i] != places[j]:
            return i, j
    # All of the second kind are where the first job is; another of the first kind may not be.
    for i in first:
        if places[i] != places[second[0]]:
            return i, second[0]
    return None


def _count_apart(first: Sequence[int], second: Sequence[int], places: Mapping[int, int]) -> int:
    """How many pairs of two kinds are in different packs."""
    counts: list[dict[int, int]] = []
    for kind in (first, second):
        counts.append({})
        for index in kind:
            counts[-1][places[index]] = counts[-1].get(places[index], 0) + 1
    if first is second:
        together = sum(n * (n - 1) // 2 for n in counts[0].values())
        return len(first) * (len(first) - 1) // 2 - together
    together = sum(n * counts[1].get(place, 0) for place, n in counts[0].items())
    return len(first) * len(second) - together
