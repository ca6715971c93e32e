"""Whether a member makes its steps at another rate than when its pack was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.runtime.watch.window_rates import StepCount, WindowRates

LOOK_S = 10.0
DRIFT = 0.25
"""A rate that differs by so much is another one: another batch size, another phase."""
LOOKS = 3
"""In so many looks one after the other: a checkpoint or a validation is over before."""


@dataclass
class _Course:
    """How a member goes on.

    Attributes:
        begin: Its steps at the last look.
        usual: Its rate in the first look after the measurement; None before.
        odd: Looks one after the other in which it was another.
    """

    begin: StepCount
    usual: float | None = None
    odd: int = 0


class RateDrift:
    """Watches members between measurements.

    Args:
        rates: Reads their steps.
        clock: Seconds that only grow.
    """

    def __init__(self, rates: WindowRates, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates = rates
        self._clock = clock
        self._courses: dict[tuple[int, int], _Course] = {}
        self._looked_at = 0.0

    def forget(self) -> None:
        """Begin anew: a measurement has ended, or who runs has changed."""
        self._courses = {}
        self._looked_at = self._clock()

    def find(self, running: Sequence[Member]) -> Member | None:
        """A member whose rate has changed for good; None where none has, or it is not time to look.

        Args:
            running: Those that run and are not paused, the same as since `forget`.
        """
        now = self._clock()
        if now < self._looked_at + LOOK_S:
            return None
        self._looked_at = now
        changed = [member for member in running if self._has_changed(member)]
        return changed[0] if changed else None

    def _has_changed(self, member: Member) -> bool:
        key = member.number, member.record.starts
        count = self._rates.read(member)
        if count is None:
            return False
        course = self._courses.get(key)
        if course is None:
            self._courses[key] = _Course(count)
            return False
        steps, elapsed_s = count.steps - course.begin.steps, count.at - course.begin.at
        if count.is_printed and count.last_step_s and course.begin.last_step_s:
            # From line to line: as many lines as a look happens to hold would be no rate.
            elapsed_s = count.last_step_s - course.begin.last_step_s
        course.begin = count
        if steps <= 0 or elapsed_s <= 0:
            # It is at something else.
            course.odd = 0
            return False
        rate = steps / elapsed_s
        if course.usual is None:
            course.usual = rate
            return False
        course.odd = course.odd + 1 if abs(rate / course.usual - 1.0) > DRIFT else 0
        return course.odd >= LOOKS
