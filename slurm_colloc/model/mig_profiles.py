"""What a GPU can be cut into: MIG profiles, where they may lie, and what lies where; pure.

Also: MIG profiles by GPU model, for where no GPU can be asked: before a node is known.

Names, sizes and placements are NVML's on the GPU itself: they differ between boards and drivers
(3g.40gb became 3g.39gb and back). Memory slices are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.model.comment_token import ATTRIBUTE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- What a GPU can be cut into: MIG profiles, where they may lie, and what lies where; pure -----

_NAME = re.compile(rf"(?P<slices>[0-9]+)g\.(?P<memory_gb>[0-9]+)gb(?P<attribute>{ATTRIBUTE})?")


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


# ---- MIG profiles by GPU model, for where no GPU can be asked: before a node is known ------------
#
# On a node NVML is read instead. The H100's and H200's numbers were read from NVML with driver
# 580.159.04 (MIG off); those of A100, A30 and B200 are as NVIDIA's MIG guide and listings of
# `nvidia-smi mig -lgip` print them.

_SEVEN_SLICES = {
    "1g": (19, 1, 1, 7, (0, 1, 2, 3, 4, 5, 6)),
    "1g+me": (20, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "1g-double": (15, 1, 2, 4, (0, 2, 4, 6)),
    "2g": (14, 2, 2, 3, (0, 2, 4)),
    "3g": (9, 3, 4, 2, (0, 4)),
    "4g": (5, 4, 4, 1, (0,)),
    "7g": (0, 7, 8, 1, (0,)),
}
_FOUR_SLICES = {
    "1g": (14, 1, 1, 4, (0, 1, 2, 3)),
    "1g+me": (21, 1, 1, 1, (0, 1, 2, 3)),
    "2g": (5, 2, 2, 2, (0, 2)),
    "2g+me": (6, 2, 2, 1, (0, 2)),
    "4g": (0, 4, 4, 1, (0,)),
}
"""Of each profile: id, compute slices, memory slices, most instances, starts of placements."""

_SIZES = {
    "A100-40": {
        "1g": (5, 4864, 14),
        "1g-double": (10, 9856, 14),
        "2g": (10, 9856, 28),
        "3g": (20, 19968, 42),
        "4g": (20, 19968, 56),
        "7g": (40, 40192, 98),
    },
    "A100-80": {
        "1g": (10, 9728, 14),
        "1g-double": (20, 19968, 14),
        "2g": (20, 19968, 28),
        "3g": (40, 40192, 42),
        "4g": (40, 40192, 56),
        "7g": (80, 80896, 98),
    },
    "A30": {"1g": (6, 5952, 14), "2g": (12, 11968, 28), "4g": (24, 24000, 56)},
    "H100-80": {
        "1g": (10, 9984, 16),
        "1g-double": (20, 20096, 26),
        "2g": (20, 20096, 32),
        "3g": (40, 40448, 60),
        "4g": (40, 40448, 64),
        "7g": (80, 81152, 132),
    },
    "H200": {
        "1g": (18, 16384, 16),
        "1g-double": (35, 33280, 26),
        "2g": (35, 33280, 32),
        "3g": (71, 71424, 60),
        "4g": (71, 71424, 64),
        "7g": (141, 143360, 132),
    },
    "B200": {
        "1g": (23, 22144, 18),
        "1g-double": (45, 45440, 30),
        "2g": (45, 45440, 36),
        "3g": (90, 91520, 70),
        "4g": (90, 91520, 72),
        "7g": (180, 183040, 148),
    },
}
"""Of each: gigabytes in its name, gpu_memory (MiB), SMs. `+me` is as the one without."""


def _build_table(model: str) -> tuple[InstanceProfile, ...]:
    shapes = _FOUR_SLICES if model == "A30" else _SEVEN_SLICES
    profiles = []
    for kind, (profile_id, compute, memory, most, starts) in shapes.items():
        gigabytes, memory_mb, sms = _SIZES[model][kind.removesuffix("+me")]
        has_media = kind.endswith("+me")
        profiles.append(
            InstanceProfile(
                profile_id,
                f"{compute}g.{gigabytes}gb{'+me' if has_media else ''}",
                compute,
                memory,
                memory_mb,
                sms,
                most,
                tuple(Placement(start, memory) for start in starts),
                has_media,
            )
        )
    return tuple(profiles)


MIG_TABLES: Mapping[str, tuple[InstanceProfile, ...]]
"""Profiles by model: A100-40, A100-80, A30, H100-80, H200, B200."""


def __getattr__(name: str) -> object:
    # They are built where they are asked for, which only few commands do.
    if name != "MIG_TABLES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tables = globals()[name] = {model: _build_table(model) for model in _SIZES}
    return tables


def choose_mig_table(gpu_model: str, gpu_memory_mb: int | None) -> tuple[InstanceProfile, ...]:
    """The table of a GPU by what NVML calls it; empty where there is none.

    Args:
        gpu_model: Such as `NVIDIA H100 80GB HBM3`.
        gpu_memory_mb: All of its memory (MiB); None where unknown.
    """
    from slurm_colloc.model.mig_profiles import MIG_TABLES

    words = gpu_model.upper().replace("-", " ").split()
    for family in ("A30", "H200", "B200", "A100", "H100"):
        if family not in words:
            continue
        if family in MIG_TABLES:
            return MIG_TABLES[family]
        for model, profiles in MIG_TABLES.items():
            largest_mb = max(profile.memory_mb for profile in profiles)
            near = gpu_memory_mb is not None and abs(gpu_memory_mb - largest_mb) < largest_mb // 20
            if model.startswith(f"{family}-") and near:
                return profiles
    return ()
