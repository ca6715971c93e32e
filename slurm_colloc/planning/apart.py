"""What keeps jobs of different packs apart: the limits that they would break together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.plan import Plan, Rule
from slurm_colloc.planning.alike import add_alike
from slurm_colloc.planning.explanation import PairExplanation, label_jobs
from slurm_colloc.planning.grouping import asks_over_max_time, compute_reason_to_run_alone
from slurm_colloc.planning.known import is_known, weigh
from slurm_colloc.planning.limits import Broken, find_broken
from slurm_colloc.planning.needs import Question, build_limits, build_subject, compute_need
from slurm_colloc.planning.subject import Subject
from slurm_colloc.planning.unknown import compute_refusal
from slurm_colloc.planning.weighing import Weighing, build_unknown, describe_goal

PAIRS_MOST = 50
"""Pairs that are shown; the others are counted."""
_EXPLAINED_MOST = 200
"""Pairs of kinds that are explained: those that turn out to be alike are shown once."""
_KINDS_MOST = 400


def explain_pairs(
    plan: Plan, question: Question, labels: Sequence[str] | None = None
) -> tuple[tuple[PairExplanation, ...], int]:
    """Say what keeps jobs in different packs, a pair of kinds at a time.

    First it is looked whether the two may share at all, then whether the second may come on top
    of the first one's pack, or the other way round; then what they would cost. Where exactly one
    limit is named, raising that one alone makes the pair, or the pack with the job, legal.

    Args:
        plan: The plan.
        question: What it answers.
        labels: What its jobs are called in sentences; None where there are no further jobs that
            they could be confused with.

    Returns:
        The pairs, those that are alike once, and how many more there are than PAIRS_MOST.
    """
    if question.policy.rule is Rule.FIRST_FIT:
        # That rule does not look at them.
        question = dataclasses.replace(question, profiles={})
    places = {
        member.job_index: number
        for number, pack in enumerate(plan.packs)
        for member in pack.members
    }
    subjects = [build_subject(question, index) for index in range(len(question.jobs))]
    kinds = _find_kinds(question, subjects)
    if labels is None:
        labels = label_jobs((job.name, job.number) for job in question.jobs)
    explainer = _Explainer(plan, question, subjects, places, labels)
    found: dict[object, PairExplanation] = {}
    explained = left_out = 0
    if len(kinds) > _KINDS_MOST:
        left_out = (len(kinds) * (len(kinds) - 1) - _KINDS_MOST * (_KINDS_MOST - 1)) // 2
        kinds = kinds[:_KINDS_MOST]
    for first, second in itertools.combinations_with_replacement(kinds, 2):
        apart = _find_apart(first, second, places)
        if apart is None:
            continue
        if len(found) == PAIRS_MOST or explained == _EXPLAINED_MOST:
            left_out += 1
            continue
        explained += 1
        add_alike(found, explainer.explain(*apart, _count_apart(first, second, places)), labels)
    return tuple(found.values()), left_out


def _find_kinds(question: Question, subjects: Sequence[Subject]) -> list[list[int]]:
    """The jobs of the call, those together that planning takes for alike; in the user's order."""
    kinds: dict[object, list[int]] = {}
    for index, (job, subject) in enumerate(zip(question.jobs, subjects, strict=True)):
        why = compute_reason_to_run_alone(job, question.policy)
        # What it asks for is told of one that asks for too much.
        over = asks_over_max_time(job, question.capacity) and (job.time_limit_s,)
        kinds.setdefault((job.group, job.gpu_type, why, over, subject.kind), []).append(index)
    return list(kinds.values())


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


