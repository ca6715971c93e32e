"""The seats of a MIG layout: one for each member, with walls around it; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.mig.layout_words import (
    LayoutWord,
    group_words,
    parse_layout,
    resolve_word,
)
from slurm_colloc.model.mig.mig_layout import place
from slurm_colloc.model.mig.mig_profiles import InstanceProfile, PlacedInstance
from slurm_colloc.planning.mig.planned_gpu import PlannedGpu, name_profile

_ROUNDED_GB = 2
"""By how much names of one profile differ between drivers: 3g.40gb is 3g.39gb under 535."""


@dataclass(frozen=True)
class Seat:
    """What one member has of the GPU.

    Attributes:
        word: As it stands in the layout.
        placed: Its GPU instance, and where that lies.
        instance: The number of that, in the layout.
        compute_slices: What it computes with: less than its GPU instance where others share it.
        room_mb: GPU memory that its member's need may fill, in MB; None where unknown.
        sm_share: Its part of the GPU's SMs.
        dram_share: Its part of the GPU's memory slices, and so of the bandwidth of its DRAM.
    """

    word: str
    placed: PlacedInstance
    instance: int
    compute_slices: int
    room_mb: int | None
    sm_share: float
    dram_share: float

    @property
    def stretch(self) -> float:
        """How much slower a job would be on it that is bound by the GPU alone (science: M3)."""
        return (1.0 / self.sm_share + 1.0 / self.dram_share) / 2.0

    @property
    def profile(self) -> InstanceProfile:
        """The profile of its GPU instance."""
        return self.placed.profile


def read_seats(layout: str, gpu: PlannedGpu) -> tuple[Seat, ...]:
    """The seats of a layout that was asked for, in its order.

    Args:
        layout: Its words.
        gpu: The GPU.

    Raises:
        UsageProblem: It is no layout, has a profile that this GPU does not have, or does not fit.
    """
    groups = group_words(parse_layout(layout))
    profiles = [_resolve(group[0], gpu) for group in groups]
    placed = place(profiles)
    if placed is None:
        raise UsageProblem(
            f"the MIG layout {layout} does not fit onto one GPU: {_describe_excess(profiles, gpu)}",
            hint="csub plan --share=mig shows one that does",
        )
    left = list(placed)
    seats = []
    for number, (group, profile) in enumerate(zip(groups, profiles, strict=True)):
        mine = next(one for one in left if one.profile == profile)
        left.remove(mine)
        seats += [
            _build_seat(
                word.text,
                mine,
                gpu,
                instance=number,
                compute=word.compute_slices,
                sharers=len(group),
            )
            for word in group
        ]
    return tuple(seats)


def build_seats(placed: Sequence[PlacedInstance], gpu: PlannedGpu) -> tuple[Seat, ...]:
    """The seats of a layout that was chosen: one in each instance."""
    return tuple(
        _build_seat(name_profile(one.profile, gpu), one, gpu, instance=number)
        for number, one in enumerate(placed)
    )


def _resolve(word: LayoutWord, gpu: PlannedGpu) -> InstanceProfile:
    """The profile that a word means; NVML's names on the node decide, and a driver rounds them.

    Raises:
        UsageProblem: The GPU has none with so many slices, or so much memory.
    """
    try:
        return resolve_word(word, gpu.every)
    except UsageProblem:
        alike = [
            profile
            for profile in gpu.every
            if profile.compute_slices == word.gpu_instance_slices
            and profile.attributes == word.attributes
        ]
        asked_gb = word.memory_gb or 0
        nearest = min(alike, key=lambda one: abs((one.memory_gb or 0) - asked_gb), default=None)
        if nearest is None:
            raise
        is_rounded = abs((nearest.memory_gb or 0) - asked_gb) <= _ROUNDED_GB
        if gpu.has_names and not is_rounded:
            raise
        return nearest


def _build_seat(
    word: str,
    placed: PlacedInstance,
    gpu: PlannedGpu,
    *,
    instance: int,
    compute: int | None = None,
    sharers: int = 1,
) -> Seat:
    profile = placed.profile
    compute = compute or profile.compute_slices
    room_mb = gpu.compute_room_mb(profile)
    sms = max(1.0, profile.sms * compute / profile.compute_slices)
    # Those that share a GPU instance have its memory in common, and none is promised more.
    memory = profile.memory_slices / sharers
    return Seat(
        word,
        placed,
        instance,
        compute,
        None if room_mb is None else room_mb // sharers,
        sms / gpu.sms,
        memory / gpu.memory_slices,
    )


def _describe_excess(profiles: Sequence[InstanceProfile], gpu: PlannedGpu) -> str:
    """What a layout has too much of, with both numbers."""
    compute = sum(profile.compute_slices for profile in profiles)
    if compute > gpu.slices:
        return f"it has {compute} compute slices, the GPU has {gpu.slices}"
    memory = sum(profile.memory_slices for profile in profiles)
    if memory > gpu.memory_slices:
        return f"it has {memory} memory slices, the GPU has {gpu.memory_slices}"
    for profile in profiles:
        count = profiles.count(profile)
        if count > profile.instances_max:
            return (
                f"it has {count} of {profile.name}, the GPU holds at most {profile.instances_max}"
            )
    return "no placement is left for all of its instances"
