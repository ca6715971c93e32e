"""What the search for packs speaks of: a job as it counts there, what a GPU has, a priced pack."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from slurm_colloc.model.calibration import Load
from slurm_colloc.model.plan import MIG_INSTANCES_MAX, SharingMode


@dataclass(frozen=True)
class Subject:
    """A job that may share, as far as the search looks at it.

    Attributes:
        index: Its index into the jobs of the call.
        cpus: CPUs, at least 1.
        host_memory_mb: Host memory in MB; None where nothing is known of it.
        gpu_memory_mb: GPU memory that it may need at most, in MB, margin included; None unknown.
        run_s: Seconds that it is expected to run alone on the whole GPU.
        load: What it takes of the GPU; None where unknown: then it does not share here.
        max_slowdown: How much slower than alone it may get, 1 or more.
        margin: Relative uncertainty of its predicted slowdown.
        is_corrected: Its pack is measured as it runs, and members that are too many are parked:
            its bound is held without a margin.
        is_borrowed: What it takes was measured on another GPU model than how jobs slow each other
            down.
        kind: Subjects of equal kind are interchangeable: same load, needs, bound and `run_s`.
            None: interchangeable with no other.
    """

    index: int
    cpus: int
    host_memory_mb: int | None
    gpu_memory_mb: int | None
    run_s: float
    load: Load | None
    max_slowdown: float
    margin: float = 0.0
    kind: Hashable = None
    is_corrected: bool = False
    is_borrowed: bool = False

    @property
    def bound_margin(self) -> float:
        """What comes on top of a predicted slowdown that is held against the bound.

        Less than nothing where the prediction is another GPU model's, and corrected: one member too
        many is parked after half a minute, one too few waits for another GPU.
        """
        if not self.is_corrected:
            return self.margin
        return -self.margin if self.is_borrowed else 0.0


@dataclass(frozen=True)
class Limits:
    """What one GPU has for a pack; None means no limit.

    Attributes:
        cpus: CPUs.
        host_memory_mb: Host memory in MB.
        gpu_memory_mb: GPU memory that members may use together, in MB.
        members: Members at most.
        finish_s: Seconds that a pack may last, its setup and its margin included.
        has_instances: Each member has one of equal MIG instances, whatever else there is.
        instance_rooms_mb: What a need may fill of each of 0, 1, 2... equal MIG instances, in MB,
            as far as there can be so many; None where their memory is unknown.
    """

    cpus: int | None = None
    host_memory_mb: int | None = None
    gpu_memory_mb: int | None = None
    members: int | None = None
    finish_s: float | None = None
    has_instances: bool = False
    instance_rooms_mb: tuple[int | None, ...] = (None,) * (MIG_INSTANCES_MAX + 1)

    def list_rooms_mb(self, most: int) -> list[float]:
        """The same up to a number of instances: infinite where unknown, below 0 for too many."""
        rooms = [math.inf if room is None else float(room) for room in self.instance_rooms_mb]
        return (rooms + [-1.0] * most)[: most + 1]


@dataclass(frozen=True)
class Setting:
    """How a pack shares its GPU.

    Attributes:
        mode: Sharing mode.
        percentages: Per member: its MPS thread limit, or under MIG the share of its instance's
            SMs in percent; None for no limit.
    """

    mode: SharingMode
    percentages: tuple[int | None, ...]


@dataclass(frozen=True)
class Priced:
    """A pack under its best setting; what is per member is in the order of the members.

    Attributes:
        setting: The setting.
        slowdowns: Predicted, against alone on the whole GPU, while all members run.
        duration_s: Seconds until the last member ends.
        gpu_s: Seconds for which the pack holds the GPU: the duration and the mode's setup.
        energy_j: Energy of the GPU above nothing, in joules; None where power is unknown.
        cost: What the goal counts; only to be compared with costs under the same goal.
    """

    setting: Setting
    slowdowns: tuple[float, ...]
    duration_s: float
    gpu_s: float
    energy_j: float | None
    cost: float


# Equal MIG instances of one GPU: how many there can be, and what each has.
#
# Of GPUs with 7 compute slices and 8 memory slices (NVIDIA, MIG user guide, supported profiles).

MIG_MEMBERS_MAX = MIG_INSTANCES_MAX
MIG_SLICES = (7, 7, 3, 2, 1, 1, 1, 1)
"""Slices of each of 0, 1, 2... equal instances: all that fit onto 7 slices and 8 eighths."""
MIG_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the GPU's memory that an instance of so many slices gets."""
