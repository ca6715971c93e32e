"""Packs whose members have MIG instances of their own: one function makes all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from slurm_colloc.model.mig.mig_layout import place as find_places
from slurm_colloc.model.mig.planned_seat import PlannedSeat
from slurm_colloc.model.plan import (
    PackPlan,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.planning.job_needs import Need, Question, are_timed, choose_bound
from slurm_colloc.planning.mig.choose_layout import SeatedLayout, choose_layout
from slurm_colloc.planning.mig.compare_with_mps import describe_cost_of_walls
from slurm_colloc.planning.mig.planned_gpu import PlannedGpu, find_planned_gpu
from slurm_colloc.planning.mig.seat_members import compute_own_slowdown, fits
from slurm_colloc.planning.mig.seats import Seat, build_seats
from slurm_colloc.planning.mig.shared_seats import predict_crowding, share_seats
from slurm_colloc.planning.pack_description import describe_bounds, describe_sources
from slurm_colloc.planning.pack_request import Prediction, build_pack
from slurm_colloc.planning.predict.sharing_ways import PLAIN, SETUP_S, build_families, predict_in
from slurm_colloc.planning.priced_packs import Subject
from slurm_colloc.planning.time_limits import SLOWDOWN_MARGIN

_ALL = 100


@dataclasses.dataclass(frozen=True)
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
        if seat is None and seats:
            seat = find_larger_seat(subject, gpu)
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


def find_larger_seat(subject: Subject, gpu: PlannedGpu) -> Seat | None:
    """The smallest instance of the GPU that holds a job, whatever the layout; None for none."""
    every = [
        build_seats(placed, gpu)[0]
        for profile in gpu.profiles
        if (placed := find_places([profile])) is not None
    ]
    return find_smallest_seat(subject, every)


def predict_on(
    question: Question, subjects: Sequence[Subject], seats: Sequence[Seat]
) -> tuple[float, ...] | None:
    """Slowdowns on these seats; None where a load is unknown.

    Instances have SMs and DRAM of their own; PCIe, host and power are common.
    """
    loads = [subject.load for subject in subjects if subject.load is not None]
    families = build_families(question.calibration, (SharingMode.MIG,))
    if len(loads) < len(subjects) or not families or question.calibration is None:
        return None
    idle_w, limit_w = question.calibration.idle_power_w, question.calibration.power_limit_w
    room_w = max(0.0, limit_w - idle_w) if idle_w is not None and limit_w is not None else None
    common = predict_in(
        families[0],
        loads,
        [_ALL] * len(loads),
        PLAIN,
        cores=float(sum(subject.cpus for subject in subjects)),
        power_room_w=room_w,
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
        dataclasses.replace(
            member,
            instance=seat.word,
            max_slowdown=None if member.max_slowdown is None else choose_bound(need, policy),
        )
        for member, seat, need in zip(pack.members, planned.seats, needs, strict=True)
    )
    return dataclasses.replace(pack, members=members, layout=describe_seats(planned))


def _list_allowed(
    planned: InstancePlan, subjects: Sequence[Subject]
) -> tuple[tuple[int, ...], ...]:
    """The places that each member may have: those on instances that hold it, the first in turn.

    One that needs a larger instance than stands has it made of all.
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
    return dataclasses.replace(need, max_slowdown=bound)


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
