"""What members take of the GPU's memory, as it is seen while they run, with a margin.

What counts is NVML's figure of the process: context, kernels and workspaces are in it. PyTorch's
allocator tells its own peak at once and truly, and is a part of that. NVML is asked by the monitor,
a second or more late, and misses what was given back in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.planning.limits.hard_limits import add_gpu_memory_margin
from slurm_colloc.runtime.watch.window_rates import StepCount

STEPS_LEAST = 10
FIRST_SECONDS_S = 5.0
"""After so many steps, and so long after the first, what a program takes has settled: in its first
seconds it may take several times as much (cuDNN tries its algorithms), or far less."""
HELD_S = 15.0
"""What a program without counted steps has not exceeded for so long is taken for its most."""
AT_ONCE_S = 3.0
"""How long after a process first has GPU memory what it has is what it took at once."""
OUTSIDE_ASSUMED_MB = 768.0
"""What a process takes outside its allocator (CUDA context, library workspaces), where NVML does
not tell: 762 MB were measured for a ResNet on an H100."""

_MIB = 1 << 20


@dataclass
class _Seen:
    """What was seen of a member's present start.

    Attributes:
        start: Which.
        nvml_mb: The most that NVML has told.
        nvml_now_mb: What it told last.
        most_at: When it told the most, in seconds since the epoch.
        reserved_peak_mb: What the allocator had at most.
        reserved_mb: What it has now.
        stepping_s: Since its first step.
        steps: Steps so far.
        held_s: Since NVML has told the most that it has told.
        settled_mb: The most that the process has had since it has settled; None before.
        first_at: When NVML first told of any, in seconds since the epoch.
        at_once_mb: The most that it told then and a moment later, before any step.
    """

    start: int
    nvml_mb: float = 0.0
    nvml_now_mb: float | None = None
    reserved_peak_mb: float | None = None
    reserved_mb: float | None = None
    stepping_s: float = 0.0
    steps: int = 0
    held_s: float = 0.0
    most_at: float = 0.0
    settled_mb: float | None = None
    first_at: float | None = None
    at_once_mb: float = 0.0

    @property
    def has_settled(self) -> bool:
        """What it takes is known: it makes steps, or counts none and has held what it has."""
        if self.steps:
            return self.steps >= STEPS_LEAST and self.stepping_s >= FIRST_SECONDS_S
        return bool(self.nvml_mb) and self.held_s >= HELD_S

    @property
    def _outside_mb(self) -> float:
        if self.nvml_now_mb is None or self.reserved_mb is None:
            return OUTSIDE_ASSUMED_MB
        return max(0.0, self.nvml_now_mb - self.reserved_mb)

    @property
    def _process_mb(self) -> float:
        """What the process has now; 0 where nothing tells."""
        inside = self.reserved_mb + self._outside_mb if self.reserved_mb else 0.0
        return max(self.nvml_now_mb or 0.0, inside)

    @property
    def peak_mb(self) -> float | None:
        """What the process had at most; None where that is not known yet."""
        if not self.has_settled:
            return None
        inside = self.reserved_peak_mb + self._outside_mb if self.reserved_peak_mb else 0.0
        return max(self.nvml_mb, inside) or None

    def note_at_once(self, at: float) -> None:
        """Note what it takes in its first moments; PyTorch's allocator takes what is asked for."""
        if not self.nvml_mb or self.steps or self.reserved_mb is not None:
            return
        if self.first_at is None:
            self.first_at = at
        if at <= self.first_at + AT_ONCE_S:
            self.at_once_mb = max(self.at_once_mb, self.nvml_now_mb or 0.0)

    def look(self) -> None:
        """Note what it has now, once it has settled."""
        if self.has_settled and self._process_mb:
            self.settled_mb = max(self._process_mb, self.settled_mb or 0.0)


class GpuMemoryUse:
    """Keeps what was seen of each member."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def note_nvml(self, number: int, start: int, gpu_memory_mb: float | None, at: float) -> None:
        """What the monitor has read of NVML, and when; None where it could not be read."""
        seen = self._find(number, start)
        seen.nvml_now_mb = gpu_memory_mb
        if gpu_memory_mb and gpu_memory_mb > seen.nvml_mb:
            seen.nvml_mb, seen.most_at = gpu_memory_mb, at
        seen.held_s = at - seen.most_at if seen.nvml_mb else 0.0
        seen.note_at_once(at)
        seen.look()

    def note_count(self, number: int, start: int, count: StepCount) -> None:
        """What a member's own counters say."""
        seen = self._find(number, start)
        seen.steps = count.steps
        if count.first_step_s is not None:
            seen.stepping_s = count.at - count.first_step_s
        if count.gpu_reserved_peak is not None:
            seen.reserved_peak_mb = count.gpu_reserved_peak / _MIB
        if count.gpu_reserved is not None:
            seen.reserved_mb = count.gpu_reserved / _MIB
        seen.look()

    def list_seen(self) -> list[int]:
        """Members of which it is known what they took at most."""
        return [number for number, seen in self._seen.items() if seen.peak_mb is not None]

    def is_used(self, number: int, start: int) -> bool:
        """Whether a member has been seen to take any."""
        seen = self._seen.get(number)
        return seen is not None and seen.start == start and bool(seen.nvml_mb or seen.reserved_mb)

    def find_peak_mb(self, number: int) -> int | None:
        """What a member took at most, with a margin; None where that is not known."""
        seen = self._seen.get(number)
        peak_mb = None if seen is None else seen.peak_mb
        return None if peak_mb is None else add_gpu_memory_margin(peak_mb)

    def find_process_mb(self, number: int, start: int) -> float | None:
        """The most that its process was seen to take; None where nothing was seen."""
        seen = self._seen.get(number)
        if seen is None or seen.start != start:
            return None
        return max(seen.nvml_mb, seen.reserved_peak_mb or 0.0) or None

    def find_at_once_mb(self, number: int, start: int) -> float | None:
        """What a member took at once, before any step; None where unknown, or PyTorch takes it."""
        seen = self._seen.get(number)
        if seen is None or seen.start != start or seen.reserved_mb is not None:
            return None
        return seen.at_once_mb or None

    def find_settled_mb(self, number: int, start: int) -> int | None:
        """What a member that has settled may take, with a margin; None before, or unknown."""
        seen = self._seen.get(number)
        if seen is None or seen.start != start or seen.settled_mb is None:
            return None
        return add_gpu_memory_margin(seen.settled_mb)

    def _find(self, number: int, start: int) -> _Seen:
        seen = self._seen.get(number)
        if seen is None or seen.start != start:
            seen = self._seen[number] = _Seen(start)
        return seen
