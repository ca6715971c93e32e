"""What members take of the GPU's memory, as it is seen while they run, with a margin.

PyTorch's allocator tells its peak at once and truly; NVML is asked by the monitor, a second or more
late, and misses what was given back in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.runtime.watch.window_rates import StepCount

STEPS_LEAST = 2
"""From then on a program has had its largest tensors."""
FIRST_SECONDS_S = 5.0
"""After its first step, in which a program may take several times what it takes later: cuDNN tries
its algorithms."""
HELD_S = 8.0
"""What a program without counted steps has not exceeded for so long is taken for its most."""
OUTSIDE_ASSUMED_MB = 768.0
"""What a process takes outside its allocator (CUDA context, library workspaces), where NVML does
not tell: 762 MB were measured for a ResNet on an H100."""

_ROOM, _MARGIN_MB = 1.2, 1024
_TRUE_ROOM, _TRUE_MARGIN_MB = 1.05, 256
"""What one may need over what was seen of it, or of one like it in the same pack: by NVML, by the
allocator."""

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

    @property
    def _outside_mb(self) -> float:
        if self.nvml_now_mb is None or self.reserved_mb is None:
            return OUTSIDE_ASSUMED_MB
        return max(0.0, self.nvml_now_mb - self.reserved_mb)

    @property
    def peak_mb(self) -> int | None:
        """What it took at most, with a margin; None where that is not known yet."""
        if self.steps < STEPS_LEAST and not self.is_held:
            return None
        if self.reserved_peak_mb:
            return _add_true_margin(max(self.reserved_peak_mb + self._outside_mb, self.nvml_mb))
        return round(_ROOM * self.nvml_mb + _MARGIN_MB) if self.nvml_mb else None

    @property
    def is_held(self) -> bool:
        """It makes no steps that are counted, and has taken its memory for a while."""
        return not self.steps and self.held_s >= HELD_S

    @property
    def now_mb(self) -> int | None:
        """What it takes now; None in its first seconds."""
        if self.stepping_s < FIRST_SECONDS_S:
            return None
        if self.reserved_mb:
            return _add_true_margin(self.reserved_mb + self._outside_mb)
        return None if not self.nvml_now_mb else round(_ROOM * self.nvml_now_mb + _MARGIN_MB)


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
        return None if seen is None else seen.peak_mb

    def find_now_mb(self, number: int, start: int) -> int | None:
        """What a member takes now, with a margin; None in its first seconds, or where unknown."""
        seen = self._seen.get(number)
        return None if seen is None or seen.start != start else seen.now_mb

    def _find(self, number: int, start: int) -> _Seen:
        seen = self._seen.get(number)
        if seen is None or seen.start != start:
            seen = self._seen[number] = _Seen(start)
        return seen


def _add_true_margin(size_mb: float) -> int:
    return round(_TRUE_ROOM * size_mb + _TRUE_MARGIN_MB)
