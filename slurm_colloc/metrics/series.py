"""Series of measured values over time; None is what could not be read, never 0."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

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


@dataclass(frozen=True)
class Track:
    """One quantity of a GPU over time.

    Attributes:
        at: When it was read, ascending, in seconds since the epoch.
        values: What was read.
    """

    at: Sequence[float]
    values: Sequence[Value]

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
