"""The MIG layout for the members that run at once: all layouts by the GPU's placements; pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.mig.mig_layout import place
from slurm_colloc.model.mig.mig_profiles import InstanceProfile, PlacedInstance
from slurm_colloc.planning.mig.planned_gpu import PlannedGpu
from slurm_colloc.planning.mig.seat_members import Seating, seat_members
from slurm_colloc.planning.mig.seats import Seat, build_seats
from slurm_colloc.planning.priced_packs import Subject


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
