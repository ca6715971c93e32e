"""The MIG layout for the members that run at once: all layouts by the GPU's placements; pure.

Also: several members on one MIG instance, by MPS inside it: who with whom, and how fast; what walls
cost the members of a pack, or save them, against MPS.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import InstanceProfile, PlacedInstance
from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.model.usage_profile import Calibration, Load
from slurm_colloc.planning.broken_limits import Weighing, list_too_slow
from slurm_colloc.planning.hard_limits import Limits, Subject
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.pack_pricing import PLAIN, SETUP_S, build_families, predict_in
from slurm_colloc.planning.pack_request import compute_thread_percentage
from slurm_colloc.planning.planned_gpu import PlannedGpu
from slurm_colloc.planning.seats import (
    Seat,
    Seating,
    build_seats,
    compute_bound_share,
    compute_own_slowdown,
    seat_members,
)


@dataclass(frozen=True)
class SeatedLayout:
    """A layout with its members.

    Attributes:
        seats: The seats, the biggest first.
        seating: Which member has which.
    """

    seats: tuple[Seat, ...]
    seating: Seating

    @property
    def words(self) -> tuple[str, ...]:
        """The layout."""
        return tuple(seat.word for seat in self.seats)

    def find_seat(self, member: int) -> Seat:
        """The seat of a member, by its place among the members."""
        return self.seats[self.seating.places[member]]


@functools.lru_cache(maxsize=64)
def list_layouts(
    profiles: tuple[InstanceProfile, ...], count: int
) -> tuple[tuple[PlacedInstance, ...], ...]:
    """All layouts of so many instances in which none could be replaced by a larger one.

    Args:
        profiles: What the GPU has.
        count: Instances.
    """
    ordered = sorted(profiles, key=lambda p: (p.memory_slices, p.sms))
    found: dict[tuple[int, ...], tuple[PlacedInstance, ...]] = {}

    def extend(chosen: tuple[int, ...], start: int) -> None:
        if len(chosen) == count:
            placed = place([ordered[number] for number in chosen])
            if placed is not None:
                found[chosen] = placed
            return
        for number in range(start, len(ordered)):
            if place([ordered[n] for n in (*chosen, number)]) is None:
                continue
            extend((*chosen, number), number)

    extend((), 0)
    return tuple(
        placed
        for chosen, placed in found.items()
        if not any(
            tuple(sorted((*chosen[:at], more, *chosen[at + 1 :]))) in found
            for at, number in enumerate(chosen)
            for more in range(len(ordered))
            if _is_larger(ordered[more], ordered[number])
        )
    )


def _is_larger(one: InstanceProfile, other: InstanceProfile) -> bool:
    """Whether an instance has at least as much of both, and more of one."""
    mine, its = (one.memory_mb, one.sms), (other.memory_mb, other.sms)
    return mine != its and mine[0] >= its[0] and mine[1] >= its[1]


def choose_layout(subjects: Sequence[Subject], gpu: PlannedGpu) -> SeatedLayout | None:
    """The layout on which these members, all at once, keep their bounds best and end first.

    Args:
        subjects: The members.
        gpu: The GPU.

    Returns:
        The layout; None where no layout has an instance for each.
    """
    best: SeatedLayout | None = None
    for placed in list_layouts(gpu.profiles, len(subjects)):
        seats = build_seats(placed, gpu)
        seating = seat_members(subjects, seats)
        if seating is not None and (best is None or seating.rank < best.seating.rank):
            best = SeatedLayout(seats, seating)
    return best


def find_misfit(needs_mb: Sequence[int | None], gpu: PlannedGpu) -> tuple[int, int] | None:
    """Whether each of some needs can have an instance at once.

    An instance of the least memory that is enough takes the least of the GPU, so no other layout
    has to be tried.

    Args:
        needs_mb: GPU memory that jobs need, in MB; None where unknown, which any instance has.
        gpu: The GPU.

    Returns:
        None where they can; else the need that is in the way, and what an instance may have for
        it alongside the others, both in MB.
    """
    ordered = sorted((need or 0 for need in needs_mb), reverse=True)
    smallest = sorted(gpu.profiles, key=lambda p: (p.memory_slices, p.compute_slices))
    for count in range(1, len(ordered) + 1):
        chosen = []
        for need in ordered[:count]:
            enough = (p for p in smallest if need <= (gpu.compute_room_mb(p) or need))
            profile = next(enough, None)
            if profile is None:
                return need, max(gpu.compute_room_mb(p) or 0 for p in smallest)
            chosen.append(profile)
        rest = [smallest[0]] * (len(ordered) - count)
        if place([*chosen, *rest]) is None:
            others = [*chosen[:-1], *rest]
            rooms = [
                gpu.compute_room_mb(p) or 0 for p in smallest if place([*others, p]) is not None
            ]
            return ordered[count - 1], max(rooms, default=0)
    return None


# ---- Several members on one MIG instance, by MPS inside it: who with whom, and how fast; pure ----
#
# Only where the user asks for more members at once than the layout has instances, and the site
# allows MPS inside instances.

_FULL = 100


def share_seats(subjects: Sequence[Subject], seats: Sequence[Seat]) -> Seating | None:
    """Put members onto seats, several on one where there are more of them than seats.

    Those that need most memory first, each onto the seat where most is left for it: of what
    members are bound by, and of the instance's memory. That is no search: what it would gain is
    less than what is known of how members share an instance.

    Args:
        subjects: The members.
        seats: The seats.

    Returns:
        Who sits where; None where their memory does not suffice for all at once.
    """
    if len(subjects) <= len(seats):
        return seat_members(subjects, seats)
    order = sorted(
        range(len(subjects)),
        key=lambda at: (-(subjects[at].gpu_memory_mb or 0), -compute_bound_share(subjects[at]), at),
    )
    left_mb = [seat.room_mb for seat in seats]
    crowds = [0.0] * len(seats)
    counts = [0] * len(seats)
    places = [0] * len(subjects)
    for at in order:
        need_mb, share = subjects[at].gpu_memory_mb or 0, compute_bound_share(subjects[at])
        open_seats = [n for n, left in enumerate(left_mb) if left is None or need_mb <= left]
        if not open_seats:
            return None
        found = min(
            open_seats, key=lambda n: ((crowds[n] + share) * seats[n].stretch, counts[n], n)
        )
        left = left_mb[found]
        left_mb[found] = None if left is None else left - need_mb
        crowds[found] += share
        counts[found] += 1
        places[at] = found
    taken = [
        subject.run_s * compute_own_slowdown(subject, seats[place])
        for subject, place in zip(subjects, places, strict=True)
    ]
    return Seating(tuple(places), 0.0, max(taken), sum(taken))


def predict_neighbours(
    subjects: Sequence[Subject], seat: Seat, calibration: Calibration | None
) -> tuple[float, ...] | None:
    """How much slower members are by those who share their instance, against alone on it.

    The contention model of MPS, with the instance's SMs and DRAM as the whole: what a job takes of
    either fills more of them, and lasts longer, too.

    Args:
        subjects: Those on one instance.
        seat: The instance.
        calibration: How jobs slow each other down on the whole GPU.

    Returns:
        Of each; None where a load or the model is unknown.
    """
    if len(subjects) < 2:
        return (1.0,) * len(subjects)
    loads = [_scale(subject, seat) for subject in subjects if subject.load is not None]
    families = build_families(calibration, (SharingMode.MPS,))
    if len(loads) < len(subjects) or not families:
        return None
    percentage = compute_thread_percentage(len(loads), SharingMode.MPS) or _FULL
    return tuple(
        predict_in(
            families[0],
            loads,
            [percentage] * len(loads),
            PLAIN,
        )
    )


def predict_crowding(
    subjects: Sequence[Subject],
    seats: Sequence[Seat],
    first: Sequence[int],
    layout: SeatedLayout,
    calibration: Calibration | None,
) -> tuple[float, ...] | None:
    """How much slower each member is by those who share its instance; None where one is unknown.

    Args:
        subjects: The members.
        seats: Theirs.
        first: Places of those that run at once, in the order of the layout's seating.
        layout: Where those sit.
        calibration: How jobs slow each other down on the whole GPU.
    """
    found = [1.0] * len(subjects)
    for number, seat in enumerate(layout.seats):
        mine = [
            at for at, place in zip(first, layout.seating.places, strict=True) if place == number
        ]
        slower = predict_neighbours([subjects[at] for at in mine], seat, calibration)
        if slower is None:
            return None
        for at, times in zip(mine, slower, strict=True):
            found[at] = times
        # One that waits has the place of the first of them that ends, and the others around it.
        others = sorted(mine, key=lambda at: subjects[at].run_s * found[at])[1:]
        for at, its in enumerate(seats):
            if its == seat and at not in first:
                crowd = [subjects[one] for one in (at, *others)]
                slower = predict_neighbours(crowd, seat, calibration)
                if slower is None:
                    return None
                found[at] = slower[0]
    return tuple(found)


def _scale(subject: Subject, seat: Seat) -> Load:
    """What a job takes of an instance, alone on it: of its SMs and its bandwidth as the whole."""
    load = subject.load
    assert load is not None
    own = compute_own_slowdown(subject, seat)
    sm, dram = seat.sm_share * own, seat.dram_share * own
    return replace(
        load,
        # What the host takes of a step stays as long as on the whole GPU.
        engine=1.0 - (1.0 - load.engine) / own,
        sm=min(1.0, load.sm / sm),
        dram=min(1.0, load.dram / dram),
        tensor=min(1.0, load.tensor / sm),
        # What all members copy and read is counted for the whole GPU.
        pcie=0.0,
        disk=0.0,
    )


# ---- What walls cost the members of a pack, or save them, against MPS; pure ----------------------

_UNKNOWN = (
    "what MIG costs them compared with MPS is not known: their load has not been measured. In MIG "
    "instances none can use what another leaves idle, and none can take bandwidth from another"
)


def describe_cost_of_walls(
    question: Question,
    subjects: Sequence[Subject],
    duration_s: float | None,
    slowdowns: Sequence[float] | None,
) -> str:
    """What instances cost against MPS, and why, in a sentence.

    Args:
        question: What planning is asked.
        subjects: The members.
        duration_s: Until the last of them ends on its instance; None where unknown.
        slowdowns: Theirs there; None where unknown.
    """
    if duration_s is None or slowdowns is None:
        return _UNKNOWN
    weighing = Weighing(
        subjects, Limits(), question.calibration, goal=Goal.THROUGHPUT, modes=(SharingMode.MPS,)
    )
    free = weighing.price_freely(range(len(subjects)))
    if free is None:
        return _UNKNOWN
    mig_s = duration_s + SETUP_S[SharingMode.MIG]
    change = 100.0 * (mig_s / free.gpu_s - 1.0)
    told = (
        f"compared with MPS: {mig_s:.0f} s of the GPU, {SETUP_S[SharingMode.MIG]:.0f} s of it for "
        f"dividing it, where MPS would take {free.gpu_s:.0f} s ({_describe_change(change)})"
    )
    names = [question.jobs[subject.index].name for subject in subjects]
    passed = list_too_slow(names, subjects, free.slowdowns)
    worst = f"{max(free.slowdowns):.2f} by MPS, {max(slowdowns):.2f} by MIG"
    told += f"; the slowest member {worst}"
    if passed and not list_too_slow(names, subjects, slowdowns):
        return f"{told}: MPS would break its bound, an instance keeps it"
    if change > 0:
        return f"{told}: none can use what another leaves idle"
    return f"{told}: none takes SMs or bandwidth from another"


def _describe_change(percent: float) -> str:
    if round(percent) == 0:
        return "as long"
    return f"{abs(percent):.0f} % {'more' if percent > 0 else 'less'}"
