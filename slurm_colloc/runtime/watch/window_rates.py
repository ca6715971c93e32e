"""Rates of members over windows of a second or longer, from the counters that they publish."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.progress_counters import MemberProgress, read_member_progress

STEPS_LEAST = 3
SETTLED_S = 1.0
"""A member has settled after so many steps and so long after its first: what it does first is
slower (compilers, caches, autotuning)."""

_GAPS_KEPT = 9
_GAPS_LEAST = 2


@dataclass(frozen=True)
class StepCount:
    """A member's steps at one moment.

    Attributes:
        at: When it was looked (CLOCK_MONOTONIC).
        steps: Steps so far.
        first_step_s: When the first one ended, on the same clock; None before.
        last_step_s: When the newest one ended, likewise.
        trainers: Processes that have made steps.
        ranks: The largest number of ranks that one of them names; None where none does.
        gpu_reserved_peak: Bytes that PyTorch's allocator had at most; None where it does not say.
        gpu_reserved: Bytes that it has now; likewise.
        is_printed: They are read from what it prints, as its lines come.
        line_s: Seconds from one such line to the next; None before that is known.
    """

    at: float
    steps: int
    first_step_s: float | None
    last_step_s: float | None
    trainers: int
    ranks: int | None
    gpu_reserved_peak: int | None = None
    gpu_reserved: int | None = None
    is_printed: bool = False
    line_s: float | None = None

    @property
    def has_settled(self) -> bool:
        """Its rate is one that it can keep."""
        first = self.first_step_s
        if self.is_printed:
            # A line may stand for many steps.
            return self.line_s is not None
        return first is not None and self.steps >= STEPS_LEAST and self.at - first >= SETTLED_S


@dataclass
class _Lines:
    """When a start of a member has printed how far it is."""

    last_s: float
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS_KEPT))

    def find_usual_s(self) -> float | None:
        """Seconds from one line to the next, pauses left out; None before that is known."""
        return median(self.gaps) if len(self.gaps) >= _GAPS_LEAST else None


class WindowRates:
    """Reads the counters of a pack's members.

    Args:
        find_directory: Where the present start of a member counts; empty where it does not.
        clock: CLOCK_MONOTONIC in seconds, as the counters have it.
    """

    def __init__(
        self,
        find_directory: Callable[[Member], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_directory = find_directory
        self._clock = clock
        self._begun: dict[int, StepCount] = {}
        self._lines: dict[str, _Lines] = {}
        self._running_since = 0.0

    def read(self, member: Member) -> StepCount | None:
        """A member's steps now; None where it counts none, or none yet."""
        directory = self._find_directory(member)
        found = read_member_progress(directory) if directory else None
        if found is None or found.source is None:
            return None
        count = _count(self._clock(), found)
        return self._note_line(directory, count) if count.is_printed else count

    def _note_line(self, directory: str, count: StepCount) -> StepCount:
        last_s = count.last_step_s or count.at
        lines = self._lines.setdefault(directory, _Lines(last_s))
        if last_s > lines.last_s:
            lines.gaps.append(last_s - lines.last_s)
            lines.last_s = last_s
        return replace(count, line_s=lines.find_usual_s())

    def begin(self, members: Iterable[Member], running_since: float) -> None:
        """Begin a window.

        Args:
            members: Those that run in it.
            running_since: Since when just these run.
        """
        self._running_since = running_since
        found = ((member.number, self.read(member)) for member in members)
        self._begun = {number: count for number, count in found if count is not None}

    def look(self, members: Iterable[Member]) -> None:
        """Look between begin and end: what is printed counts from its first line in the window."""
        for member in members:
            begun = self._begun.get(member.number)
            if begun is None or not begun.is_printed or self._is_within(begun):
                continue
            if (count := self.read(member)) is not None:
                self._begun[member.number] = count

    def _is_within(self, count: StepCount) -> bool:
        return count.last_step_s is not None and count.last_step_s >= self._running_since

    def end(self, members: Iterable[Member]) -> dict[int, float | None]:
        """Steps per second in the window; None where a member made no step in it.

        It may have been at something else, a checkpoint for example: that is not a rate of 0.
        """
        return {member.number: self._compute(self.read(member), member) for member in members}

    def _compute(self, end: StepCount | None, member: Member) -> float | None:
        begin = self._begun.get(member.number)
        if begin is None or end is None or end.steps <= begin.steps:
            return None
        steps = end.steps - begin.steps
        first, last = begin.last_step_s, end.last_step_s
        # From step to step, unless it was paused in between.
        if first is not None and last is not None and self._running_since <= first < last:
            return steps / (last - first)
        if begin.is_printed:
            # Without two lines in the window it would be that of before.
            return None
        return steps / (end.at - begin.at) if end.at > begin.at else None


def _count(at: float, found: MemberProgress) -> StepCount:
    ranks = [process.world for process in found.processes if process.world is not None]
    return StepCount(
        at,
        found.steps,
        found.first_step_s,
        found.last_step_s,
        found.trainers,
        max(ranks, default=None),
        found.gpu_reserved_peak,
        found.gpu_reserved,
        is_printed=found.source == "regex",
    )
