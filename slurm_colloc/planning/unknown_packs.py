"""Packs of jobs whose loads are unknown: first fit in the user's order, by the user's words."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.model.plan import Goal, PackPlan, Policy, Rule, SharingMode
from slurm_colloc.planning.job_load import has_only_rate
from slurm_colloc.planning.job_needs import (
    Need,
    Question,
    build_subject,
    compute_needs,
)
from slurm_colloc.planning.limits.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.planning.pack_request import (
    build_lone_pack,
    build_pack,
    choose_degree,
    compute_overload,
    compute_places_most,
    describe_count,
    find_cut_gpu,
)
from slurm_colloc.planning.time_limits import compute_makespan_s, compute_wall_limit_s

if TYPE_CHECKING:
    from slurm_colloc.planning.mig.planned_gpu import PlannedGpu

_NAMED_MOST = 8
"""Jobs that are named in a sentence; the others are counted."""


UNSTATED_HOST_MEMORY_MB = 8192
"""The least share of host memory of a job that does not say how much, where its pack has room for
more than the degree: a training with loaders of its own needs some GB."""

SPREAD = "goal latency: it is not known what it would lose by sharing"


def plan_unknown(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Pack jobs that may share with each other; each pack says why it has no further member.

    As many packs are made as the degree says. Each asks for as much as one GPU's share has room
    for, so that what turns out to fit on one GPU may run there.
    """
    policy = question.policy
    if policy.goal is Goal.LATENCY and is_open_ended(policy):
        return [build_lone_pack(index, question.jobs[index], SPREAD) for index in indices]
    filled = fill_packs(question, indices)
    packs = []
    for needs, reason in filled:
        # One pack alone has no other whose members it could take over.
        most = len(indices) if len(filled) > 1 else len(needs)
        widened, places = make_room(question, needs, most)
        packs.append(build_unknown_pack(question, widened, reason, places))
    return packs


def is_open_ended(policy: Policy) -> bool:
    """Whether the user left open how many share a GPU."""
    return (
        policy.rule is Rule.CSUB
        and not policy.degree_is_asked
        and policy.pack_size is None
        and policy.mode is not SharingMode.MIG
    )


def make_room(
    question: Question, needs: Sequence[Need], most: int
) -> tuple[Sequence[Need], int | None]:
    """How many like these one GPU's share has room for, and what each of them then gets.

    Args:
        question: What planning is asked.
        needs: Members of a pack.
        most: All members of the call.

    Returns:
        What they need: where a job does not say how much host memory, its part of the share is
        smaller the more there may be. And the places; None for as many as may run by the degree,
        also where the share is unknown or the user has limited how many run at once.
    """
    policy = question.policy
    is_limited = policy.running_limit is not None or policy.goal is not Goal.THROUGHPUT
    if is_limited or not is_open_ended(policy):
        return needs, None
    places = count_places(question, needs, min(most, policy.degree_max))
    if places is None or places <= choose_degree(needs, question.capacity, policy):
        return needs, None
    return share_host_memory(question, needs, places), places


