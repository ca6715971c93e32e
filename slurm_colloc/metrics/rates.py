"""Rates of a member from its progress counters, over windows in which it had settled.

Also: series of measured values over time; None is what could not be read, never 0; the time of a
member without that in which its processes were stopped.

A rate is the steps of the windows over their time. The time is that of the steps themselves
(`last_step_at`) where it is known, so that a slow program is not read with an error of one step.
Time in which the member was stopped by its runner is left out everywhere: a run with stops has the
figures of the same run without them. "Pauses" are what the program itself does: a checkpoint.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from slurm_colloc.model.late_definitions import dataclass

# ---- Series of measured values over time; None is what could not be read, never 0 ----------------

Value = float | None
Window = tuple[float, float]
"""From and to, in seconds since the epoch."""


@dataclass(frozen=True)
class Distribution:
    """How the values of a series are distributed.

    Attributes:
        mean: Arithmetic mean.
        p50: Median.
        p95: 95th percentile, by linear interpolation between neighbours.
        max: Largest value.
    """

    mean: float
    p50: float
    p95: float
    max: float


def compute_percentile(ordered: Sequence[float], share: float) -> float:
    """A percentile of sorted values, by linear interpolation (Hyndman and Fan 1996, type 7).

    Raises:
        ValueError: There are no values.
    """
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    # The difference, so that equal neighbours give exactly their value.
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe_values(values: Iterable[Value]) -> Distribution | None:
    """Mean, median, 95th percentile and maximum of what could be read; None where nothing was."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Distribution(
        # A sum of equal values may be off by one bit.
        mean=min(max(sum(known) / len(known), known[0]), known[-1]),
        p50=compute_percentile(known, 0.5),
        p95=compute_percentile(known, 0.95),
        max=known[-1],
    )


def measure_windows(windows: Iterable[Window]) -> float:
    """The length of windows that do not overlap, in seconds."""
    return sum(end - begin for begin, end in windows)


def join_windows(windows: Iterable[Window]) -> list[Window]:
    """Windows in the order of their beginnings, those that touch or overlap as one."""
    joined: list[Window] = []
    for begin, end in windows:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


@dataclass(frozen=True)
class Track:
    """One quantity of a GPU over time.

    Attributes:
        at: When it was read, ascending, in seconds since the epoch.
        values: What was read.
    """

    at: Sequence[float] = ()
    values: Sequence[Value] = ()

    @cached_property
    def _known(self) -> tuple[list[float], list[float]]:
        pairs = [(at, v) for at, v in zip(self.at, self.values, strict=True) if v is not None]
        return [at for at, _ in pairs], [value for _, value in pairs]

    @cached_property
    def _sums(self) -> list[float]:
        return [0.0, *accumulate(self._known[1])]

    def select(self, windows: Iterable[Window]) -> list[float]:
        """The known values that were read within windows."""
        times, values = self._known
        found: list[float] = []
        for begin, end in windows:
            found += values[bisect_left(times, begin) : bisect_right(times, end)]
        return found

    def select_whole(self, windows: Iterable[Window]) -> list[float]:
        """The known values of which all the time since the reading before lies in one window."""
        found: list[float] = []
        for begin, end in windows:
            first, last = bisect_left(self.at, begin), bisect_right(self.at, end)
            values = self.values[first + 1 : last]
            found += [value for value in values if value is not None]
        return found

    def compute_mean(self, windows: Iterable[Window]) -> float | None:
        """The mean over windows; None where nothing could be read in them."""
        times = self._known[0]
        total, count = 0.0, 0
        for begin, end in windows:
            first, last = bisect_left(times, begin), bisect_right(times, end)
            total += self._sums[last] - self._sums[first]
            count += last - first
        return total / count if count else None

    def read_counter(self, at: float) -> float | None:
        """A counter's value at a moment, on the line between its neighbours; None outside."""
        times, values = self._known
        place = bisect_left(times, at)
        if place == len(times) or (place == 0 and times[0] != at):
            return None
        if times[place] == at:
            return values[place]
        share = (at - times[place - 1]) / (times[place] - times[place - 1])
        return values[place - 1] + (values[place] - values[place - 1]) * share

    def compute_increase(self, window: Window) -> float | None:
        """How far a counter rose within a window; None where it was not read on both sides.

        A counter that fell was set back, by a driver that was loaded anew: None, too.
        """
        begin, end = self.read_counter(window[0]), self.read_counter(window[1])
        if begin is None or end is None or end < begin:
            return None
        return end - begin

    def compute_integral(self, window: Window) -> float | None:
        """The integral over a window by the trapezoidal rule, in units times seconds.

        None where it was not read on both sides.
        """
        begin, end = self.read_counter(window[0]), self.read_counter(window[1])
        if begin is None or end is None:
            return None
        times, values = self._known
        first, last = bisect_right(times, window[0]), bisect_left(times, window[1])
        points = [(window[0], begin), *zip(times[first:last], values[first:last], strict=True)]
        points.append((window[1], end))
        return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))


