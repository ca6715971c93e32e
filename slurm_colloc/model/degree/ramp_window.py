"""Settled windows of a running pack: how fast its members are together, against alone; pure.

Rates are counted from step to step over the looks at the members' counters. A window counts once
no member has come or gone in it, each is past its warm-up, and its two halves agree.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.model.degree.ramp_look import Measured, Sight, leave_out_absurd

MIN_WINDOW_S = 5.0
"""A shorter window says nothing: the host runs ahead of the GPU."""

WARM_UP_S = 10.0
WARM_UP_STEPS = 20
"""A member's steps count from then on, whichever comes first."""

CALM_AFTER_S = 20.0
"""After the first step of the newest member a window counts even where its halves differ."""

CALM_SPREAD = 0.10
"""How far the halves of a window may differ, in parts of their mean."""

FIRST_STEP_S = 60.0
"""A member that has reported no step until then reports none."""

PAUSE_LEAST_S = 2.0
PAUSE_STEPS = 5.0
PAUSE_MOST_S = 60.0
"""A member that makes no step for 2 s and for the time of five steps saves, or validates: one
waits for it, a minute at most."""

SINGLY_WINDOW_S = 30.0
"""A shorter window does not tell members apart that are alike: six like trainings on a virtual host
with an H200 did 69 to 128 steps a second over 5 s, by turns, and 92 to 106 over 50 s."""

_STEPS_LEAST = 3
_PARTS_LEAST = 3
_HALF_STEPS_LEAST = 5
_HISTORY_S = 130.0


@dataclass(frozen=True, slots=True)
class _Point:
    steps: int
    last_step_at: float


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    points: Mapping[int, _Point]


