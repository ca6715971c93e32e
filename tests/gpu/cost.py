"""What watching costs a training, from many short units of it; pure.

A unit is a few steps with a wait for the GPU. The host of a virtual machine changes its speed by
half for seconds at a time, so only units that lie close together are compared, and by ratios of
which one is as likely as its inverse where nothing is to be found.
"""

from __future__ import annotations

import bisect
import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .estimates import DRAWS, Estimate, compute_trimmed_mean, estimate

UNITS_IN_GROUP = 4
BLOCK_S = 2.0

# The whole unit into which a tick falls, and the tick's work.
BEFORE_TICK_S = 0.05
AFTER_TICK_S = 0.15
# Of the units on each side of a tick, so that their median means something.
_LEAST_BESIDE = 4
# By how much the medians before and after a tick differ at most where the host kept its speed.
_SAME_SPEED = 0.15
_LEAST_FAST = 10
# What takes at most so many times as long as the run's fastest twentieth was the host's fast mode.
_FAST = 1.2


@dataclass(frozen=True)
class Unit:
    """A few steps of a training.

    Attributes:
        begin_s: Monotonic clock.
        took_s: Until the GPU had done them.
        has_hooks: They were counted.
        is_running: The monitor was not stopped.
        segment: The stretch of one state of the monitor to which it belongs; None: the monitor had
            just begun to run again.
    """

    begin_s: float
    took_s: float
    has_hooks: bool
    is_running: bool
    segment: int | None

    @property
    def end_s(self) -> float:
        """Monotonic clock."""
        return self.begin_s + self.took_s


@dataclass(frozen=True)
class TickCost:
    """What the monitor's ticks cost.

    Attributes:
        ticks: Time lost in ticks over the time between two.
        control: The same half a second after ticks; about 0 where the figures can be trusted.
        met: Ticks in segments in which the monitor runs, also those that cannot be judged.
    """

    ticks: Estimate | None
    control: Estimate | None
    met: int


@dataclass(frozen=True)
class PresenceCost:
    """What the monitor costs between its ticks.

    Attributes:
        low_quantile: By the 10th percentile of each segment.
        fast_mode: By the median of those units of each segment that the host did not slow down.
    """

    low_quantile: Estimate | None
    fast_mode: Estimate | None


