"""Packs whose members have MIG instances of their own: one function makes all of them.

Also: a pack on a named MIG layout that is still being filled: who may come on top; packs on a MIG
layout that was asked for, and packs that only unequal instances hold.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import PackPlan, PlannedSeat, Policy, SharingMode, UsageProfile
from slurm_colloc.model.quantities import format_count
from slurm_colloc.planning.choose_layout import (
    SeatedLayout,
    choose_layout,
    describe_cost_of_walls,
    predict_crowding,
    share_seats,
)
from slurm_colloc.planning.hard_limits import MIG_MEMBERS_MAX, Limits, Subject, find_broken
from slurm_colloc.planning.job_needs import (
    Need,
    Question,
    are_timed,
    build_subject,
    choose_bound,
    label_jobs,
)
from slurm_colloc.planning.pack_prediction import describe_bounds, describe_sources
from slurm_colloc.planning.pack_pricing import (
    PLAIN,
    SETUP_S,
    build_families,
    compute_power_room_w,
    predict_in,
)
from slurm_colloc.planning.pack_request import (
    SLOWDOWN_MARGIN,
    Prediction,
    build_lone_pack,
    build_pack,
    compute_overload,
    compute_wall_limit_s,
)
from slurm_colloc.planning.planned_gpu import PlannedGpu, find_planned_gpu, recognise_gpu
from slurm_colloc.planning.seats import (
    Seat,
    compute_own_slowdown,
    fits,
    read_seats,
)

_ALL = 100


@dataclass(frozen=True)
class InstancePlan:
    """Members on a layout.

    Attributes:
        gpu: The GPU that it was planned for.
        layout: The layout, with those that run at once.
        seats: Per member, its seat, or one that it may have once it no longer waits.
        slowdowns: Per member; None where one is unknown.
        duration_s: Seconds until the last ends; None where a slowdown is unknown.
        crowding: Per member, how much of its slowdown is by those who share its instance, as a
            factor; None where one is unknown, or none shares one.
    """

    gpu: PlannedGpu
    layout: SeatedLayout
    seats: tuple[Seat, ...]
    slowdowns: tuple[float, ...] | None
    duration_s: float | None
    crowding: tuple[float, ...] | None = None


def plan_seats(
    question: Question,
    subjects: Sequence[Subject],
    seats: Sequence[Seat] = (),
    at_once: int = 0,
    gpu: PlannedGpu | None = None,
) -> InstancePlan | None:
    """Members on the seats that were asked for, or on the best layout.

    Args:
        question: What planning is asked.
        subjects: The members, in start order.
        seats: The seats of the layout that was asked for; none for one that csub chooses.
        at_once: How many run at once; 0 for all, or for as many as there are seats. Where it is
            more than those, several share one.
        gpu: The GPU; None for that on which these jobs will run, as far as that is known.

    Returns:
        None where one of them can have no seat.
    """
    gpu = gpu or find_planned_gpu(question, [subject.index for subject in subjects])
    degree = min(at_once or len(seats) or len(subjects), len(subjects))
    # Where some wait, the layout is for those that need most: then it is one for all.
    order = sorted(
        range(len(subjects)), key=lambda place: (-(subjects[place].gpu_memory_mb or 0), place)
    )
    first = sorted(order[:degree])
    running = [subjects[place] for place in first]
    if seats:
        first, running = list(range(degree)), list(subjects[:degree])
        seating = share_seats(running, seats)
        layout = None if seating is None else SeatedLayout(tuple(seats), seating)
    else:
        layout = choose_layout(running, gpu)
    if layout is None:
        return None
    mine = {place: layout.find_seat(number) for number, place in enumerate(first)}
    found = []
    for place, subject in enumerate(subjects):
        seat = mine.get(place) or find_smallest_seat(subject, layout.seats)
        if seat is None:
            return None
        found.append(seat)
    slowdowns = predict_on(question, subjects, found)
    crowding = None
    if slowdowns is not None and degree > len(layout.seats):
        crowding = predict_crowding(subjects, found, first, layout, question.calibration)
        slowdowns = crowding and tuple(
            alone * times for alone, times in zip(slowdowns, crowding, strict=True)
        )
    duration_s = None
    if slowdowns is not None:
        taken = [s.run_s * slowdown for s, slowdown in zip(subjects, slowdowns, strict=True)]
        # With those that wait: as if they followed each other on equal seats.
        duration_s = max(*taken, sum(taken) / degree) if len(taken) > 1 else taken[0]
    return InstancePlan(gpu, layout, tuple(found), slowdowns, duration_s, crowding)


def find_smallest_seat(subject: Subject, seats: Sequence[Seat]) -> Seat | None:
    """The smallest seat that a waiting member may have; None where none is large enough."""
    enough = [seat for seat in seats if fits(subject, seat)]
    return max(enough, key=lambda seat: seat.stretch, default=None)


def predict_on(
    question: Question, subjects: Sequence[Subject], seats: Sequence[Seat]
) -> tuple[float, ...] | None:
    """Slowdowns on these seats; None where a load is unknown.

    Instances have SMs and DRAM of their own; PCIe, host and power are common.
    """
    loads = [subject.load for subject in subjects if subject.load is not None]
    families = build_families(question.calibration, (SharingMode.MIG,))
    if len(loads) < len(subjects) or not families:
        return None
    common = predict_in(
        families[0],
        loads,
        [_ALL] * len(loads),
        PLAIN,
        cores=float(sum(subject.cpus for subject in subjects)),
        power_room_w=compute_power_room_w(question.calibration),
    )
    return tuple(
        shared * compute_own_slowdown(subject, seat)
        for shared, subject, seat in zip(common, subjects, seats, strict=True)
    )


def build_instance_pack(
    question: Question,
    needs: Sequence[Need],
    subjects: Sequence[Subject],
    planned: InstancePlan,
    closing_reason: str = "",
    *,
    notes: Sequence[str] = (),
) -> PackPlan:
    """The pack of members that are seated.

    Args:
        question: What planning is asked.
        needs: What the members need, in start order.
        subjects: The members, likewise.
        planned: Their seats.
        closing_reason: Why it has no further member; empty where none came.
        notes: What else is to be said of it, a sentence each.
    """
    policy = question.policy
    slowdowns = planned.slowdowns
    crowds = {seat.word: seat.places for seat in describe_seats(planned)}
    stretched = [
        slow_down(
            need,
            subject,
            seat,
            policy,
            slowdown=None if slowdowns is None else slowdowns[place],
            crowd=crowds.get(seat.word, 1),
        )
        for place, (need, subject, seat) in enumerate(
            zip(needs, subjects, planned.seats, strict=True)
        )
    ]
    degree = len(planned.layout.seating.places)
    profiles = [question.profiles.get(subject.index, UsageProfile()) for subject in subjects]
    prediction = Prediction(
        degree,
        SharingMode.MIG,
        (None,) * len(subjects),
        slowdowns,
        tuple(profile.steps_per_s for profile in profiles),
        planned.duration_s if are_timed(question, subjects) else None,
        (
            _describe_layout(planned, needs, question),
            *(describe_sources(question, subjects) if slowdowns else ()),
            describe_cost_of_walls(question, subjects, planned.duration_s, slowdowns),
            *_describe_limits(needs, stretched, policy),
            *notes,
        ),
        allowed=_list_allowed(planned, subjects),
    )
    pack = build_pack(
        question.jobs, stretched, question.capacity, policy, closing_reason, prediction=prediction
    )
    members = tuple(
        replace(
            member,
            instance=seat.word,
            max_slowdown=None if member.max_slowdown is None else choose_bound(need, policy),
        )
        for member, seat, need in zip(pack.members, planned.seats, needs, strict=True)
    )
    return replace(pack, members=members, layout=describe_seats(planned))


def _list_allowed(
    planned: InstancePlan, subjects: Sequence[Subject]
) -> tuple[tuple[int, ...], ...]:
    """The places that each member may have: those on instances that hold it, the first in turn.

    One that only an instance without a place holds counts as if it could have any.
    """
    seats = [planned.layout.seats[number] for number in planned.layout.seating.places]
    every = tuple(range(len(seats)))
    return tuple(
        tuple(place for place in every if fits(subject, seats[place])) or every
        for subject in subjects
    )


def slow_down(
    need: Need,
    subject: Subject,
    seat: Seat,
    policy: Policy,
    *,
    slowdown: float | None = None,
    crowd: int = 1,
) -> Need:
    """A need whose wall limit leaves it the time that its instance takes: none sits there unasked.

    Nothing is measured within walls, so of what is not known the worst is assumed: where several
    share the instance, that they take turns.
    """
    if need.max_slowdown is not None:
        return need
    worst = slowdown * SLOWDOWN_MARGIN if slowdown else compute_own_slowdown(subject, seat) * crowd
    bound = max(policy.slowdown_bound, math.ceil(worst * 10) / 10)
    return replace(need, max_slowdown=bound)


def _describe_limits(
    needs: Sequence[Need], stretched: Sequence[Need], policy: Policy
) -> tuple[str, ...]:
    """Wall limits by how much smaller an instance may be, where that makes them longer."""
    usual = [choose_bound(need, policy) for need in needs]
    bounds = [choose_bound(need, policy) for need in stretched]
    if bounds == usual:
        return ()
    low, high = f"{min(bounds):g}", f"{max(bounds):g}"
    text = (
        "on these instances wall limits are at most --time times "
        f"{low if low == high else f'{low} to {high}'}: of what is not known the worst is assumed, "
        "and --max-slowdown sets another"
    )
    return (text,)


def _describe_layout(planned: InstancePlan, needs: Sequence[Need], question: Question) -> str:
    """A layout and what is predicted on it, in a sentence."""
    text = f"MIG layout {'+'.join(planned.layout.words)}"
    if planned.slowdowns is None:
        worst = max(seat.stretch for seat in planned.seats)
        return (
            f"{text}: how much slower its members are there is not known yet; one that the GPU "
            f"alone holds up would be {worst:.1f} times slower on the smallest"
        )
    running = planned.slowdowns
    low, high = min(running), max(running)
    spread = f"{high:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    bounds = [choose_bound(need, question.policy) for need in needs]
    passed = sum(slow > bound for slow, bound in zip(running, bounds, strict=True))
    over = f", passed by {passed} of {len(bounds)}, as the layout was asked for" if passed else ""
    return f"{text}: predicted slowdown {spread} ({describe_bounds(bounds)}{over})"


def describe_seats(planned: InstancePlan) -> tuple[PlannedSeat, ...]:
    """The seats of a layout, as they stand in a plan."""
    return tuple(
        PlannedSeat(
            seat.word,
            seat.profile.name if planned.gpu.has_names else f"{seat.profile.compute_slices}g",
            seat.instance,
            seat.placed.placement.start,
            seat.placed.placement.size,
            seat.profile.memory_mb if planned.gpu.has_memory else None,
            seat.profile.sms * seat.compute_slices // seat.profile.compute_slices,
            planned.gpu.memory_slices,
            max(1, planned.layout.seating.places.count(number)),
        )
        for number, seat in enumerate(planned.layout.seats)
    )


def compute_gpu_s(planned: InstancePlan) -> float | None:
    """Seconds for which the GPU is held, its cutting included; None where that is unknown."""
    return None if planned.duration_s is None else planned.duration_s + SETUP_S[SharingMode.MIG]


# ---- A pack on a named MIG layout that is still being filled: who may come on top; pure ----------
#
# What a pack is judged by is kept as members come, so that a thousand that wait in one take no
# longer each than the first.

Entry = tuple[Need, Subject]
"""A job: what it needs of its node, and how planning looks at it."""


def count_places(policy: Policy, seats: Sequence[Seat]) -> int:
    """How many members run at once on a layout: one on each seat, unless the user asks for more."""
    return policy.degree if policy.mps_inside else min(policy.degree, len(seats))


class OpenLayout:
    """Members that would have a GPU with a layout together, some of them in turn.

    Args:
        question: What planning is asked.
        seats: The layout's.
        first: The first member.

    Attributes:
        members: In the user's order.
    """

    def __init__(self, question: Question, seats: Sequence[Seat], first: Entry) -> None:
        self._question = question
        self._seats = seats
        self._places = count_places(question.policy, seats)
        self._largest: list[Need] = []
        self._ends: list[int] | None = [0] * self._places
        self.members: list[Entry] = []
        self.add(first)

    def add(self, one: Entry) -> None:
        """Put a member into it that it does not refuse."""
        self.members.append(one)
        self._largest = self._keep_largest(one)
        wall_s = self._compute_wall_s(one)
        if wall_s is None:
            self._ends = None
        elif self._ends is not None:
            heapq.heapreplace(self._ends, self._ends[0] + wall_s)

    def find_refusal(self, one: Entry) -> str:
        """Why a job does not come on top; empty where it does."""
        policy, count = self._question.policy, len(self.members) + 1
        if policy.pack_size is not None and count > policy.pack_size:
            return f"it is full with {format_count(policy.pack_size, 'member')}"
        largest = self._keep_largest(one)
        overload = compute_overload(largest, min(count, self._places), self._question.capacity)
        if overload:
            return overload
        limit_s, wall_s = self._question.capacity.time_limit_max_s, self._compute_wall_s(one)
        if limit_s is None or self._ends is None or wall_s is None or count <= self._places:
            return ""
        span_s = max(*self._ends, self._ends[0] + wall_s)
        if span_s + policy.start_margin_s + policy.measure_s <= limit_s:
            return ""
        return f"{count} members need {span_s} s in turn, MaxTime is {limit_s} s"

    def order(self) -> tuple[list[Entry], int]:
        """Its members in start order, and how many run at once.

        The longest begin, as far as they have seats at once.
        """
        by_length = sorted(self.members, key=lambda one: (-one[1].run_s, one[1].index))
        running: list[Entry] = []
        waiting: list[Entry] = []
        for one in by_length:
            chosen = [subject for _, subject in (*running, one)]
            has_room = len(running) < self._places
            if has_room and share_seats(chosen, self._seats) is not None:
                running.append(one)
            else:
                waiting.append(one)
        return running + waiting, len(running)

    def _keep_largest(self, one: Entry) -> list[Need]:
        """The members with most CPUs and those with most host memory: all that run at once."""
        needs = [*self._largest, replace(one[0], gpu_memory_mb=None)]
        if len(needs) <= self._places:
            return needs
        by_cpus = heapq.nlargest(self._places, range(len(needs)), key=lambda at: needs[at].cpus)
        by_memory = heapq.nlargest(
            self._places, range(len(needs)), key=lambda at: needs[at].host_memory_mb or 0
        )
        return [needs[at] for at in sorted({*by_cpus, *by_memory})]

    def _compute_wall_s(self, one: Entry) -> int | None:
        """How long a member may take on the smallest instance that holds it; None for no limit."""
        need, subject = one
        policy = self._question.policy
        seat = find_smallest_seat(subject, self._seats)
        assert seat is not None
        return compute_wall_limit_s(slow_down(need, subject, seat, policy), self._places, policy)


# ----
# Packs on a MIG layout that was asked for, and packs that only unequal instances hold; pure.

_MERGED_MOST = 24
"""Packs up to which it is looked for two that unequal instances would hold."""


def plan_on_layout(question: Question, needs: Sequence[Need], layout: str) -> list[PackPlan]:
    """Packs of jobs on a layout that the user named, in the user's order.

    Args:
        question: What planning is asked.
        needs: What the jobs need.
        layout: Its words.

    Raises:
        UsageProblem: The GPU has no such layout.
        NoPackPossible: A job fits none of its instances.
    """
    gpu = find_planned_gpu(question, [need.index for need in needs])
    if not gpu.has_memory:
        gpu = recognise_gpu(layout) or gpu
    seats = read_seats(layout, gpu)
    labels = label_jobs((job.name, job.number) for job in question.jobs)
    open_packs: list[OpenLayout] = []
    for need in needs:
        subject = build_subject(question, need.index)
        _check_fit(labels[need.index], subject, seats, layout)
        one = (need, subject)
        taking = next((pack for pack in open_packs if not pack.find_refusal(one)), None)
        if taking is None:
            open_packs.append(OpenLayout(question, seats, one))
        else:
            taking.add(one)
    return [_build(question, pack, seats, gpu) for pack in open_packs]


def _check_fit(name: str, subject: Subject, seats: Sequence[Seat], layout: str) -> None:
    """See that a job fits an instance of a layout.

    Raises:
        NoPackPossible: It does not, with by how much it is too large for the largest.
    """
    if any(fits(subject, seat) for seat in seats):
        return
    largest = max(seats, key=lambda seat: seat.room_mb or 0)
    need_mb, room_mb = subject.gpu_memory_mb or 0, largest.room_mb or 0
    raise NoPackPossible(
        f"{name} needs {need_mb} MB of GPU memory, and the largest instance of --share=mig="
        f"{layout}, {largest.profile.name}, has room for {room_mb} MB: {need_mb - room_mb} MB too "
        "little",
        hint="name a larger instance in --share, or submit this job with another --share",
    )


def _build(
    question: Question,
    pack: OpenLayout,
    seats: Sequence[Seat],
    gpu: PlannedGpu,
) -> PackPlan:
    if len(pack.members) == 1:
        index = pack.members[0][0].index
        return build_lone_pack(index, question.jobs[index], "no other job fits with it")
    ordered, at_once = pack.order()
    needs, subjects = map(list, zip(*ordered, strict=True))
    planned = plan_seats(question, subjects, seats, at_once, gpu)
    assert planned is not None
    notes = []
    if len(subjects) > at_once:
        left = len(subjects) - at_once
        notes.append(
            f"{format_count(left, 'member')} wait{'s' if left == 1 else ''} until an instance "
            "that is large enough is free"
        )
    if at_once > len(seats):
        notes.append(_describe_sharing(planned))
    return build_instance_pack(question, needs, subjects, planned, notes=notes)


def _describe_sharing(planned: InstancePlan) -> str:
    """Who shares an instance, in a sentence."""
    counts = [planned.layout.seating.places.count(at) for at in range(len(planned.layout.seats))]
    told = [
        f"{count} on {seat.word}{_describe_crowding(planned, seat)}"
        for seat, count in zip(planned.layout.seats, counts, strict=True)
        if count > 1
    ]
    return (
        f"members share instances by MPS, each with a daemon of its own: {', '.join(told)}. A "
        "fault on the GPU ends all members of its instance, and none of another"
    )


def _describe_crowding(planned: InstancePlan, seat: Seat) -> str:
    """How much slower its members make each other, as the end of a phrase; empty where unknown."""
    if planned.crowding is None:
        return ""
    slower = [
        times for times, its in zip(planned.crowding, planned.seats, strict=True) if its == seat
    ]
    low, high = f"{min(slower):.2f}", f"{max(slower):.2f}"
    return f" ({low if low == high else f'{low} to {high}'} times slower than alone there)"


def merge_parts(
    question: Question,
    subjects: Sequence[Subject],
    parts: Sequence[tuple[int, ...]],
    limits: Limits,
    *,
    always: bool = False,
) -> list[tuple[int, ...]]:
    """Parts that hold the GPU for less time together, where unequal instances hold them.

    The search makes packs of equal instances. A job that needs a larger one than those can still
    sit with small ones: two parts become one as long as that saves most.

    Args:
        question: What planning is asked.
        subjects: The jobs of known load.
        parts: The packs, by positions in them.
        limits: What one GPU has.
        always: Also where equal instances would do: these parts were not made of such.
    """
    merged = list(parts)
    is_wanted = always or _is_memory_in_the_way(question, subjects)
    if len(merged) > _MERGED_MOST or not is_wanted:
        return merged
    walls = replace(limits, has_instances=False)
    while True:
        best: tuple[float, int, int] | None = None
        for one in range(len(merged)):
            for other in range(one + 1, len(merged)):
                saved = _compute_saving(question, subjects, merged[one], merged[other], walls)
                if saved > 0 and (best is None or saved > best[0]):
                    best = saved, one, other
        if best is None:
            return merged
        _, one, other = best
        together = (*merged[one], *merged[other])
        merged = [part for at, part in enumerate(merged) if at not in (one, other)]
        merged.insert(one, together)


def _is_memory_in_the_way(question: Question, subjects: Sequence[Subject]) -> bool:
    gpu: PlannedGpu = find_planned_gpu(question, [subject.index for subject in subjects])
    smallest = min(gpu.profiles, key=lambda profile: profile.memory_mb)
    room_mb = gpu.compute_room_mb(smallest)
    return room_mb is not None and any((s.gpu_memory_mb or 0) > room_mb for s in subjects)


def _compute_saving(
    question: Question,
    subjects: Sequence[Subject],
    one: Sequence[int],
    other: Sequence[int],
    limits: Limits,
) -> float:
    """Seconds of the GPU that two parts would take less as one; 0 where they cannot be one."""
    members = [subjects[at] for at in (*one, *other)]
    if len(members) > MIG_MEMBERS_MAX or find_broken(members, limits):
        return 0.0
    together_s = _compute_held_s(question, members)
    if together_s is None:
        return 0.0
    margin = max(member.margin for member in members)
    if together_s >= sum(member.run_s for member in members) * (1.0 - margin):
        return 0.0
    apart_s = [_compute_held_s(question, [subjects[at] for at in part]) for part in (one, other)]
    return 0.0 if None in apart_s else sum(s for s in apart_s if s is not None) - together_s


def _compute_held_s(question: Question, members: Sequence[Subject]) -> float | None:
    """How long members hold a GPU; None where instances would not keep their bounds."""
    if len(members) == 1:
        return members[0].run_s
    planned = plan_known(question, members)
    return None if planned is None else compute_gpu_s(planned)


def plan_known(question: Question, members: Sequence[Subject]) -> InstancePlan | None:
    """Members of known load on instances that keep all bounds; None where there are none."""
    planned = plan_seats(question, members)
    if planned is None or planned.slowdowns is None:
        return None
    for member, slowdown in zip(members, planned.slowdowns, strict=True):
        if slowdown * (1.0 + member.margin) > member.max_slowdown * (1.0 + 1e-9):
            return None
    return planned
