"""What trainings of a calibration need, and how many a GPU and its host have room for; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.calibration.cells import MPS, TIMESLICE, Member

MOST_WORKERS = 46
"""In one group: an MPS server takes 48 clients on the driver this was chosen on."""
CONTEXT_MB = 614
"""GPU memory of a process beside what torch tells of, about 0.6 GiB on an H200."""
USABLE_MEMORY = 0.85
"""Share of the GPU's memory that a group may take; what trainings need is not known exactly."""


@dataclass(frozen=True)
class Need:
    """What one process of a workload takes.

    Attributes:
        cpus: Cores.
        gpu_memory_mb: GPU memory in MiB, without the context.
        light: Plans put many of its kind together.
    """

    cpus: int = 1
    gpu_memory_mb: int = 0
    light: bool = False


@dataclass(frozen=True)
class Room:
    """What there is.

    Attributes:
        cores: Cores; packs that need more are not measured.
        gpu_memory_mb: All of the GPU's memory in MiB; None for no bound.
        modes: Sharing modes that can be measured, the more valuable first.
    """

    cores: int
    gpu_memory_mb: int | None = None
    modes: Sequence[str] = (MPS, TIMESLICE)

    @property
    def usable_mb(self) -> float:
        """What a group may take."""
        return float("inf") if self.gpu_memory_mb is None else USABLE_MEMORY * self.gpu_memory_mb


def choose_names(needs: Mapping[str, Need], room: Room) -> tuple[str, ...]:
    """The workloads that a GPU has room for: with any of them, half is left for others."""
    return tuple(
        name
        for name, need in needs.items()
        if need.cpus < room.cores and need.gpu_memory_mb + CONTEXT_MB <= room.usable_mb / 2
    )


def compute_gpu_memory_mb(copies: Mapping[Member, int], needs: Mapping[str, Need]) -> float:
    """What some processes take, their contexts included."""
    return sum(
        count * (needs[member.workload].gpu_memory_mb + CONTEXT_MB)
        for member, count in copies.items()
    )


def fits(copies: Mapping[Member, int], needs: Mapping[str, Need], usable_mb: float) -> bool:
    """Whether some processes may be there at the same time."""
    taken_mb = compute_gpu_memory_mb(copies, needs)
    return sum(copies.values()) <= MOST_WORKERS and taken_mb <= usable_mb
