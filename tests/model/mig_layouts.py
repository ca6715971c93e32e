"""All layouts of a GPU, to compare what places instances with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        if not any(_goes_on_top(one, layout) for one in kinds)
    )


def _extend(
    kinds: Sequence[PlacedInstance], first: int, chosen: tuple[PlacedInstance, ...]
) -> Iterator[tuple[PlacedInstance, ...]]:
    """All allowed layouts that begin with these."""
    yield chosen
    for number in range(first, len(kinds)):
        if _goes_on_top(kinds[number], chosen):
            yield from _extend(kinds, number + 1, (*chosen, kinds[number]))


def _goes_on_top(one: PlacedInstance, layout: Sequence[PlacedInstance]) -> bool:
    """Whether an instance may stand where it lies, in addition to a layout."""
    profiles = [one.profile, *(other.profile for other in layout)]
    return (
        not any(one.placement.mask & other.placement.mask for other in layout)
        and profiles.count(one.profile) <= one.profile.instances_max
        and sum(profile.media_extensions for profile in profiles) <= 1
    )
