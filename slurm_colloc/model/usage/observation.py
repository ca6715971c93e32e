"""What one run has shown of a job, as usage profiles take it; values only."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from slurm_colloc.model.plan import PeakSource


class MeasuredBy(enum.StrEnum):
    """How the figures of a usage profile were obtained."""

    ALONE = "alone"
    """In runs that were alone on the GPU for 10 s at least, after their warm-up."""
    PAUSING = "pausing"
    """Rate and activity in windows of a second or two, while the other members of its pack were
    paused; peaks and host use over the whole run."""
    COMPANY = "company"
    """Peaks and host use over a run in company; its rate alone is not known."""


@dataclass(frozen=True)
class RunningStatistics:
    """Mean and spread of a value over runs, without the runs.

    Attributes:
        mean: Their mean.
        sd: Their standard deviation (n - 1); None for fewer than two.
        n: How many there were.
        last: The newest.
    """

    mean: float
    sd: float | None
    n: int
    last: float

    def add(self, value: float) -> RunningStatistics:
        """With one more value (Welford, Technometrics 4(3), 1962)."""
        n = self.n + 1
        difference = value - self.mean
        mean = self.mean + difference / n
        squares = (self.sd or 0.0) ** 2 * (self.n - 1) + difference * (value - mean)
        return RunningStatistics(mean, math.sqrt(max(0.0, squares) / (n - 1)), n, value)

    @classmethod
    def start(cls, value: float) -> RunningStatistics:
        """Of one value."""
        return cls(value, None, 1, value)


@dataclass(frozen=True)
class Observation:
    """What one start of a member used while it was alone; None where unknown.

    Of a member with several GPUs the figures are those of one: the mean over its GPUs, and the GPU
    memory of the fullest.

    Attributes:
        signature: Of its job (store.learned.faults.compute_signature).
        family: That of its script, whatever the arguments.
        kind: The same without numbers among the arguments.
        name: Its job name.
        gpu_model: The GPU's model.
        gpu_uuid: The GPU.
        source: Which run it was; the same run is not counted twice.
        at: When it was seen last, in seconds since the epoch.
        window_s: How long it was alone and settled, in seconds.
        gpu_memory_peak_mb: Peak of its GPU memory.
        sm_active: Mean SM activity, 0 to 1.
        dram_active: Mean DRAM activity, 0 to 1.
        tensor_active: Mean activity of the tensor cores, 0 to 1.
        cpu_cores: Mean CPU cores.
        host_memory_peak_mb: Peak of its host memory.
        steps_per_s: Its rate.
        samples_per_s: Its rate in samples.
        wait_share: Share of the time that it waited for data, 0 to 1.
        energy_w: Mean power of the GPU in watts.
        idle_power_w: Power of the GPU before its first step, in watts.
        engine_active: Share of the time in which the GPU worked for it, 0 to 1.
        pcie_share: Share of what PCIe can carry in its busier direction, 0 to 1.
        nvlink_share: Share of what NVLink can carry in its busier direction, 0 to 1.
        gpu_memory_total_mb: Memory of the GPU.
        measured_by: How it was measured.
        gpu_memory_by: Who says what its peak of GPU memory is.
        gpu_memory_usual_mb: The most past its first seconds.
    """

    signature: str
    family: str
    name: str
    gpu_model: str
    gpu_uuid: str
    source: str
    at: float
    window_s: float
    gpu_memory_peak_mb: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    tensor_active: float | None = None
    cpu_cores: float | None = None
    host_memory_peak_mb: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    wait_share: float | None = None
    energy_w: float | None = None
    idle_power_w: float | None = None
    engine_active: float | None = None
    pcie_share: float | None = None
    gpu_memory_total_mb: float | None = None
    measured_by: MeasuredBy = MeasuredBy.ALONE
    gpu_memory_by: PeakSource = PeakSource.NVML
    gpu_memory_usual_mb: float | None = None
    nvlink_share: float | None = None
    kind: str = ""


@dataclass(frozen=True)
class Completion:
    """A run that came to its own end, whether or not it shared the GPU.

    Attributes:
        signature: Of its job.
        gpu_model: The GPU's model.
        source: Which run it was; the same run is not counted twice.
        steps: All the steps that it made.
    """

    signature: str
    gpu_model: str
    source: str
    steps: float
