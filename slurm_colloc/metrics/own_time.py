"""The time of a member without that in which its processes were stopped.

Its runner stops members for about a second, so that others can be measured without them, and for
longer where there is no place for them. Such time belongs to no rate and no slowdown, and while it
lasts the member is no neighbour of the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from slurm_colloc.metrics.series import Window

_ROUNDING_S = 1e-5
"""Sums of seconds since the epoch are off by less."""


class OwnTime:
    """A clock that stands still while a member is stopped.

    Args:
        stopped: When it was stopped; windows may overlap, and in any order.
    """

    def __init__(self, stopped: Iterable[Window] = ()) -> None:
        joined: list[Window] = []
        for begin, end in sorted(stopped):
            if end <= begin:
                continue
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
        self._stopped = tuple(joined)
        self._begins = [begin for begin, _ in joined]
        self._sums = [0.0, *accumulate(end - begin for begin, end in joined)]

    @property
    def stopped(self) -> tuple[Window, ...]:
        """When it was stopped, in order; no two of these windows touch."""
        return self._stopped

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
        for low, high in self._stopped[max(0, bisect_right(self._begins, begin) - 1) :]:
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
        return OwnTime(w for w in self._stopped if w[1] - w[0] >= least_s)

    def _count_before(self, at: float) -> float:
        place = bisect_right(self._begins, at)
        if place == 0:
            return 0.0
        begin, end = self._stopped[place - 1]
        return self._sums[place - 1] + min(at, end) - begin


NEVER_STOPPED = OwnTime()
