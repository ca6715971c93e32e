"""How a simulated GPU can be partitioned, as the text that nvml_mig_state.c reads; pure.

Profiles are those of `MIG_TABLES`. What NVML says of a profile beyond them is here: its number
in NVML's enumeration, and its engines. Engines of the H100 were read from NVML (580.159.04, MIG
off); the others are as NVIDIA's MIG guide and listings of `nvidia-smi mig -lgip` print them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.mig_profiles import InstanceProfile

KNOWN_PROFILES = 17
"""Driver 580 knows no profile from this number on."""

_NUMBERS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
_MEDIA_NUMBERS = {1: 7, 2: 8}
_DOUBLE_NUMBER = 9


@dataclass(frozen=True)
class Engines:
    """Engines of an instance.

    Args:
        copy: For copies.
        decoders: NVDEC.
        jpegs: NVJPG.
        ofas: Optical flow.
    """

    copy: int
    decoders: int
    jpegs: int
    ofas: int


_SEVEN_G = {
    "A100": Engines(7, 5, 1, 1),
    "H": Engines(8, 7, 7, 1),
    "B200": Engines(16, 1, 1, 1),
}
_AMPERE_DECODERS = {1: 0, 2: 1, 3: 2, 4: 2}
_BLACKWELL_COPY = {1: 2, 2: 3, 3: 6, 4: 8}


def choose_engines(table: str, profile: InstanceProfile) -> Engines:
    """The engines of a profile.

    Args:
        table: Which of `MIG_TABLES` it is of.
        profile: The profile.
    """
    slices, media = profile.compute_slices, int(profile.media_extensions)
    if table == "A30":
        all_of_it = media or int(slices == 4)
        return Engines(slices, slices, all_of_it, all_of_it)
    family = "H" if table.startswith("H") else table.partition("-")[0]
    if slices == 7:
        return _SEVEN_G[family]
    if family == "H":
        return Engines(slices, slices, slices, media)
    if family == "B200":
        return Engines(_BLACKWELL_COPY[slices], 1, 1, media)
    doubled = slices == 1 and profile.memory_slices == 2
    return Engines(slices, max(media, int(doubled), _AMPERE_DECODERS[slices]), media, media)


def choose_number(profile: InstanceProfile) -> int:
    """A profile's number in NVML's enumeration, NVML_GPU_INSTANCE_PROFILE_*."""
    if profile.media_extensions:
        return _MEDIA_NUMBERS[profile.compute_slices]
    if profile.compute_slices == 1 and profile.memory_slices == 2:
        return _DOUBLE_NUMBER
    return _NUMBERS[profile.compute_slices]


def name_by_memory(profile: InstanceProfile) -> str:
    """A profile's name as drivers wrote it that did not round its memory to the board's.

    With them an A100's 3g.40gb, which has 39.25 GiB, is 3g.39gb (mig-parted, issue 31).
    """
    gigabytes = math.floor(profile.memory_mb / 1024 + 0.5)
    return f"{profile.compute_slices}g.{gigabytes}gb{profile.attributes}"


def render_profiles(
    table: str, profiles: Sequence[InstanceProfile], *, by_memory: bool = False
) -> str:
    """The file that tells NVML a GPU's profiles.

    Args:
        table: Which of `MIG_TABLES` they are.
        profiles: The table.
        by_memory: Names without the driver's rounding.
    """
    lines = [f"known_profiles={KNOWN_PROFILES}"]
    for profile in profiles:
        engines = choose_engines(table, profile)
        numbers = (
            choose_number(profile),
            profile.profile_id,
            profile.compute_slices,
            profile.memory_slices,
            profile.instances_max,
            profile.sms,
            engines.copy,
            engines.decoders,
            0,
            engines.jpegs,
            engines.ofas,
            profile.memory_mb,
            int(profile.media_extensions),
        )
        name = name_by_memory(profile) if by_memory else profile.name
        starts = ",".join(str(place.start) for place in profile.placements)
        lines.append(f"profile={' '.join(map(str, numbers))} {name} {starts}")
    return "".join(f"{line}\n" for line in lines)