NOTHING_READ = Track()


# ---- The time of a member without that in which its processes were stopped -----------------------
#
# Its runner stops members for about a second, so that others can be measured without them, and for
# longer where there is no place for them. Such time belongs to no rate and no slowdown, and while
# it lasts the member is no neighbour of the others.

_ROUNDING_S = 1e-5
"""Sums of seconds since the epoch are off by less."""


class OwnTime:
    """A clock that stands still while a member is stopped.

    Args:
        stopped: When it was stopped; windows may overlap, and in any order.
    """

    def __init__(self, stopped: Iterable[Window] = ()) -> None:
        joined = join_windows(sorted(window for window in stopped if window[1] > window[0]))
        self.stopped = tuple(joined)
        """When it was stopped, in order; no two of these windows touch."""
        self._begins = [begin for begin, _ in joined]
        self._sums = [0.0, *accumulate(end - begin for begin, end in joined)]

    def count_stopped_s(self, begin: float, end: float) -> float:
        """For how many seconds of a time it was stopped."""
        return max(0.0, self._count_before(end) - self._count_before(begin))

    def read(self, at: float) -> float:
        """What the clock shows at a moment: the same as any other before the first stop."""
        return at - self._count_before(at)

    def cut(self, begin: float, end: float) -> list[Window]:
        """The parts of a time in which it was not stopped."""
        parts: list[Window] = []
        at = begin
        for low, high in self.stopped[max(0, bisect_right(self._begins, begin) - 1) :]:
            if low >= end:
                break
            if low > at:
                parts.append((at, low))
            at = max(at, high)
        if end > at:
            parts.append((at, end))
        return parts

    def bridge(self, windows: Sequence[Window]) -> list[Window]:
        """Windows, joined where it was stopped all the time between two of them.

        A step that it was stopped in lies in what it had before and after.

        Args:
            windows: In order.
        """
        joined: list[Window] = []
        for begin, end in windows:
            last = joined[-1][1] if joined else begin
            gap_s = begin - last
            if joined and gap_s - self.count_stopped_s(last, begin) <= _ROUNDING_S:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((begin, end))
        return joined

    def keep_longer(self, least_s: float) -> OwnTime:
        """The same clock with none but the stops of at least so many seconds."""
        return OwnTime(w for w in self.stopped if w[1] - w[0] >= least_s)

    def _count_before(self, at: float) -> float:
        place = bisect_right(self._begins, at)
        if place == 0:
            return 0.0
        begin, end = self.stopped[place - 1]
        return self._sums[place - 1] + min(at, end) - begin


NEVER_STOPPED = OwnTime()


# ---- Rates of a member from its progress counters, over windows in which it had settled ----------

WINDOW_LEAST_S = 5.0
"""A shorter window says nothing: the host runs ahead of the GPU."""
WARM_UP_S = 10.0
WARM_UP_STEPS = 20
PAUSE_LEAST_S = 2.0
_PAUSE_STEPS = 5.0
_PAUSE_TIMES = 2.0
_NEIGHBOURS = 10
_BLOCKS_LEAST = 3

NO_PROGRESS = "it never reported progress"
NEVER_MOVED = "its counter never moved"


