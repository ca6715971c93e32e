"""What a GPU can be cut into: MIG profiles, where they may lie, and what lies where; pure.

Names, sizes and placements are NVML's on the GPU itself: they differ between boards and drivers
(3g.40gb became 3g.39gb and back). Memory slices are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ATTRIBUTES = ("+me.all", "+me", "-me", "+gfx")
"""What may follow a profile's size: media engines, all of them or none, graphics."""

_ATTRIBUTE = "|".join(map(re.escape, ATTRIBUTES))
PROFILE_WORD = rf"[12347]g(?:\.[1-9][0-9]{{0,2}}gb)?(?:{_ATTRIBUTE})?"
"""A profile's name, its memory left out or not."""

_NAME = re.compile(rf"(?P<slices>[0-9]+)g\.(?P<memory_gb>[0-9]+)gb(?P<attribute>{_ATTRIBUTE})?")


@dataclass(frozen=True, order=True)
class Placement:
    """Memory slices that lie side by side.

    Args:
        start: The first.
        size: How many.
    """

    start: int
    size: int

    @property
    def mask(self) -> int:
        """Its slices as bits."""
        return ((1 << self.size) - 1) << self.start


@dataclass(frozen=True)
class InstanceProfile:
    """One kind of GPU instance.

    Args:
        profile_id: NVML's id, such as 9; not its enumeration's number.
        name: NVML's name without `MIG `: 3g.40gb, 1g.10gb+me.
        compute_slices: What computes.
        memory_slices: What it takes of the memory.
        memory_mb: Its gpu_memory (MiB).
        sms: Its streaming multiprocessors.
        instances_max: How many an empty GPU takes.
        placements: Where one may lie.
        media_extensions: It has the media engines that only one instance can have.
    """

    profile_id: int
    name: str
    compute_slices: int
    memory_slices: int
    memory_mb: int
    sms: int
    instances_max: int
    placements: tuple[Placement, ...]
    media_extensions: bool = False

    @property
    def memory_gb(self) -> int | None:
        """The gigabytes in its name; None where its name has none."""
        match = _NAME.fullmatch(self.name)
        return None if match is None else int(match["memory_gb"])

    @property
    def attributes(self) -> str:
        """What follows the size in its name, such as `+me`; empty for nothing."""
        match = _NAME.fullmatch(self.name)
        return "" if match is None else match["attribute"] or ""


@dataclass(frozen=True)
class PlacedInstance:
    """A GPU instance and where it lies.

    Args:
        profile: Its kind.
        placement: Its memory slices.
    """

    profile: InstanceProfile
    placement: Placement


def describe_profile(profile: InstanceProfile) -> dict[str, Any]:
    """A profile as the JSON object of setup.json."""
    return {
        **vars(profile),
        "placements": [[place.start, place.size] for place in profile.placements],
    }


def parse_profile(value: Mapping[str, Any]) -> InstanceProfile:
    """Read such an object.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: Likewise.
    """
    numbers = ("profile_id", "compute_slices", "memory_slices", "memory_mb", "sms", "instances_max")
    return InstanceProfile(
        name=str(value["name"]),
        placements=tuple(Placement(int(start), int(size)) for start, size in value["placements"]),
        media_extensions=bool(value["media_extensions"]),
        **{name: int(value[name]) for name in numbers},
    )
