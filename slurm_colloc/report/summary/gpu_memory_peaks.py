"""The most GPU memory that a start of a member has taken, and who says so.

PyTorch's allocator keeps the peak of what it has reserved, to the byte and from the first moment.
What a process holds outside of it (its CUDA context, NCCL's buffers) is what NVML tells of it less
what the allocator has reserved at the same time. NVML itself only sees what is held at a look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from slurm_colloc.model.plan import PeakSource
from slurm_colloc.report.summary.pack_samples import StartSamples

CONTEXT_ASSUMED_MB = 768.0
"""What is outside the allocator where NVML does not tell: 762 MiB were measured on an H100 with
torch 2.11, in a process that uses one GPU and no NCCL."""


FIRST_SECONDS_S = 10.0
"""After the first step."""


@dataclass(frozen=True)
class GpuMemoryPeak:
    """The most GPU memory of a start.

    Attributes:
        peak_mb: All of it, in MiB.
        by: Who says so.
        allocator_mb: The allocator's part; None where it said nothing.
        outside_mb: What was measured outside the allocator; None where that is not known.
    """

    peak_mb: float
    by: PeakSource
    allocator_mb: float | None = None
    outside_mb: float | None = None

    @property
    def is_assumed(self) -> bool:
        """What lies outside the allocator was not measured."""
        return self.by is PeakSource.ALLOCATOR and self.outside_mb is None


def find_gpu_memory_peak(start: StartSamples, gpus: int = 1) -> GpuMemoryPeak | None:
    """The most GPU memory of a start, its first seconds included; None where nothing is known.

    On several GPUs it is that of one: of the fullest by NVML. The allocators' sum is taken to be
    spread evenly, as it is where every GPU has a copy of the model or an equal part.

    Args:
        start: What was read of it.
        gpus: On how many GPUs it ran.
    """
    seen_mb = start.gpu_memory_peak_mb
    reserved_mb = start.peak("gpu_memory_reserved_peak_mb")
    if not reserved_mb:
        return None if seen_mb is None else GpuMemoryPeak(seen_mb, PeakSource.NVML)
    reserved_mb /= gpus
    outside_mb = find_outside_mb(start, gpus)
    peak_mb = reserved_mb + (CONTEXT_ASSUMED_MB if outside_mb is None else outside_mb)
    # Where another program of the member's took more at another time.
    peak_mb = max(peak_mb, seen_mb or 0.0)
    return GpuMemoryPeak(peak_mb, PeakSource.ALLOCATOR, reserved_mb, outside_mb)


def find_usual_gpu_memory(start: StartSamples) -> float | None:
    """The most GPU memory of a start past its first seconds, in MiB; None where it is not known.

    At its beginning a program may take several times as much (cuDNN tries its algorithms).
    """
    first_at = start.first_step_at
    if first_at is None:
        return None
    looks = zip(start.read("at"), start.read("gpu_memory_mb"), strict=True)
    found = [mb for at, mb in looks if at is not None and mb and at - first_at > FIRST_SECONDS_S]
    return max(found, default=None)


def find_outside_mb(start: StartSamples, gpus: int = 1) -> float | None:
    """What a start holds outside the allocator, in MiB; None where no look saw both.

    Each look's two numbers may be some seconds apart, in which the allocator took or gave back a
    piece: so it is their median. Before its first step a program has not loaded all that it needs.
    """
    first_at = start.first_step_at or 0.0
    looks = zip(
        start.read("at"),
        start.read("gpu_memory_mb"),
        start.read("gpu_memory_reserved_mb"),
        strict=True,
    )
    found = [
        seen_mb - reserved_mb / gpus
        for at, seen_mb, reserved_mb in looks
        if seen_mb is not None and reserved_mb is not None and seen_mb >= reserved_mb / gpus > 0
        if at is not None and at >= first_at
    ]
    return median(found) if found else None


def choose_highest(starts: Iterable[StartSamples], gpus: int = 1) -> GpuMemoryPeak | None:
    """The highest peak of several starts; None where none is known."""
    peaks = [peak for start in starts if (peak := find_gpu_memory_peak(start, gpus)) is not None]
    return max(peaks, key=lambda peak: peak.peak_mb, default=None)
