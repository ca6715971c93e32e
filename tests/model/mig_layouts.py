"""All layouts of a GPU, to compare what places instances with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import InstanceProfile, PlacedInstance


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
    kinds.sort(key=lambda one: (one.placement.start, -one.placement.size, one.profile.profile_id))
    return tuple(
        layout
        for layout in _extend(kinds, 0, ())
        if not any(place([profile], layout) for profile in profiles)
    )


def _extend(
    kinds: Sequence[PlacedInstance], first: int, chosen: tuple[PlacedInstance, ...]
) -> Iterator[tuple[PlacedInstance, ...]]:
    """All allowed layouts that begin with these."""
    yield chosen
    taken = sum(one.placement.mask for one in chosen)
    for number in range(first, len(kinds)):
        longer = (*chosen, kinds[number])
        if not kinds[number].placement.mask & taken and place([], longer) is not None:
            yield from _extend(kinds, number + 1, longer)