def parse_units(text: str) -> list[Unit]:
    """Read what paired.py has written."""
    return [
        Unit(
            int(row["begin_ns"]) / 1e9,
            int(row["took_ns"]) / 1e9,
            row["hooks"] == "1",
            row["monitor"] == "running",
            int(row["segment"]) if row["segment"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    ]


def convert_to_monotonic(
    epochs_s: Iterable[float], clocks: Sequence[tuple[float, float]]
) -> list[float]:
    """Moments on the monotonic clock.

    Args:
        epochs_s: Seconds since the epoch.
        clocks: Epoch and monotonic clock at the same moment, twice.
    """
    (epoch, clock), (last_epoch, last_clock) = clocks[0], clocks[-1]
    pace = (last_clock - clock) / (last_epoch - epoch)
    return [clock + (moment - epoch) * pace for moment in epochs_s]


# -- counting --------------------------------------------------------------------------------------


def estimate_instrument(
    units: Sequence[Unit], *, draws: int = DRAWS
) -> tuple[Estimate | None, Estimate | None]:
    """What counting costs: a trimmed and a plain mean over groups of four units.

    Raises:
        ValueError: A group has not two units with hooks and two without.
    """
    blocks: dict[int, list[float]] = {}
    for first in range(0, len(units) - UNITS_IN_GROUP + 1, UNITS_IN_GROUP):
        group = units[first : first + UNITS_IN_GROUP]
        counted = [unit.took_s for unit in group if unit.has_hooks]
        plain = [unit.took_s for unit in group if not unit.has_hooks]
        if len(counted) != len(plain):
            raise ValueError(f"the group at unit {first} is not balanced")
        block = int((group[0].begin_s - units[0].begin_s) / BLOCK_S)
        blocks.setdefault(block, []).append(_compare(math.fsum(counted), math.fsum(plain)))
    every = list(blocks.values())
    return estimate(every, compute_trimmed_mean, draws=draws), estimate(every, draws=draws)


def _compare(with_s: float, without_s: float) -> float:
    """The difference over the mean of both, which changes its sign alone where both change places.

    With a plain ratio, a group in which the host's speed changes would on average look as if it had
    become slower: half of 3/2 and 2/3 is more than 1.
    """
    return 2 * (with_s - without_s) / (with_s + without_s)


# -- the monitor -----------------------------------------------------------------------------------


class Timeline:
    """Units in their order, and when the monitor worked."""

    def __init__(self, units: Sequence[Unit], ticks: Iterable[float]) -> None:
        self.units = units
        self.ticks = sorted(ticks)
        self._begins = [unit.begin_s for unit in units]
        self._is_disturbed = [False] * len(units)
        for tick in self.ticks:
            for index in self._find(tick):
                self._is_disturbed[index] = True

    def _find(self, moment: float) -> range:
        """Units that a tick at this moment would meet."""
        begin, end = moment - BEFORE_TICK_S, moment + AFTER_TICK_S
        first = max(0, bisect.bisect_left(self._begins, begin) - 1)
        if first < len(self.units) and self.units[first].end_s <= begin:
            first += 1
        return range(first, bisect.bisect_left(self._begins, end))

    def find_segments(self) -> dict[int, list[Unit]]:
        """The units of each segment that no tick has met."""
        found: dict[int, list[Unit]] = {}
        for unit, is_disturbed in zip(self.units, self._is_disturbed, strict=True):
            if unit.segment is not None and not is_disturbed:
                found.setdefault(unit.segment, []).append(unit)
        return found

    def is_counted(self, moment: float) -> bool:
        """All units that a tick would meet belong to segments in which the monitor runs."""
        met = [self.units[index] for index in self._find(moment)]
        return bool(met) and all(unit.is_running and unit.segment is not None for unit in met)

    def compute_lost_s(self, moment: float) -> float | None:
        """By how much the units at a moment took longer than others of the second around it.

        Returns:
            Seconds; None where there are too few units, or where the host had another speed
            before than after. What happens at the moment itself has no part in that.
        """
        met = self._find(moment)
        before = self._collect(bisect.bisect_left(self._begins, moment - 0.5), met.start)
        after = self._collect(met.stop, bisect.bisect_left(self._begins, moment + 0.5))
        if not met or min(len(before), len(after)) < _LEAST_BESIDE:
            return None
        if abs(_compare(statistics.median(before), statistics.median(after))) > _SAME_SPEED:
            return None
        # The mean and not the median: units that the host holds up are met by ticks as well.
        usual_s = statistics.fmean([*before, *after])
        begin, end = moment - BEFORE_TICK_S, moment + AFTER_TICK_S
        done, window_s = 0.0, 0.0
        for unit in self.units[met.start : met.stop]:
            inside_s = min(end, unit.end_s) - max(begin, unit.begin_s)
            window_s += inside_s
            done += inside_s / unit.took_s
        # Parts of units: whole ones would rather be the long ones, which more often reach into it.
        return window_s - done * usual_s

    def _collect(self, first: int, end: int) -> list[float]:
        """Lengths of units that no tick has met."""
        return [self.units[i].took_s for i in range(first, end) if not self._is_disturbed[i]]


def estimate_ticks(timeline: Timeline, interval_s: float = 1.0, *, draws: int = DRAWS) -> TickCost:
    """What ticks of the running monitor cost, and what is found where there are none."""
    lost, controls = [], []
    ticks = [tick for tick in timeline.ticks if timeline.is_counted(tick)]
    for tick in ticks:
        own_s = timeline.compute_lost_s(tick)
        if own_s is not None:
            lost.append([own_s / interval_s])
        beside_s = timeline.compute_lost_s(tick + 0.5)
        if beside_s is not None:
            controls.append([beside_s / interval_s])
    return TickCost(estimate(lost, draws=draws), estimate(controls, draws=draws), len(ticks))


def estimate_presence(timeline: Timeline, *, draws: int = DRAWS) -> PresenceCost:
    """What the running monitor costs between ticks: segments with it against neighbours without."""
    segments = timeline.find_segments()
    every = [unit.took_s for units in segments.values() for unit in units]
    fast_s = _FAST * _find_quantile(every, 0.05) if every else 0.0
    low, fast = [], []
    for number in sorted(segments):
        pair = [segments.get(number, []), segments.get(number + 1, [])]
        if number % 2 or not all(pair) or pair[0][0].is_running == pair[1][0].is_running:
            continue
        pair.sort(key=lambda units: units[0].is_running)
        without, running = ([unit.took_s for unit in units] for units in pair)
        low.append([_compare(_find_quantile(running, 0.1), _find_quantile(without, 0.1))])
        without, running = ([one for one in took if one <= fast_s] for took in (without, running))
        if min(len(without), len(running)) >= _LEAST_FAST:
            fast.append([_compare(statistics.median(running), statistics.median(without))])
    return PresenceCost(estimate(low, draws=draws), estimate(fast, draws=draws))


def _find_quantile(values: Iterable[float], share: float) -> float:
    """By a straight line between the two nearest values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