@dataclass(frozen=True)
class CounterReadings:
    """The counters of one start of a member, a row for each time they were read.

    Attributes:
        at: When, ascending, in seconds since the epoch.
        steps: Steps so far.
        samples: Samples so far.
        wait_s: Time waited for data so far, in seconds, as the mean of its training processes.
        last_step_at: When the newest step ended, in seconds since the epoch.
        first_step_at: When its first step ended; None where that is not known.
        own_time: Tells when its runner had stopped it.
    """

    at: Sequence[float]
    steps: Sequence[Value]
    samples: Sequence[Value]
    wait_s: Sequence[Value]
    last_step_at: Sequence[Value]
    first_step_at: float | None = None
    own_time: OwnTime = NEVER_STOPPED


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two steps at which the counter was read.

    Attributes:
        begin: Seconds since the epoch.
        end: Seconds since the epoch.
        steps: Steps in it, at least 1.
        samples: Samples in it; None where unknown.
        wait_s: Time waited for data between the two readings; None where unknown.
        stopped_s: For how many of its seconds the runner had stopped the member.
    """

    begin: float
    end: float
    steps: float
    samples: float | None
    wait_s: float | None
    stopped_s: float = 0.0

    @property
    def length_s(self) -> float:
        """Its length in seconds, without the time in which the member was stopped."""
        return self.end - self.begin - self.stopped_s


@dataclass(frozen=True)
class Settled:
    """What is left of a start without warm-up and pauses.

    Attributes:
        intervals: The rest, in order.
        stepping_s: Time from its first step to its last without pauses and stops, warm-up
            included.
        paused_s: Time in its own pauses: checkpoints, validation, whatever made no step for long.
        warm_up_s: What was left out at the beginning.
        steps: Steps in all.
        reason: Why there are no intervals; empty where there are.
    """

    intervals: tuple[Interval, ...]
    stepping_s: float = 0.0
    paused_s: float = 0.0
    warm_up_s: float = 0.0
    steps: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Rate:
    """A rate over settled windows.

    Attributes:
        steps_per_s: Steps per second; None where unknown.
        samples_per_s: Samples per second; None where unknown.
        window_s: Length of the windows in seconds.
        spread: Coefficient of variation over blocks of at least 5 s; None for fewer than three.
        reason: Why the rate is unknown; empty where it is known.
    """

    steps_per_s: float | None
    samples_per_s: float | None
    window_s: float
    spread: float | None
    reason: str = ""


def find_intervals(progress: CounterReadings) -> list[Interval]:
    """Cut a start at those readings at which its counter had moved.

    Readings without a value are passed over: the next one counts for them, too. A counter that
    falls was read while it was being written, and counts again once it is above what it was.
    """
    rows = []
    highest = 0.0
    for index, steps in enumerate(progress.steps):
        if steps is not None and steps > highest:
            highest = steps
            rows.append(index)
    has_times = all(progress.last_step_at[index] is not None for index in rows)
    times = progress.last_step_at if has_times else progress.at
    intervals = []
    for before, after in itertools.pairwise(rows):
        begin, end = times[before], times[after]
        first, last = progress.steps[before], progress.steps[after]
        if begin is None or end is None or first is None or last is None:
            continue
        stopped_s = progress.own_time.count_stopped_s(begin, end)
        if end - begin - stopped_s <= 0:
            continue
        intervals.append(
            Interval(
                begin,
                end,
                last - first,
                _subtract(progress.samples[after], progress.samples[before]),
                _subtract(progress.wait_s[after], progress.wait_s[before]),
                stopped_s,
            )
        )
    return intervals


def _subtract(after: Value, before: Value) -> float | None:
    return None if after is None or before is None or after < before else after - before


def settle(progress: CounterReadings) -> Settled:
    """Leave out the warm-up and the pauses of a start.

    The warm-up lasts 10 s and 20 steps, whichever is longer, but no more than half of the time.
    A pause is an interval that took longer than its steps take elsewhere by 2 s, by five steps
    and by twice its own steps' time.
    """
    known = [steps for steps in progress.steps if steps is not None]
    if not known:
        return Settled((), reason=NO_PROGRESS)
    steps = max(known)
    intervals = find_intervals(progress)
    if not intervals:
        reason = NEVER_MOVED if steps == 0 else "too short: no two readings with steps between"
        return Settled((), steps=steps, reason=reason)
    pauses = find_pauses(intervals)
    moving = [interval for interval in intervals if interval not in pauses]
    paused_s = sum(interval.length_s for interval in pauses)
    first = progress.first_step_at
    # Programs that end within a second of their first step have no other.
    begin = intervals[0].begin if first is None or first > intervals[0].begin else first
    clock = progress.own_time
    begin = clock.read(begin)
    stepping_s = max(0.0, clock.read(intervals[-1].end) - begin - paused_s)
    warm_up_end = begin + min(_find_warm_up_s(intervals, begin, clock), stepping_s / 2)
    rest = tuple(interval for interval in moving if clock.read(interval.begin) >= warm_up_end)
    warm_up_s = clock.read(rest[0].begin if rest else intervals[-1].end) - begin
    reason = "" if rest else "too short: it ended while it was warming up"
    return Settled(rest, stepping_s, paused_s, warm_up_s, steps, reason)


def _find_warm_up_s(intervals: Sequence[Interval], begin: float, clock: OwnTime) -> float:
    done = 0.0
    for interval in intervals:
        done += interval.steps
        if done >= WARM_UP_STEPS:
            return max(WARM_UP_S, clock.read(interval.end) - begin)
    return max(WARM_UP_S, clock.read(intervals[-1].end) - begin)


def find_pauses(intervals: Sequence[Interval]) -> frozenset[Interval]:
    """The intervals in which the member did something else than steps for a while."""
    step_s = _compute_median_step_s(intervals)
    found = set()
    for index, interval in enumerate(intervals):
        if _is_pause(interval, step_s):
            # A neighbour may have made all steps around it as slow.
            around = intervals[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS + 1]
            steps_s = sorted(each.length_s / each.steps for each in around)
            if _is_pause(interval, compute_percentile(steps_s, 0.5)):
                found.add(interval)
    return frozenset(found)


def _is_pause(interval: Interval, step_s: float) -> bool:
    expected_s = interval.steps * step_s
    limit_s = max(PAUSE_LEAST_S, _PAUSE_STEPS * step_s, _PAUSE_TIMES * expected_s)
    return interval.length_s - expected_s > limit_s


def _compute_median_step_s(intervals: Sequence[Interval]) -> float:
    """The step time of the step in the middle."""
    ordered = sorted((interval.length_s / interval.steps, interval.steps) for interval in intervals)
    half = sum(steps for _, steps in ordered) / 2
    for step_s, steps in ordered:
        half -= steps
        if half <= 0:
            return step_s
    return ordered[-1][0]


def select_within(intervals: Iterable[Interval], windows: Sequence[Window]) -> list[Interval]:
    """The intervals that lie wholly in one of some windows, which are in order."""
    found = []
    place = 0
    for interval in intervals:
        while place < len(windows) and windows[place][1] < interval.end:
            place += 1
        if place == len(windows):
            break
        if windows[place][0] <= interval.begin:
            found.append(interval)
    return found


def compute_rate(intervals: Sequence[Interval], least_s: float = WINDOW_LEAST_S) -> Rate:
    """The rate over settled intervals.

    Args:
        intervals: As `settle` leaves them, of one or several starts.
        least_s: Fewer seconds are too short.
    """
    window_s = sum(interval.length_s for interval in intervals)
    if window_s < least_s:
        reason = f"too short: {window_s:.1f} s of steps after the warm-up, at least {least_s:.0f}"
        return Rate(None, None, window_s, None, reason)
    steps = sum(interval.steps for interval in intervals)
    samples = sum_known(interval.samples for interval in intervals)
    return Rate(
        steps / window_s,
        # No program trains on nothing: a member that reports no samples has not counted them.
        samples / window_s if samples else None,
        window_s,
        compute_spread(intervals),
    )


def sum_known(values: Iterable[Value]) -> float | None:
    """The sum; None where one is unknown, or there are none."""
    total: float | None = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def compute_spread(intervals: Sequence[Interval]) -> float | None:
    """Standard deviation over mean of the rates in blocks of at least 5 s."""
    rates = []
    steps = length_s = 0.0
    for interval in intervals:
        steps += interval.steps
        length_s += interval.length_s
        if length_s >= WINDOW_LEAST_S:
            rates.append(steps / length_s)
            steps = length_s = 0.0
    if len(rates) < _BLOCKS_LEAST:
        return None
    mean = sum(rates) / len(rates)
    variance = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)
    return float(variance**0.5 / mean)
