"""The newest figures of every member, for the runner and for people who watch; pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_colloc.model.late_definitions import dataclass, field

RATE_WINDOW_S = 10.0
"""Over how long rates are told."""

WARM_UP_S = 10.0
WARM_UP_STEPS = 20
"""What a program does first is slower: compilers, caches, autotuning."""

STEADY_WINDOWS_S = (10.0, 20.0, 40.0, 60.0)
STEADY_WINDOWS = 3
STEADY_SPREAD = 0.05
STEADY_STEPS = 5
"""A rate is steady where three windows in a row differ by 5 % at most, each of the shortest length
in which at least five steps are made."""

MEAN_WINDOWS_LEAST = 3
"""Fewer windows do not tell how far a mean is off."""

_HISTORY_S = STEADY_WINDOWS * STEADY_WINDOWS_S[-1] + 2.0


@dataclass(frozen=True)
class Point:
    """A member's counters at one tick.

    Attributes:
        at: Epoch seconds.
        steps: Steps so far; None where it has not reported.
        samples: Samples so far.
        wait_s: Seconds waited for data.
        cpu_s: CPU time so far.
        last_step_at: When the newest step ended.
    """

    at: float
    steps: int | None
    samples: int | None
    wait_s: float | None
    cpu_s: float | None
    last_step_at: float | None


def compute_rate(older: Point, newer: Point) -> float | None:
    """Steps per second between two points; None where there is none.

    Counted from step to step, so that it does not depend on when the counters were looked at: n
    steps take the time from the end of one to the end of the n-th after it. A member that makes
    none has the rate 0 once it has been silent for the whole time.
    """
    if older.steps is None or newer.steps is None or newer.steps < older.steps:
        return None
    steps = newer.steps - older.steps
    if steps == 0:
        return 0.0 if older.steps > 0 else None
    if older.last_step_at is None or newer.last_step_at is None:
        return None
    elapsed_s = newer.last_step_at - older.last_step_at
    return steps / elapsed_s if elapsed_s > 0 else None


def find_window(points: Sequence[Point], end: int, length_s: float) -> int | None:
    """The newest point at least `length_s` before that of number `end`; None where there is none.

    Ticks are never exactly on time, so a fiftieth less will do.
    """
    for place in range(end - 1, -1, -1):
        if points[end].at - points[place].at >= 0.98 * length_s:
            return place
    return None


def is_steady(points: Sequence[Point], warm_at: float | None) -> bool:
    """Whether a member's rate has settled.

    Args:
        points: Its counters, a point for each tick.
        warm_at: When its warm-up was over; None while it is not.
    """
    if warm_at is None or not points:
        return False
    for length_s in STEADY_WINDOWS_S:
        rates = []
        end = len(points) - 1
        for _ in range(STEADY_WINDOWS):
            start = find_window(points, end, length_s)
            if start is None or points[start].at < warm_at:
                return False
            steps = (points[end].steps or 0) - (points[start].steps or 0)
            rate = compute_rate(points[start], points[end])
            if rate is None or steps < STEADY_STEPS:
                break
            rates.append(rate)
            end = start
        if len(rates) == STEADY_WINDOWS:
            return max(rates) - min(rates) <= STEADY_SPREAD * (sum(rates) / len(rates))
    return False


class MeanRate:
    """A member's rate over all the time since its warm-up, and how exact it is.

    On a host that is fast and slow by turns no rate is ever steady, but the mean of enough windows
    is as good.

    Args:
        begin: The member's counters when its warm-up was over.
    """

    def __init__(self, begin: Point) -> None:
        self._begin = self._mark = self._newest = begin
        self._windows = 0
        self._mean = self._squares = 0.0

    def add(self, point: Point) -> None:
        """Take the counters of one more tick."""
        self._newest = point
        elapsed_s = point.at - self._mark.at
        steps = (point.steps or 0) - (self._mark.steps or 0)
        shortest, *_, longest = STEADY_WINDOWS_S
        if elapsed_s < 0.98 * (shortest if steps >= STEADY_STEPS else longest):
            return
        rate = compute_rate(self._mark, point) or 0.0
        self._mark = point
        # Welford, Technometrics 4 (1962): nothing is kept of the windows.
        self._windows += 1
        deviation = rate - self._mean
        self._mean += deviation / self._windows
        self._squares += deviation * (rate - self._mean)

    @property
    def elapsed_s(self) -> float:
        """Since the warm-up was over."""
        return self._newest.at - self._begin.at

    @property
    def steps_per_s(self) -> float | None:
        """The rate; None where it is not known."""
        return compute_rate(self._begin, self._newest) or None

    @property
    def error(self) -> float | None:
        """Its standard error, over the rate; None where the windows are too few to tell."""
        rate = self.steps_per_s
        if rate is None or self._windows < MEAN_WINDOWS_LEAST:
            return None
        variance = self._squares / (self._windows - 1)
        return math.sqrt(variance / self._windows) / rate


@dataclass
class _MemberFigures:
    points: deque[Point] = field(default_factory=deque)
    warm_at: float | None = None
    mean: MeanRate | None = None
    gpu_memory_mb: float | None = None
    gpu_memory_by_gpu: Mapping[str, float] | None = None
    row: Mapping[str, Any] = field(default_factory=dict)


class LatestFigures:
    """Keeps the last minutes of every member that runs."""

    def __init__(self) -> None:
        self._members: dict[int, _MemberFigures] = {}

    def update(self, rows: Sequence[Mapping[str, Any]], *, has_gpu_memory: bool = False) -> None:
        """Take the members' rows of one tick; a member that has none is not there any more.

        Args:
            rows: One of each member.
            has_gpu_memory: NVML's lists of processes were read for them: where gpu_memory is None
                then, it is unknown. At other ticks the one that was read last holds.
        """
        present = {row["member"] for row in rows}
        for number in [number for number in self._members if number not in present]:
            del self._members[number]
        for row in rows:
            member = self._members.setdefault(row["member"], _MemberFigures())
            if member.row and member.row["start"] != row["start"]:
                member = self._members[row["member"]] = _MemberFigures()
            member.row = row
            if has_gpu_memory or row["gpu_memory_mb"] is not None:
                member.gpu_memory_mb = row["gpu_memory_mb"]
                member.gpu_memory_by_gpu = row.get("gpu_memory_by_gpu")
            member.points.append(
                Point(
                    at=row["at"],
                    steps=row.get("steps"),
                    samples=row.get("samples"),
                    wait_s=row.get("wait_s"),
                    cpu_s=row["cpu_s"],
                    last_step_at=row.get("last_step_at"),
                )
            )
            while member.points[0].at < row["at"] - _HISTORY_S:
                member.points.popleft()
            first_step_at = row.get("first_step_at")
            has_time = first_step_at is not None and row["at"] >= first_step_at + WARM_UP_S
            has_steps = first_step_at is not None and (row["steps"] or 0) >= WARM_UP_STEPS
            if member.warm_at is None and (has_time or has_steps):
                member.warm_at = row["at"]
            if member.mean is not None:
                member.mean.add(member.points[-1])
            elif has_time and has_steps:
                member.mean = MeanRate(member.points[-1])

    def build(self) -> dict[str, dict[str, Any]]:
        """The figures of every member, by its number."""
        return {str(number): _build(member) for number, member in sorted(self._members.items())}


def _build(member: _MemberFigures) -> dict[str, Any]:
    row, points = member.row, member.points
    newest = points[-1]
    place = find_window(points, len(points) - 1, RATE_WINDOW_S)
    older = points[0 if place is None else place]
    elapsed_s = newest.at - older.at
    last_step_at = row.get("last_step_at")
    rate = compute_rate(older, newest)
    mean = member.mean
    samples = _difference(older.samples, newest.samples)
    steps = _difference(older.steps, newest.steps)
    # Where nothing was ever waited for, no loader is seen.
    wait_s = _difference(older.wait_s, newest.wait_s) if newest.wait_s else None
    return {
        "start": row["start"],
        "steps": row.get("steps"),
        "steps_per_s": rate,
        # Loaders run ahead by a constant, so samples keep the pace of the steps.
        "samples_per_s": samples / steps * rate if samples is not None and steps and rate else None,
        "window_s": elapsed_s,
        "cpu_cores": _per_second(_difference(older.cpu_s, newest.cpu_s), elapsed_s),
        "host_memory_mb": row["host_memory_mb"],
        "gpu_memory_mb": member.gpu_memory_mb,
        "gpu_memory_by_gpu": member.gpu_memory_by_gpu,
        "gpu_memory_reserved_peak_mb": row.get("gpu_memory_reserved_peak_mb"),
        "wait_share": _per_second(wait_s, elapsed_s * (row.get("trainers") or 1)),
        "loader_workers": row.get("loader_workers"),
        "progress_source": row.get("progress"),
        "last_step_age_s": None if last_step_at is None else max(0.0, row["at"] - last_step_at),
        "steady": is_steady(points, member.warm_at),
        "settled_s": 0.0 if mean is None else mean.elapsed_s,
        "mean_steps_per_s": None if mean is None else mean.steps_per_s,
        "mean_error": None if mean is None else mean.error,
    }


def _difference(older: float | None, newer: float | None) -> float | None:
    return None if older is None or newer is None else newer - older


def _per_second(amount: float | None, elapsed_s: float) -> float | None:
    return None if amount is None or elapsed_s <= 0 else amount / elapsed_s