class _Explainer:
    """Says of two jobs what keeps them apart."""

    def __init__(
        self,
        plan: Plan,
        question: Question,
        subjects: Sequence[Subject],
        places: Mapping[int, int],
        labels: Sequence[str],
    ) -> None:
        self._plan = plan
        self._question = question
        self._subjects = subjects
        self._places = places
        self._names = labels
        self._weighings: dict[object, tuple[Weighing, dict[int, int], list[str]]] = {}

    def explain(self, i: int, j: int, pairs: int) -> PairExplanation:
        broken, beside = self._find(i, j)
        jobs = self._question.jobs
        return PairExplanation(
            first=jobs[i].name,
            second=jobs[j].name,
            first_index=i,
            second_index=j,
            first_number=jobs[i].number,
            second_number=jobs[j].number,
            packs=tuple(jobs[index].name for index in beside),
            pack_indices=beside,
            pairs=pairs,
            broken=broken,
            text="; ".join(b.text for b in broken),
        )

    def _find(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        policy, jobs = self._question.policy, self._question.jobs
        for index in (i, j):
            why = compute_reason_to_run_alone(jobs[index], policy)
            if why:
                return (Broken("alone", None, None, f"{self._names[index]} runs alone: {why}"),), ()
        if (jobs[i].group, jobs[i].gpu_type) != (jobs[j].group, jobs[j].gpu_type):
            text = "partition, account, QoS, GPU type or another option for sbatch is not equal"
            return (Broken("group", None, None, text),), ()
        over = [asks_over_max_time(jobs[index], self._question.capacity) for index in (i, j)]
        if over[0] != over[1]:
            longer = i if over[0] else j
            return (self._build_over(longer),), ()
        if policy.rule not in (Rule.CSUB, Rule.FIRST_FIT):
            text = f"the rule {policy.rule} does not put them together"
            return (Broken("rule", None, None, text),), ()
        known = [self._is_known(index) for index in (i, j)]
        if all(known):
            return self._find_by_loads(i, j)
        if any(known):
            return (build_unknown(self._names[i if known[1] else j]),), ()
        return self._find_by_words(i, j)

    def _build_over(self, index: int) -> Broken:
        asked_s = self._question.jobs[index].time_limit_s
        limit_s = self._question.capacity.time_limit_max_s
        asked = "no time limit" if asked_s is None else f"{asked_s} s"
        text = (
            f"{self._names[index]} asks for {asked}, MaxTime here is {limit_s} s: "
            "Slurm will not start it"
        )
        return Broken("time", asked_s, limit_s, text)

    def _is_known(self, index: int) -> bool:
        if self._question.calibration is None or self._question.policy.rule is not Rule.CSUB:
            return False
        return is_known(self._subjects[index])

    def _find_by_loads(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        weighing, position, names = self._weigh(i)
        broken = weighing.find_broken((position[i], position[j]), names)
        if broken:
            return broken, ()
        packs = [self._list_members(index) for index in (i, j)]
        for members, new in ((packs[0], j), (packs[1], i)):
            together = [position[index] for index in (*members, new)]
            broken = weighing.find_broken(together, names)
            if broken:
                return broken, members
        return (self._compare(i, j, packs, weighing, position),), packs[0]

    def _compare(
        self,
        i: int,
        j: int,
        packs: Sequence[tuple[int, ...]],
        weighing: Weighing,
        position: Mapping[int, int],
    ) -> Broken:
        """They could share; but moving either into the other's pack costs no less."""

        def price(members: Sequence[int]) -> float | None:
            priced = weighing.pricing.price([position[index] for index in members])
            return priced.cost if priced is not None else None

        before = [price(members) for members in packs]
        found = []
        for (stays, leaves), new in (((0, 1), j), ((1, 0), i)):
            rest = [index for index in packs[leaves] if index != new]
            costs = [price((*packs[stays], new)), price(rest) if rest else 0.0]
            if all(cost is not None for cost in costs):
                found.append(sum(cost for cost in costs if cost is not None))
        now = sum(cost for cost in before if cost is not None)
        if not found or None in before:
            text = f"{self._names[i]} and {self._names[j]} save more with the others of their packs"
            return Broken("cost", None, None, text)
        alone = weighing.pricing.price((position[i],))
        assert alone is not None
        what, unit = describe_goal(weighing.goal, alone)
        text = (
            f"with {self._names[i]} and {self._names[j]} in one pack the two packs would take "
            f"{min(found):.0f} {unit} of {what}, as they are {now:.0f} {unit}"
        )
        return Broken("cost", min(found), now, text)

    def _find_by_words(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        """Jobs of unknown load share as far as their users' words allow."""
        question = self._question
        policy, capacity = question.policy, question.capacity
        members = self._list_members(min(i, j, key=self._places.__getitem__))
        new = j if i in members else i
        limits = dataclasses.replace(
            build_limits(question, []), members=policy.pack_size or policy.degree, finish_s=None
        )
        needs = [
            compute_need(
                question.jobs[index],
                index,
                capacity,
                policy,
                profile=question.profiles.get(index),
                calibration=question.calibration,
            )
            for index in (*members, new)
        ]
        chosen = [
            dataclasses.replace(
                self._subjects[need.index],
                host_memory_mb=need.host_memory_mb,
                gpu_memory_mb=need.gpu_memory_mb,
            )
            for need in needs
        ]
        if (policy.pack_size or 0) <= policy.degree:
            broken = find_broken(chosen, limits)
            if broken:
                return broken, members
        refusal = compute_refusal(needs, capacity, policy)
        text = refusal or "packs are filled in the order of the call, and each takes what comes"
        return (Broken("order" if not refusal else "time", None, None, text),), members

    def _list_members(self, index: int) -> tuple[int, ...]:
        members = self._plan.packs[self._places[index]].members
        return tuple(member.job_index for member in members)

    def _weigh(self, index: int) -> tuple[Weighing, dict[int, int], list[str]]:
        """The jobs of known load that may share with one, and their positions among them."""
        job = self._question.jobs[index]
        key = (job.group, job.gpu_type)
        if key not in self._weighings:
            chosen = [i for i in self._list_bucket(key) if self._is_known(i)]
            weighing = weigh(self._question, [self._subjects[i] for i in chosen])
            position = {i: place for place, i in enumerate(chosen)}
            self._weighings[key] = (weighing, position, [self._names[i] for i in chosen])
        return self._weighings[key]

    def _list_bucket(self, key: object) -> Iterator[int]:
        for index, job in enumerate(self._question.jobs):
            alone = compute_reason_to_run_alone(job, self._question.policy)
            if not alone and (job.group, job.gpu_type) == key:
                yield index
