"""Packs of jobs whose loads are unknown: first fit in the user's order, by the user's words.

Also: a pack of one job that asks Slurm for more than it needs, so that others can join it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Goal, PackPlan, PackRequest, Policy, SharingMode
from slurm_colloc.model.quantities import format_count, format_mb, format_time_limit
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.planning.job_needs import (
    Need,
    Question,
    build_subject,
    compute_needs,
    has_only_rate,
)
from slurm_colloc.planning.pack_request import (
    MEASURED,
    build_lone_pack,
    build_pack,
    choose_degree,
    compute_makespan_s,
    compute_overload,
    compute_places_most,
    compute_wall_limit_s,
    find_cut_gpu,
)

if TYPE_CHECKING:
    from slurm_colloc.planning.planned_gpu import PlannedGpu


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
        not policy.degree_is_asked
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
        replace(need, host_memory_mb=share_mb) if need.index in unstated else need for need in needs
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
        members = (replace(one, thread_percentage=None) for one in pack.members)
        return replace(pack, members=tuple(members), reasons=(*pack.reasons, known))
    lacking = [need.index for need in needs if has_only_rate(question.profiles.get(need.index))]
    if not lacking or not is_heeded:
        return pack
    names = list(dict.fromkeys(question.jobs[index].name for index in lacking))
    more = f" and {len(names) - _NAMED_MOST} more" if len(names) > _NAMED_MOST else ""
    reason = (
        f"{', '.join(names[:_NAMED_MOST])}{more}: GPU memory and rate alone are known, SM activity "
        "is not (no GPU before Hopper tells it): the pack is measured as it runs"
    )
    return replace(pack, reasons=(*pack.reasons, reason))


def _build_on_instances(question: Question, needs: Sequence[Need], closing_reason: str) -> PackPlan:
    """The pack of these jobs on the layout that suits what is known of them."""
    # Only packs with MIG instances wait for it.
    from slurm_colloc.planning.instance_packs import build_instance_pack, plan_seats

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
        key = replace(need, index=0)
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
        return f"it is full with {format_count(size, 'member')}"
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


# ----
# A pack of one job that asks Slurm for more than it needs, so that others can join it; pure.
#
# A pack that runs cannot grow: Slurm gives a job what it asked for before it started.

TIME_FACTOR = 2
"""It asks for the time of its member so many times: a job as long as that still finds time enough
when the first is half over."""


def plan_opened(question: Question, asked: int | None) -> PackPlan | str:
    """The pack of a single job that is open for others, or why there can be none.

    Args:
        question: What planning is asked: the job, and the GPU with which it would be.
        asked: How many places it is to have, its own among them; None for as many as like it the
            GPU's share has room for.
    """
    policy, capacity = question.policy, question.capacity
    if policy.mode is SharingMode.MIG:
        return "MIG instances are made for the members that a pack begins with"
    if policy.has_gpu_sets or capacity.gives_whole_nodes:
        return "Slurm gives whole nodes there, or several GPUs were asked for"
    needs = compute_needs(question, [0])
    # Others may take less of the GPU's memory: whether there is enough is seen as they come.
    sizeless = [replace(need, gpu_memory_mb=None) for need in needs]
    room = count_places(question, sizeless, _find_most(policy))
    if room is None:
        return "what one GPU's share of a node is, is not known"
    places = room if asked is None else min(asked, room)
    if places < 2:
        return f"one GPU's share of a node has room for one such job ({_describe_share(question)})"
    needs = share_host_memory(question, needs, places)
    limit_s = capacity.time_limit_max_s
    wall_s = compute_wall_limit_s(needs[0], places, policy)
    if wall_s is not None and limit_s is not None:
        wanted_s = wall_s + policy.start_margin_s + policy.measure_s
        if wanted_s > limit_s:
            return f"in company it may take {wanted_s} s, and MaxTime here is {limit_s} s"
    pack = build_unknown_pack(question, needs, "", places)
    request = pack.request
    assert request is not None
    if request.time_limit_s is not None:
        times = [TIME_FACTOR * request.time_limit_s, limit_s]
        shortest_s = min(time_s for time_s in times if time_s is not None)
        request = replace(request, time_limit_s=shortest_s)
    others = places - 1
    reasons = [text for text in pack.reasons if text != MEASURED]
    opened = (
        f"open for {format_count(others, 'more job')} while it runs: "
        f"it asks for {_describe_request(request)}"
    )
    reasons.append(opened)
    if asked is not None and asked > places:
        reasons.append(f"--open={asked}: there is room for {places} ({_describe_share(question)})")
    sharing = replace(pack.sharing, opened=opened)
    return replace(pack, request=request, reasons=tuple(reasons), open_for=others, sharing=sharing)


def keep_open(planned: PackPlan, request: PackRequest | None, places: int) -> PackPlan:
    """A pack that was joined while it waited, still with what it was opened with.

    Args:
        planned: The pack as it is planned with the joiner in it.
        request: What it asked for before.
        places: How many places it had.
    """
    own = planned.request
    if request is None or own is None:
        return planned
    memory, time_s = own.host_memory_mb, own.time_limit_s
    if memory is not None and request.host_memory_mb is not None:
        memory = max(memory, request.host_memory_mb)
    if time_s is not None and request.time_limit_s is not None:
        time_s = max(time_s, request.time_limit_s)
    kept = replace(
        own, cpus=max(own.cpus, request.cpus), host_memory_mb=memory, time_limit_s=time_s
    )
    return replace(planned, request=kept, degree=max(planned.degree, places))


def _find_most(policy: Policy) -> int:
    is_limited = policy.degree_is_asked or policy.pack_size is not None
    return min(policy.degree, policy.degree_max) if is_limited else policy.degree_max


def _describe_share(question: Question) -> str:
    capacity, job = question.capacity, question.jobs[0]
    memory_mb = capacity.host_memory_mb_per_gpu
    told = f"the share is {format_count(capacity.cpus_per_gpu or 0, 'CPU')}"
    if memory_mb is not None:
        told += f" and {format_mb(memory_mb)} of host memory"
    needs = format_count(job.cpus, "CPU")
    if job.host_memory_mb is not None:
        needs += f" and {format_mb(job.host_memory_mb)}"
    return f"{told}, it asks for {needs}"


def _describe_request(request: PackRequest) -> str:
    parts = [format_count(request.cpus, "CPU")]
    if request.host_memory_mb is not None:
        parts.append(f"{format_mb(request.host_memory_mb)} of host memory")
    if request.time_limit_s is not None:
        parts.append(f"{format_time_limit(request.time_limit_s)} of time")
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
