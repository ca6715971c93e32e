"""Packs on a MIG layout that was asked for, and packs that only unequal instances hold; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.plan import PackPlan
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.planning.job_needs import Need, Question, build_subject, label_jobs
from slurm_colloc.planning.limits.hard_limits import find_broken
from slurm_colloc.planning.mig.instance_packs import (
    InstancePlan,
    build_instance_pack,
    compute_gpu_s,
    find_larger_seat,
    plan_seats,
)
from slurm_colloc.planning.mig.open_layout import OpenLayout, count_places
from slurm_colloc.planning.mig.planned_gpu import PlannedGpu, find_planned_gpu, recognise_gpu
from slurm_colloc.planning.mig.seat_members import fits
from slurm_colloc.planning.mig.seats import Seat, read_seats
from slurm_colloc.planning.pack_request import build_lone_pack, describe_count
from slurm_colloc.planning.priced_packs import MIG_MEMBERS_MAX, Limits, Subject

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
        NoPackPossible: A job fits none of its instances, and no other way is allowed.
    """
    gpu = find_planned_gpu(question, [need.index for need in needs])
    if not gpu.has_memory:
        gpu = recognise_gpu(layout) or gpu
    seats = read_seats(layout, gpu)
    labels = label_jobs((job.name, job.number) for job in question.jobs)
    packs: list[PackPlan] = []
    open_packs: list[OpenLayout] = []
    for need in needs:
        subject = build_subject(question, need.index)
        misfit = describe_misfit(labels[need.index], subject, seats)
        is_shared = count_places(question.policy, seats) > len(seats)
        may_wait = bool(question.policy.pack_size) and not is_shared
        if misfit and may_wait and find_larger_seat(subject, gpu):
            # It waits until those that end have left it enough slices: an MPS server has none.
            misfit = ""
        if misfit:
            if ShareRequest.parse(question.policy.share).strict:
                raise NoPackPossible(misfit, hint="name a larger instance, or leave the ! out")
            packs.append(build_lone_pack(need.index, question.jobs[need.index], misfit))
            continue
        one = (need, subject)
        taking = next((pack for pack in open_packs if not pack.find_refusal(one)), None)
        if taking is None:
            open_packs.append(OpenLayout(question, seats, one))
        else:
            taking.add(one)
    return packs + [_build(question, pack, seats, gpu) for pack in open_packs]


def describe_misfit(name: str, subject: Subject, seats: Sequence[Seat]) -> str:
    """By how much a job is too large for each instance; empty where it fits one."""
    if any(fits(subject, seat) for seat in seats):
        return ""
    largest = max(seats, key=lambda seat: seat.room_mb or 0)
    need_mb, room_mb = subject.gpu_memory_mb or 0, largest.room_mb or 0
    return (
        f"{name} needs {need_mb} MB of GPU memory, and the largest instance of the layout, "
        f"{largest.profile.name}, has room for {room_mb} MB: {need_mb - room_mb} MB too little"
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
            f"{describe_count(left, 'member')} wait{'s' if left == 1 else ''} until an instance "
            "that is large enough is free, or can be made of free ones"
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
    walls = dataclasses.replace(limits, has_instances=False)
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
