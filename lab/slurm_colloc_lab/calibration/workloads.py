"""The synthetic trainings that a GPU is calibrated with: a catalogue that loads no torch.

They span what trainings ask of a GPU, from one that only launches kernels to one that fills it.
What each does stands in `image_trainings`, `input_trainings` and `other_trainings`; sizes are
chosen for an H200, where a step takes 2 to 60 ms and settles within a second.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc_lab.calibration.cells import MPS, TIMESLICE, CellTraining

FULL = "full"
TINY = "tiny"


@dataclass(frozen=True)
class Training:
    """A training that has been built.

    Args:
        step: Does one step; the GPU may still be at work when it returns.
        close: Ends what it has started.
        helpers: Pids of its own processes, such as those of a DataLoader.
    """

    step: Callable[[], None]
    close: Callable[[], None]
    helpers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    """A training that can be built.

    Args:
        name: What rows and cells call it.
        family: Its kind; a model is also judged on families that it was not fitted to.
        builder: `module:function` in this package; called with device and scale.
        gpu_memory_mb: The most that torch held on an H200, in MiB.
        cpus: How many cores it is given.
        light: It leaves most of an H200 idle, so that plans put many of its kind together.
    """

    name: str
    family: str
    builder: str
    gpu_memory_mb: int
    cpus: int = 1
    light: bool = False

    def build(self, device: str, scale: str = FULL) -> Training:
        """Load torch and build it.

        Args:
            device: `cuda` or `cpu`.
            scale: `full`, or `tiny` for a step of a few ms on one core.
        """
        module, _, function = self.builder.partition(":")
        builder = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        training: Training = builder(device, scale)
        return training


WORKLOADS: tuple[Workload, ...] = (
    Workload("mlp", "mlp", "other_trainings:build_mlp", 72, light=True),
    Workload("cnn32", "cnn", "image_trainings:build_cnn32", 850),
    Workload("resnet18", "cnn", "image_trainings:build_resnet18", 546, light=True),
    Workload("resnet50", "cnn", "image_trainings:build_resnet50", 4976),
    Workload("gpt10m", "transformer", "other_trainings:build_gpt10m", 788),
    Workload("gpt125m", "transformer", "other_trainings:build_gpt125m", 6618),
    Workload("recsys", "recsys", "other_trainings:build_recsys", 6088),
    Workload("gnn", "gnn", "other_trainings:build_gnn", 1556),
    Workload("lstm", "lstm", "other_trainings:build_lstm", 390, light=True),
    Workload("feed", "feed", "image_trainings:build_feed", 762, light=True),
    Workload("loader", "loader", "input_trainings:build_loader", 510, cpus=3, light=True),
    Workload("rl", "rl", "other_trainings:build_rl", 92, light=True),
    Workload("hog", "hog", "other_trainings:build_hog", 28832),
    Workload("bursty", "bursty", "image_trainings:build_bursty", 842, light=True),
    Workload("small", "resnet", "image_trainings:build_small", 406, light=True),
    Workload("medium", "resnet", "image_trainings:build_medium", 1370, light=True),
    Workload("large", "resnet", "image_trainings:build_large", 6898),
)

INPUT_BOUND: tuple[Workload, ...] = (
    Workload("disk", "disk", "input_trainings:build_disk", 2688, cpus=3, light=True),
    Workload("speech", "speech", "input_trainings:build_speech", 782, cpus=3, light=True),
)
"""Trainings for comparisons that no GPU is calibrated with: they say nothing of it."""

BY_NAME = {workload.name: workload for workload in (*WORKLOADS, *INPUT_BOUND)}


MOST_WORKERS = 46
"""In one group: an MPS server takes 48 clients on the driver this was chosen on."""
CONTEXT_MB = 614
"""GPU memory of a process on top of what torch tells of, about 0.6 GiB on an H200."""
USABLE_MEMORY = 0.85
"""Share of the GPU's memory that a group may take; what trainings need is not known exactly."""


@dataclass(frozen=True)
class WorkloadNeed:
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


def choose_names(needs: Mapping[str, WorkloadNeed], room: Room) -> tuple[str, ...]:
    """The workloads that a GPU has room for: with any of them, half is left for others."""
    return tuple(
        name
        for name, need in needs.items()
        if need.cpus < room.cores and need.gpu_memory_mb + CONTEXT_MB <= room.usable_mb / 2
    )


def compute_gpu_memory_mb(
    copies: Mapping[CellTraining, int], needs: Mapping[str, WorkloadNeed]
) -> float:
    """What some processes take, their contexts included."""
    return sum(
        count * (needs[member.workload].gpu_memory_mb + CONTEXT_MB)
        for member, count in copies.items()
    )


def fits(
    copies: Mapping[CellTraining, int], needs: Mapping[str, WorkloadNeed], usable_mb: float
) -> bool:
    """Whether some processes may be there at the same time."""
    taken_mb = compute_gpu_memory_mb(copies, needs)
    return sum(copies.values()) <= MOST_WORKERS and taken_mb <= usable_mb
