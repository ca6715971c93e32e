"""A pack of chosen members: how many run at once, for how long, and what it asks of Slurm.

Also: how long a pack and its members may take: their wall limits, and what is asked of Slurm.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import (
    MIG_INSTANCES_MAX,
    MPS_CLIENTS_MAX,
    WATCHED_FROM_MB,
    Capacity,
    MemberPlan,
    PackPlan,
    PackRequest,
    Policy,
    SharingMode,
    SharingReasons,
    is_watched,
)
from slurm_colloc.model.quantities import format_count
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.planning.job_needs import Need, Question, choose_bound

if TYPE_CHECKING:
    from slurm_colloc.planning.planned_gpu import PlannedGpu


# ----
# How long a pack and its members may take: their wall limits, and what is asked of Slurm; pure.

SLOWDOWN_MARGIN = 1.2
"""A member may be slower than predicted by this before its wall limit ends it."""


def compute_wall_limit_s(
    need: Need, degree: int, policy: Policy, slowdown: float | None = None
) -> int | None:
    """A member's wall limit in seconds: its time alone, stretched where it shares.

    Args:
        need: The member's needs.
        degree: Members at the same time.
        policy: The policy; a member's bound is the most by which its time is stretched.
        slowdown: What is predicted for it; None where unknown.
    """
    if need.time_limit_s is None:
        return None
    factor = choose_bound(need, policy) if degree > 1 else 1.0
    # Without either the node may choose another mode than the one that this was predicted for.
    is_certain = policy.share.endswith("!") or policy.mode is SharingMode.TIMESLICE
    if slowdown is not None and is_certain:
        factor = max(1.0, min(factor, slowdown * SLOWDOWN_MARGIN))
    return round(need.time_limit_s * factor)


def compute_makespan_s(
    walls: Sequence[int | None], degree: int, allowed: Sequence[Sequence[int]] = ()
) -> int | None:
    """When the last member would end if each used its whole wall limit; None if one has none.

    Args:
        walls: Their wall limits in seconds, in start order; None for none.
        degree: Members at the same time.
        allowed: Of each member the places, from 0, that it may have; empty for any.
    """
    ends = [0] * degree
    for at, wall in enumerate(walls):
        if wall is None:
            return None
        if allowed:
            place = min(allowed[at], key=ends.__getitem__)
            ends[place] += wall
        else:
            heapq.heapreplace(ends, ends[0] + wall)
    return max(ends)


def describe_bounds(needs: Sequence[Need], policy: Policy) -> str:
    """The slowdowns that members accept, in words: `1.5`, or `1.2 to 2`."""
    bounds = [choose_bound(need, policy) for need in needs]
    low, high = f"{min(bounds):g}", f"{max(bounds):g}"
    return low if low == high else f"{low} to {high}"


def compute_time(
    needs: Sequence[Need],
    walls: Sequence[int | None],
    degree: int,
    capacity: Capacity,
    policy: Policy,
    *,
    allowed: Sequence[Sequence[int]] = (),
) -> tuple[int | None, int | None, str]:
    """The pack's time limit, a cap on each member's wall limit, and a reason where there is one.

    Args:
        needs: What the members need, in start order.
        walls: Their wall limits in seconds; None for none.
        degree: Members at the same time.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        allowed: As `compute_makespan_s` has it.
    """
    span = compute_makespan_s(walls, degree, allowed)
    if span is None:
        return None, None, "no --time was given: Slurm's default limits the whole pack"
    margin_s = policy.start_margin_s + policy.measure_s
    wanted = span + margin_s
    limit = capacity.time_limit_max_s
    longest = max(need.time_limit_s or 0 for need in needs)
    if limit is None or wanted <= limit or longest > limit:
        return wanted, None, ""
    cap = max(1, limit - margin_s)
    reason = (
        f"the pack asks for {limit} s, which is MaxTime here; {wanted} s would allow "
        f"every member its time stretched by {describe_bounds(needs, policy)}"
    )
    if cap < longest:
        reason += f", and a member that asks for {longest} s alone gets {cap} s"
    return limit, cap if len(needs) <= degree else None, reason


# ---- A pack of chosen members: how many run at once, for how long, and what it asks of Slurm -----

MEASURED = (
    "how many run at once is measured as it starts: members of the other packs start here where "
    "that leaves room"
)

TURNS = "--take-turns: where members do not fit in GPU memory together, one is in host memory"

RUNNER_HOST_MEMORY_MB = 64
SRUN_HOST_MEMORY_MB = 16
"""What the batch step itself needs: the runner, and a waiting srun for each running member."""


@dataclass(frozen=True)
class Prediction:
    """What is known of a pack whose members' loads are known.

    Attributes:
        degree: Members that run at once.
        mode: Sharing mode.
        percentages: MPS thread limits, in the members' order; None for no limit.
        slowdowns: Of the members, against alone on the whole GPU; None where unknown.
        model_slowdowns: The same by the model alone, without what earlier packs showed; None
            where that is the same.
        solo_steps_per_s: Rates alone; None where unknown.
        finish_s: Seconds from the pack's start to its last end.
        reasons: Why it was made so, a sentence each.
        may_probe: One of them was not measured itself, nor a relative: it is measured as it starts.
        is_borrowed: The calibration is that of another GPU model.
        allowed: Of each member the places, from 0, that it may have; empty for any.
    """

    degree: int
    mode: SharingMode
    percentages: tuple[int | None, ...]
    slowdowns: tuple[float, ...] | None
    solo_steps_per_s: tuple[float | None, ...]
    finish_s: float | None
    reasons: tuple[str, ...] = ()
    may_probe: bool = False
    model_slowdowns: tuple[float, ...] | None = None
    is_borrowed: bool = False
    allowed: tuple[tuple[int, ...], ...] = ()


def find_cut_gpu(question: Question, indices: Sequence[int]) -> PlannedGpu | None:
    """The GPU whose MIG instances jobs would have; None where they share it otherwise."""
    if question.policy.mode is not SharingMode.MIG:
        return None
    # Only packs with MIG instances wait for it.
    from slurm_colloc.planning.planned_gpu import find_planned_gpu

    return find_planned_gpu(question, indices)


def compute_overload(
    members: Sequence[Need],
    at_once: int,
    capacity: Capacity,
    cut: PlannedGpu | None = None,
) -> str:
    """Name the resource of which the largest `at_once` members need more than there is, or ''.

    Args:
        members: What they need.
        at_once: How many run at the same time.
        capacity: What one GPU brings with it.
        cut: The GPU whose MIG instances they have; None where they share it otherwise.
    """
    cpus = sum(heapq.nlargest(at_once, (need.cpus for need in members)))
    if capacity.cpus_per_gpu is not None and cpus > capacity.cpus_per_gpu:
        return f"{at_once} at once need {cpus} CPUs, the GPU's share is {capacity.cpus_per_gpu}"
    memory = sum(heapq.nlargest(at_once, (need.host_memory_mb or 0 for need in members)))
    share = capacity.host_memory_mb_per_gpu
    if share is not None and memory > share:
        return f"{at_once} at once need {memory} MB of host memory, the GPU's share is {share} MB"
    gpu_memories = ((need.gpu_memory_mb or 0) * need.gpus for need in members)
    gpu_memory = -(-sum(heapq.nlargest(at_once, gpu_memories)) // capacity.gpus)
    usable = compute_usable_gpu_memory_mb(capacity.gpu_memory_mb)
    if usable is not None and gpu_memory > usable:
        return f"{at_once} at once need {gpu_memory} MB of GPU memory, {usable} MB are usable"
    return _describe_misfit(members, at_once, cut) if cut is not None else ""


def _describe_misfit(members: Sequence[Need], at_once: int, gpu: PlannedGpu) -> str:
    """Why a GPU has no MIG instances for the largest members at once, or ''."""
    from slurm_colloc.planning.choose_layout import find_misfit

    most = len(gpu.equal_rooms_mb) - 1
    if at_once > most:
        return f"{at_once} would run at once, a GPU has at most {most} MIG instances"
    needs_mb = heapq.nlargest(at_once, (need.gpu_memory_mb or 0 for need in members))
    misfit = find_misfit(needs_mb, gpu)
    if misfit is None:
        return ""
    need_mb, room_mb = misfit
    largest_mb = gpu.equal_rooms_mb[1]
    if largest_mb is not None and need_mb > largest_mb:
        return (
            f"one needs {need_mb} MB of GPU memory, which no MIG instance of "
            f"{gpu.model or 'the GPU'} holds: the largest has room for {largest_mb} MB"
        )
    return (
        f"one needs {need_mb} MB of GPU memory, and with {at_once} MIG instances the "
        f"largest that is left for it has room for {room_mb} MB"
    )


def compute_places_most(policy: Policy) -> int | None:
    """How many jobs the sharing mode can hold at all; None for any number."""
    if policy.mode is SharingMode.MIG:
        return MIG_INSTANCES_MAX
    return MPS_CLIENTS_MAX if policy.mode is SharingMode.MPS else None


def choose_degree(
    members: Sequence[Need], capacity: Capacity, policy: Policy, cut: PlannedGpu | None = None
) -> int:
    """The largest number of members that may run at once, at least 1; see `compute_overload`."""
    most = compute_places_most(policy) or len(members)
    for degree in range(min(_count_placed(members, capacity, policy), most), 1, -1):
        if not compute_overload(members, degree, capacity, cut):
            return degree
    return 1


def _count_placed(members: Sequence[Need], capacity: Capacity, policy: Policy) -> int:
    """How many members find places at once: each one on every GPU that it uses."""
    places = policy.degree * capacity.gpus
    taken = itertools.accumulate(sorted((need.gpus for need in members), reverse=True))
    return sum(gpus <= places for gpus in taken)


def compute_thread_percentage(degree: int, mode: SharingMode) -> int | None:
    """MPS thread limit of each of `degree` equal members, in per cent; None without MPS.

    Twice the equal share: on an H200 that gave the highest throughput for small, medium and large
    trainings (docs/benchmarks.md, "Thread limits").
    """
    if mode is not SharingMode.MPS or degree < 2:
        return None
    return min(100, 200 // degree)


def build_pack(
    jobs: Sequence[Job],
    needs: Sequence[Need],
    capacity: Capacity,
    policy: Policy,
    closing_reason: str,
    *,
    prediction: Prediction | None = None,
    rates: Sequence[float | None] = (),
    places: int | None = None,
) -> PackPlan:
    """The pack of these jobs, which keep every limit together.

    Args:
        jobs: All jobs of the call.
        needs: What the members need, in start order.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        closing_reason: Why it has no further member; empty where none came.
        prediction: What is known of it; None where loads are unknown.
        rates: The members' rates alone, where no more than that is known, each None where it is
            not; none where they do not count.
        places: How many like these may run in it at once, once that is measured, its own members
            among them; None for as many as the degree.
    """
    if prediction:
        rates = prediction.solo_steps_per_s
    surely = prediction.degree if prediction else choose_degree(needs, capacity, policy)
    degree = places or surely
    host_memory_mb = _compute_host_memory_mb(needs, degree, capacity, policy)
    may_probe = prediction.may_probe if prediction else not (rates and all(rates))
    if not may_probe or degree == 1 or not is_watched(host_memory_mb):
        # Known jobs are not measured first, nor is one alone, nor where nothing watches.
        policy = replace(policy, measure_s=0)
    slowdowns = prediction.slowdowns if prediction else None
    walls = [
        compute_wall_limit_s(need, degree, policy, slowdowns[place] if slowdowns else None)
        for place, need in enumerate(needs)
    ]
    first = jobs[needs[0].index]
    is_unlimited = any(jobs[need.index].is_unlimited for need in needs)
    # Members above what surely runs at once may have to wait, however much room there is.
    allowed = prediction.allowed if prediction else ()
    time_limit_s, cap_s, time_reason = compute_time(
        needs,
        walls,
        _count_going(needs, surely, capacity, policy),
        capacity,
        policy,
        allowed=allowed,
    )
    members = []
    mode = policy.mode if degree > 1 else SharingMode.EXCLUSIVE
    if prediction:
        mode = prediction.mode
    for place, (need, wall) in enumerate(zip(needs, walls, strict=True)):
        member = MemberPlan(
            need.index,
            need.cpus,
            need.host_memory_mb,
            min(wall, cap_s) if wall is not None and cap_s is not None else wall,
            need.gpu_memory_limit_mb or need.gpu_memory_mb,
            # For as many as turn out to fit the node knows better.
            None if places else compute_thread_percentage(degree, mode),
            max_slowdown=need.max_slowdown,
            solo_steps_per_s=rates[place] if rates else None,
            gpus=need.gpus,
        )
        if prediction:
            alone = prediction.model_slowdowns
            member = replace(
                member,
                thread_percentage=_choose_percentage(mode, prediction.percentages[place]),
                predicted_slowdown=slowdowns[place] if slowdowns else None,
                max_slowdown=choose_bound(need, policy),
                model_slowdown=alone[place] if alone else None,
            )
        members.append(member)
    cpus = sum(heapq.nlargest(degree, _fill_up([need.cpus for need in needs], degree)))
    reasons = _describe_size(needs, degree, cpus, places)
    if prediction:
        reasons += prediction.reasons
    if closing_reason:
        reasons.append(f"takes no more members: {closing_reason}")
    if any((need.gpu_memory_mb or need.gpu_memory_limit_mb) is None for need in needs):
        reasons.append("GPU memory was not stated for all members and is not checked")
    elif capacity.gpu_memory_mb is None:
        reasons.append("the GPU's memory is unknown here, the stated needs are not checked")
    if is_unlimited:
        reasons.append("no time limit: at least one member asks for none")
    elif time_reason:
        reasons.append(time_reason)
    return PackPlan(
        members=tuple(members),
        degree=degree,
        mode=mode,
        request=PackRequest(
            gpus=capacity.gpus,
            gpu_type=first.gpu_type,
            cpus=cpus,
            host_memory_mb=host_memory_mb,
            time_limit_s=time_limit_s,
            is_unlimited=is_unlimited,
        ),
        group=first.group,
        predicted_slowdown=slowdowns,
        reasons=tuple(reasons),
        sharing=SharingReasons(full=closing_reason),
        predicted_finish_s=prediction.finish_s if prediction else None,
        known=slowdowns is not None,
    )


def _count_going(needs: Sequence[Need], surely: int, capacity: Capacity, policy: Policy) -> int:
    """How many surely run at once: those that take turns are all there, and do not all run."""
    if not any(need.takes_turns for need in needs):
        return surely
    if capacity.gpu_memory_mb is None:
        return 1
    sized = [replace(need, gpu_memory_mb=need.gpu_memory_limit_mb) for need in needs]
    return choose_degree(sized, capacity, policy)


def build_lone_pack(index: int, job: Job, reason: str) -> PackPlan:
    """A job in an allocation of its own, which gets what it asked for."""
    member = MemberPlan(
        job_index=index,
        cpus=job.cpus,
        host_memory_mb=None,
        wall_limit_s=job.time_limit_s,
        gpu_memory_limit_mb=None,
        max_slowdown=job.max_slowdown,
        gpus=max(1, job.gpus),
    )
    return PackPlan(
        members=(member,),
        degree=1,
        mode=SharingMode.EXCLUSIVE,
        request=None,
        group=job.group,
        predicted_slowdown=None,
        reasons=(f"{job.name} runs alone: {reason}",),
        sharing=SharingReasons(reason, not (job.came_together or job.alone_because)),
    )


def _describe_size(needs: Sequence[Need], degree: int, cpus: int, places: int | None) -> list[str]:
    size, has = format_count(len(needs), "member"), format_count(cpus, "CPU")
    if any(need.takes_turns for need in needs):
        return [f"{size}, {degree} in turns, {has}", TURNS]
    if places:
        return [f"{size}, room for {places}, {has}", MEASURED]
    return [f"{size}, {degree} at once, {has}"]


def _choose_percentage(mode: SharingMode, percentage: int | None) -> int | None:
    """A member's thread limit as it is written down: the node takes None for its own default."""
    return (percentage or 100) if mode is SharingMode.MPS else percentage


def _fill_up(amounts: list[int], degree: int) -> list[int]:
    """What members need, with places for as many more like the largest as the degree has."""
    return amounts + [max(amounts)] * (degree - len(amounts))


def _compute_host_memory_mb(
    needs: Sequence[Need], degree: int, capacity: Capacity, policy: Policy
) -> int | None:
    amounts = [need.host_memory_mb for need in needs if need.host_memory_mb is not None]
    if len(amounts) < len(needs):
        return None
    members = sum(heapq.nlargest(degree, _fill_up(amounts, degree)))
    wanted = members + RUNNER_HOST_MEMORY_MB + SRUN_HOST_MEMORY_MB * degree
    share = capacity.host_memory_mb_per_gpu
    # The overhead never pushes a pack over its share: its members seldom peak together.
    if wanted >= WATCHED_FROM_MB:
        wanted += policy.monitor_mb
    return wanted if share is None else max(members, min(wanted, share))