class LookHistory:
    """The looks at a pack since a member last came or went."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self._sights: dict[int, Sight] = {}
        self._since = 0.0
        self._came_at: dict[tuple[int, int], float] = {}
        self._first_step_at: dict[tuple[int, int], float] = {}
        self._warm_at: dict[tuple[int, int], float] = {}

    @property
    def since(self) -> float:
        """When a member last came or went, in seconds since the epoch."""
        return self._since

    def add(self, at: float, sights: Sequence[Sight]) -> None:
        """Take one look.

        Args:
            at: Seconds since the epoch.
            sights: All members that run.
        """
        sights = [leave_out_absurd(sight) for sight in sights]
        present = {(sight.number, sight.start) for sight in sights}
        if present != {(sight.number, sight.start) for sight in self._sights.values()}:
            self._looks.clear()
            self._since = at
            for kept in (self._came_at, self._first_step_at, self._warm_at):
                for key in [key for key in kept if key not in present]:
                    del kept[key]
        self._sights = {sight.number: sight for sight in sights}
        points = {}
        for sight in sights:
            key = (sight.number, sight.start)
            self._came_at.setdefault(key, at)
            if not sight.steps or sight.last_step_at is None:
                continue
            points[sight.number] = _Point(sight.steps, sight.last_step_at)
            first = self._first_step_at.setdefault(key, at)
            if sight.steady or sight.steps >= WARM_UP_STEPS or at >= first + WARM_UP_S:
                self._warm_at.setdefault(key, at)
        self._looks.append(_Look(at, points))
        while self._looks[0].at < at - _HISTORY_S:
            self._looks.popleft()

    def find_blindness(self) -> str:
        """Why none of the running members can be judged; empty where one can, or may soon."""
        known = [sight for sight in self._sights.values() if sight.solo_steps_per_s]
        if not known:
            return "the rate alone of no member is known"
        if all(self._reports_nothing(sight) for sight in known):
            return f"no member has reported a step within {FIRST_STEP_S:g} s"
        return ""

    def measure(
        self, least_s: float = MIN_WINDOW_S, *, with_pauses: bool = False
    ) -> Measured | None:
        """What the newest window shows; None where it is not settled yet.

        Args:
            least_s: It is at least so long, in seconds.
            with_pauses: Pauses count as a part of the members' work, once they have been waited
                for.
        """
        if not self._looks:
            return None
        end = self._looks[-1]
        judged = [sight for sight in self._sights.values() if self._can_be_judged(sight, end.at)]
        keys = [(sight.number, sight.start) for sight in judged]
        if not judged or any(key not in self._warm_at for key in keys):
            return None
        warm_at = max(self._warm_at[key] for key in keys)
        begin = self._find_begin(end, least_s, warm_at, [sight.number for sight in judged])
        if begin is None:
            return None
        rates = _compute_rates(begin, end, judged)
        if len(rates) < len(judged):
            return None
        first = max(self._since, *(self._first_step_at[key] for key in keys))
        if any(self._has_pause(sight, begin) for sight in judged) and (
            not with_pauses or end.at < first + PAUSE_MOST_S
        ):
            return None
        if end.at < first + CALM_AFTER_S and not self._is_calm(begin, judged):
            return None
        slowdowns = {
            sight.number: sight.solo_steps_per_s / rates[sight.number]
            for sight in judged
            if sight.solo_steps_per_s
        }
        progress = sum(1 / slowdown for slowdown in slowdowns.values())
        is_short = least_s < SINGLY_WINDOW_S
        return Measured(
            running=len(self._sights),
            stp=progress * len(self._sights) / len(judged),
            slowdowns=_average_alike(slowdowns, judged) if is_short else slowdowns,
            bounds={sight.number: sight.bound for sight in judged if sight.bound},
            predicted={sight.number: sight.predicted for sight in judged if sight.predicted},
            window_s=end.at - begin.at,
            singly=slowdowns if is_short else None,
            stp_error=self._compute_stp_error(begin, judged),
        )

    def _compute_stp_error(self, begin: _Look, judged: Sequence[Sight]) -> float | None:
        """The standard error of the sum of progress, from its parts of 5 s."""
        sums = []
        older = begin
        for look in self._looks:
            if look.at < older.at + MIN_WINDOW_S:
                continue
            rates = _compute_rates(older, look, judged)
            if len(rates) < len(judged):
                return None
            sums.append(sum(rates[each.number] / (each.solo_steps_per_s or 1.0) for each in judged))
            older = look
        if len(sums) < _PARTS_LEAST:
            return None
        mean = sum(sums) / len(sums)
        variance = sum((each - mean) ** 2 for each in sums) / (len(sums) - 1)
        return math.sqrt(variance / len(sums)) * len(self._sights) / len(judged)

    def _can_be_judged(self, sight: Sight, at: float) -> bool:
        if not sight.solo_steps_per_s or self._reports_nothing(sight):
            return False
        # What makes no step for longer than any pause is not waited for.
        return sight.last_step_at is None or at - sight.last_step_at < PAUSE_MOST_S

    def _reports_nothing(self, sight: Sight) -> bool:
        key = (sight.number, sight.start)
        waited_s = self._looks[-1].at - self._came_at[key] if self._looks else 0.0
        return key not in self._first_step_at and waited_s >= FIRST_STEP_S

    def _has_pause(self, sight: Sight, begin: _Look) -> bool:
        """Whether it made no step for long at some time in the window."""
        seen = [
            (look.at, look.points[sight.number])
            for look in self._looks
            if sight.number in look.points
        ]
        step_times = sorted(
            (newer.last_step_at - older.last_step_at) / (newer.steps - older.steps)
            for (_, older), (_, newer) in itertools.pairwise(seen)
            if newer.steps > older.steps
        )
        # The one in the middle; the module for it is loaded by no runner.
        step_s = step_times[len(step_times) // 2] if step_times else 0.0
        longest_s = max(at - point.last_step_at for at, point in seen if at >= begin.at)
        return longest_s > max(PAUSE_LEAST_S, PAUSE_STEPS * step_s)

    def _find_begin(
        self, end: _Look, least_s: float, warm_at: float, numbers: Sequence[int]
    ) -> _Look | None:
        """The newest look from which on there is a long enough window."""
        for look in reversed(self._looks):
            if look.at < warm_at:
                return None
            # Looks are never exactly on time.
            if end.at - look.at < 0.98 * least_s:
                continue
            made = [
                end.points[number].steps - look.points[number].steps
                for number in numbers
                if number in look.points and number in end.points
            ]
            if len(made) == len(numbers) and min(made) >= _STEPS_LEAST:
                return look
        return None

    def _is_calm(self, begin: _Look, judged: Sequence[Sight]) -> bool:
        """Whether the window's halves agree, as far as its steps are enough to tell."""
        end = self._looks[-1]
        middle_at = (begin.at + end.at) / 2
        # A look may lack the steps of one whose file was not to be read just then.
        numbers = {sight.number for sight in judged}
        within = [
            look
            for look in self._looks
            if begin.at < look.at < end.at and numbers <= look.points.keys()
        ]
        if not within:
            return False
        middle = min(within, key=lambda look: abs(look.at - middle_at))
        sums = [0.0, 0.0]
        newest = {sight.number for sight in judged if self._came_at[sight.number, sight.start]
                  >= self._since}  # fmt: skip
        for sight in judged:
            halves = [
                _compute_rates(older, newer, [sight]).get(sight.number)
                for older, newer in itertools.pairwise((begin, middle, end))
            ]
            steps = [
                newer.points[sight.number].steps - older.points[sight.number].steps
                for older, newer in itertools.pairwise((begin, middle, end))
            ]
            if halves[0] is None or halves[1] is None or min(steps) < _HALF_STEPS_LEAST:
                return False
            if sight.number in newest and not _agree(halves[0], halves[1]):
                return False
            for half, rate in enumerate((halves[0], halves[1])):
                sums[half] += rate / (sight.solo_steps_per_s or 1.0)
        return _agree(*sums)


def _average_alike(slowdowns: Mapping[int, float], judged: Sequence[Sight]) -> dict[int, float]:
    """For each member what those that are like it have in the mean, so that the sum stays."""
    groups: dict[tuple[str, bool, int], list[int]] = {}
    for sight in judged:
        if sight.number in slowdowns:
            # A member that is like no other is a group of its own.
            key = (sight.kind, sight.is_wide, 0 if sight.kind else sight.number)
            groups.setdefault(key, []).append(sight.number)
    found = dict(slowdowns)
    for numbers in groups.values():
        if len(numbers) > 1:
            mean = len(numbers) / sum(1 / slowdowns[each] for each in numbers)
            found.update(dict.fromkeys(numbers, mean))
    return found


def _agree(one: float, other: float) -> bool:
    return abs(one - other) <= CALM_SPREAD * (one + other) / 2


def _compute_rates(older: _Look, newer: _Look, sights: Sequence[Sight]) -> dict[int, float]:
    """Steps per second by number, of those that have made steps between two looks."""
    rates = {}
    for sight in sights:
        before, after = older.points.get(sight.number), newer.points.get(sight.number)
        if before is None or after is None:
            continue
        elapsed_s = after.last_step_at - before.last_step_at
        if after.steps > before.steps and elapsed_s > 0:
            rates[sight.number] = (after.steps - before.steps) / elapsed_s
    return rates
