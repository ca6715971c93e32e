"""Where the instances of a layout lie on a GPU: exact, by NVML's placements; pure.

That no more than seven compute slices are used follows from the placements. An instance is put as
far back as it goes: what stays free is at the front, where the large profiles begin.
"""

from __future__ import annotations

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
    found = _search(wanted, taken, set())
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
    masks = [one.placement.mask for one in kinds]
    layouts = []
    for chosen, taken in _extend(kinds, masks, (), 0):
        free = [one for one, mask in zip(kinds, masks, strict=True) if not mask & taken]
        layout = [kinds[number].profile for number in chosen]
        if not any(_are_allowed([*layout, one.profile]) for one in free):
            layouts.append(tuple(kinds[number] for number in chosen))
    return tuple(layouts)


def _rank(profile: InstanceProfile) -> tuple[int, int, int]:
    """Biggest first: by memory, then by compute slices; equal profiles side by side."""
    return (-profile.memory_slices, -profile.compute_slices, profile.profile_id)


def _are_allowed(profiles: Sequence[InstanceProfile]) -> bool:
    """Whether a GPU has so many of each, wherever they lie."""
    ids = [profile.profile_id for profile in profiles]
    return all(ids.count(profile.profile_id) <= profile.instances_max for profile in profiles) and (
        sum(profile.media_extensions for profile in profiles) <= 1
    )


def _search(
    wanted: Sequence[InstanceProfile], taken: int, dead: set[tuple[int, int]]
) -> tuple[Placement, ...] | None:
    """Places for what is wanted; `dead` has how many were left, and where none was free for all."""
    if not wanted:
        return ()
    if (len(wanted), taken) in dead:
        return None
    for placement in sorted(wanted[0].placements, reverse=True):
        if not placement.mask & taken:
            rest = _search(wanted[1:], taken | placement.mask, dead)
            if rest is not None:
                return (placement, *rest)
    dead.add((len(wanted), taken))
    return None


def _extend(
    kinds: Sequence[PlacedInstance], masks: Sequence[int], chosen: tuple[int, ...], taken: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """All allowed layouts, each with the slices that it takes."""
    yield chosen, taken
    for number in range(chosen[-1] + 1 if chosen else 0, len(kinds)):
        if not masks[number] & taken:
            longer = (*chosen, number)
            if _are_allowed([kinds[one].profile for one in longer]):
                yield from _extend(kinds, masks, longer, taken | masks[number])