def count_places(question: Question, needs: Sequence[Need], most: int) -> int | None:
    """How many like these one GPU's share has room for, at most `most`; None where it is unknown.

    Args:
        question: What planning is asked.
        needs: Members of a pack.
        most: More are not wanted.
    """
    capacity = question.capacity
    cpus, memory_mb = capacity.cpus_per_gpu, capacity.host_memory_mb_per_gpu
    if cpus is None or memory_mb is None:
        return None
    unstated = _find_unstated(question, needs)
    stated_mb = [n.host_memory_mb or 0 for n in needs if n.index not in unstated]
    each_mb = max([*stated_mb, *([UNSTATED_HOST_MEMORY_MB] if unstated else [])])
    limits = [most, compute_places_most(question.policy) or most]
    limits += [cpus // max(need.cpus for need in needs), memory_mb // max(1, each_mb)]
    usable_mb = compute_usable_gpu_memory_mb(capacity.gpu_memory_mb)
    stated_gpu_mb = [need.gpu_memory_mb for need in needs]
    if usable_mb is not None and all(stated_gpu_mb):
        limits.append(usable_mb // max(mb for mb in stated_gpu_mb if mb))
    return min(limits)


def share_host_memory(question: Question, needs: Sequence[Need], places: int) -> list[Need]:
    """The needs, in which jobs that do not say how much host memory get their part of the share."""
    unstated = _find_unstated(question, needs)
    share_mb = (question.capacity.host_memory_mb_per_gpu or 0) // places
    return [
        dataclasses.replace(need, host_memory_mb=share_mb) if need.index in unstated else need
        for need in needs
    ]


def _find_unstated(question: Question, needs: Sequence[Need]) -> set[int]:
    return {n.index for n in needs if question.jobs[n.index].host_memory_mb is None}


def build_unknown_pack(
    question: Question,
    needs: Sequence[Need],
    closing_reason: str,
    places: int | None = None,
    known: str = "",
) -> PackPlan:
    """The pack of these jobs; rates alone that were measured go along for the node to judge by.

    Args:
        question: What planning is asked; without a calibration what was measured is of no use.
        needs: What the members need, in start order.
        closing_reason: Why it has no further member; empty where none came.
        places: How many like these may run at once; None for as many as the degree.
        known: What is known of how many run at once best, in a sentence; empty where nothing is.
    """
    profiles = [question.profiles.get(need.index) for need in needs]
    is_heeded = question.calibration is not None
    rates = [profile.steps_per_s if profile else None for profile in profiles]
    if question.policy.mode is SharingMode.MIG and len(needs) > 1:
        return _build_on_instances(question, needs, closing_reason)
    pack = build_pack(
        question.jobs,
        needs,
        question.capacity,
        question.policy,
        closing_reason,
        rates=rates if is_heeded else (),
        places=places,
    )
    if known:
        # As in the pack that measured it, the node settles what part of the GPU each gets.
        members = (dataclasses.replace(one, thread_percentage=None) for one in pack.members)
        return dataclasses.replace(pack, members=tuple(members), reasons=(*pack.reasons, known))
    lacking = [need.index for need in needs if has_only_rate(question.profiles.get(need.index))]
    if not lacking or not is_heeded:
        return pack
    names = list(dict.fromkeys(question.jobs[index].name for index in lacking))
    more = f" and {len(names) - _NAMED_MOST} more" if len(names) > _NAMED_MOST else ""
    reason = (
        f"{', '.join(names[:_NAMED_MOST])}{more}: GPU memory and rate alone are known, SM activity "
        "is not (no GPU before Hopper tells it): the pack is measured as it runs"
    )
    return dataclasses.replace(pack, reasons=(*pack.reasons, reason))


def _build_on_instances(question: Question, needs: Sequence[Need], closing_reason: str) -> PackPlan:
    """The pack of these jobs on the layout that suits what is known of them."""
    # Only packs with MIG instances wait for it.
    from slurm_colloc.planning.mig.instance_packs import build_instance_pack, plan_seats

    subjects = [build_subject(question, need.index) for need in needs]
    cut = find_cut_gpu(question, [need.index for need in needs])
    degree = choose_degree(needs, question.capacity, question.policy, cut)
    planned = plan_seats(question, subjects, at_once=degree, gpu=cut)
    assert planned is not None
    return build_instance_pack(question, needs, subjects, planned, closing_reason)


def fill_packs(question: Question, indices: Sequence[int]) -> list[tuple[list[Need], str]]:
    """First fit in the user's order; each pack comes with the reason why it was closed.

    What a pack refuses it refuses for good, since members only come on top. So none is asked
    twice for the same need, and none at all that would refuse even the least need of all.
    """
    needs = compute_needs(question, indices)
    cut = find_cut_gpu(question, indices)
    least = _find_least(needs)
    packs: list[list[Need]] = []
    places: list[int] = []
    is_open: list[int] = []
    asked: dict[Need, int] = {}
    for need in needs:
        key = dataclasses.replace(need, index=0)
        refused_up_to = asked.get(key, -1)
        place = len(packs)
        for candidate in is_open[bisect.bisect_right(is_open, refused_up_to) :]:
            if not compute_refusal([*packs[candidate], need], question, cut):
                place = candidate
                break
        if place == len(packs):
            packs.append([])
            is_open.append(place)
        packs[place].append(need)
        places.append(place)
        asked[key] = place - 1
        if compute_refusal([*packs[place], least], question, cut):
            is_open.remove(place)
    reasons = [""] * len(packs)
    explained = 0
    # The last job that went by a pack says what closed it.
    for position in range(len(needs) - 1, -1, -1):
        for place in range(explained, places[position]):
            before = [need for need in packs[place] if need.index < needs[position].index]
            reasons[place] = compute_refusal([*before, needs[position]], question, cut)
        explained = max(explained, places[position])
    return list(zip(packs, reasons, strict=True))


def _find_least(needs: Sequence[Need]) -> Need:
    """A need of which every one of these has at least as much."""
    times = [need.time_limit_s for need in needs]
    return Need(
        index=0,
        cpus=min(need.cpus for need in needs),
        host_memory_mb=min(need.host_memory_mb or 0 for need in needs),
        gpu_memory_mb=min(need.gpu_memory_mb or 0 for need in needs),
        time_limit_s=None if None in times else min(time for time in times if time is not None),
    )


def compute_refusal(
    members: Sequence[Need], question: Question, cut: PlannedGpu | None = None
) -> str:
    """Name the limit that these members would break together, with both numbers, or ''.

    Args:
        members: What they need.
        question: What planning is asked.
        cut: As `find_cut_gpu` has it for them.
    """
    policy = question.policy
    size = policy.pack_size or policy.degree
    most = compute_places_most(policy)
    if most is not None and size > most and len(members) > most and not policy.pack_size:
        return f"it is full with {most} members, no more can share by {policy.mode}"
    if len(members) > size:
        return f"it is full with {describe_count(size, 'member')}"
    at_once = 1 if policy.pack_size and policy.pack_size > policy.degree else len(members)
    refusal = compute_overload(members, min(at_once, policy.degree), question.capacity, cut)
    if refusal:
        return refusal
    late = find_late(members, question, cut)
    if late is None:
        return ""
    span_s, limit_s = late
    return f"{len(members)} members need {span_s} s one after the other, MaxTime is {limit_s} s"


def find_late(
    members: Sequence[Need], question: Question, cut: PlannedGpu | None = None
) -> tuple[int, int] | None:
    """How long members may take of whom some wait, and MaxTime, in seconds; None if less."""
    policy, limit_s = question.policy, question.capacity.time_limit_max_s
    degree = choose_degree(members, question.capacity, policy, cut)
    if limit_s is None or len(members) <= degree:
        return None
    walls = [compute_wall_limit_s(need, degree, policy) for need in members]
    span_s = compute_makespan_s(walls, degree)
    if span_s is None or span_s + policy.start_margin_s + policy.measure_s <= limit_s:
        return None
    return span_s, limit_s
