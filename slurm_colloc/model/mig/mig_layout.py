"""Where the instances of a layout lie on a GPU: exact, by NVML's placements; pure.

That no more than seven compute slices are used follows from the placements. An instance is put as
far back as it goes: what stays free is at the front, where the large profiles begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from slurm_colloc.model.mig.mig_profiles import InstanceProfile, PlacedInstance, Placement


def place(
    profiles: Sequence[InstanceProfile], occupied: Sequence[PlacedInstance] = ()
) -> tuple[PlacedInstance, ...] | None:
    """Find a place for each instance.

    Args:
        profiles: What is wanted, in any order.
        occupied: What stands already, and stays.

    Returns:
        The instances, the biggest first, as they have to be made; None where they do not fit.
    """
    wanted = sorted(profiles, key=_rank)
    taken = 0
    for instance in occupied:
        taken |= instance.placement.mask
    if not _are_allowed([*wanted, *(instance.profile for instance in occupied)]):
        return None
    found = _search(wanted, taken, None)
    if found is None:
        return None
    return tuple(map(PlacedInstance, wanted, found))


def enumerate_layouts(
    profiles: Sequence[InstanceProfile],
) -> tuple[tuple[PlacedInstance, ...], ...]:
    """All layouts into which no further instance fits, each by where its instances lie.

    A seven-slice GPU has 19 with its plain profiles, 1g to 7g, as NVIDIA's guide counts them; each
    is in the order of its placements.
    """
    kinds = [
        PlacedInstance(profile, placement)
        for profile in profiles
        for placement in profile.placements
    ]
    kinds.sort(key=lambda one: (one.placement.start, _rank(one.profile)))
    return tuple(layout for layout in _extend(kinds, (), 0, 0) if not _has_room(kinds, layout))


def _rank(profile: InstanceProfile) -> tuple[int, int, int]:
    """Biggest first: by memory, then by compute slices; equal profiles side by side."""
    return (-profile.memory_slices, -profile.compute_slices, profile.profile_id)


def _are_allowed(profiles: Sequence[InstanceProfile]) -> bool:
    """Whether a GPU has so many of each, wherever they lie."""
    counts = Counter(profile.profile_id for profile in profiles)
    return all(counts[profile.profile_id] <= profile.instances_max for profile in profiles) and (
        sum(profile.media_extensions for profile in profiles) <= 1
    )


def _search(
    wanted: Sequence[InstanceProfile], taken: int, before: PlacedInstance | None
) -> tuple[Placement, ...] | None:
    if not wanted:
        return ()
    first = wanted[0]
    for placement in sorted(first.placements, reverse=True):
        if placement.mask & taken:
            continue
        # Equal instances are interchangeable: only one order of them is tried.
        if before is not None and before.profile == first and placement > before.placement:
            continue
        rest = _search(wanted[1:], taken | placement.mask, PlacedInstance(first, placement))
        if rest is not None:
            return (placement, *rest)
    return None


def _extend(
    kinds: Sequence[PlacedInstance], chosen: tuple[PlacedInstance, ...], taken: int, start: int
) -> Iterator[tuple[PlacedInstance, ...]]:
    yield chosen
    for number in range(start, len(kinds)):
        one = kinds[number]
        if _fits(one, chosen, taken):
            yield from _extend(kinds, (*chosen, one), taken | one.placement.mask, number + 1)


def _fits(one: PlacedInstance, chosen: Sequence[PlacedInstance], taken: int) -> bool:
    return not one.placement.mask & taken and _are_allowed(
        [one.profile, *(other.profile for other in chosen)]
    )


def _has_room(kinds: Sequence[PlacedInstance], chosen: Sequence[PlacedInstance]) -> bool:
    taken = 0
    for one in chosen:
        taken |= one.placement.mask
    return any(_fits(one, chosen, taken) for one in kinds)
