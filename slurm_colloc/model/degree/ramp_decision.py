"""What a ramp decides, and in which words; pure."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.degree.ramp_look import Sight

STAGE_S = 30
"""From a member's start until it is measured, as a rule: 8 s to its first step, its warm-up, and a
window of 5 to 20 s. Where time is short, no member waits longer for it."""

NO_MORE = "no more than "
BEING_MEASURED = "the pack is being measured"
TOO_LITTLE_TIME = "the pack has only "


class RampState(enum.StrEnum):
    """Where a ramp is."""

    RAMPING = "RAMPING"
    SETTLED = "SETTLED"
    STEPPED_BACK = "STEPPED_BACK"
    OFF = "OFF"
    """It cannot be measured, so as many run as were planned."""


def is_ramp_reason(text: str) -> bool:
    """Whether a ramp has written why a member waits."""
    return text.startswith((BEING_MEASURED, NO_MORE))


def is_time_reason(text: str) -> bool:
    """Whether that a member waits was put down to the time that is left of its pack."""
    return text.startswith(TOO_LITTLE_TIME)


@dataclass(frozen=True)
class Decision:
    """One decision.

    Attributes:
        at: Seconds since the epoch.
        state: Where the ramp is from now on.
        running: Members that ran when it was made.
        target: How many may run from now on.
        stp: The sum of normalised progress it rests on; None where nothing was measured.
        reason: Why, in words.
        stops_one: The newest member that can go on later is to be stopped.
    """

    at: float
    state: RampState
    running: int
    target: int
    stp: float | None
    reason: str
    stops_one: bool = False


@dataclass(frozen=True)
class RampOutlook:
    """What could be added.

    Attributes:
        waiting: Members that could start now, if the ramp lets them.
        next_kind: What the first of them is like; see `Sight.kind`.
        busy: The GPU's mean activity, the busiest of its parts, 0 to 1; None where unknown.
        room: How many like the one that runs alone fit onto the GPU, by what it takes; None
            where that is unknown, or others wait.
        can_stop: A running member can be stopped and go on later.
    """

    waiting: int = 0
    next_kind: str = ""
    busy: float | None = None
    room: int | None = None
    can_stop: bool = False


def format_ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"


def say_no_more(target: int) -> str:
    """`no more than 3 run at once`."""
    return f"{NO_MORE}{target} {'runs' if target == 1 else 'run at once'}"


NEW_LOOK_S = 120.0
"""Earliest time after a decision for another try, twice as long after each that failed there."""


class RampMemory:
    """With whom a pack has settled, and what was too many."""

    def __init__(self) -> None:
        self._settled_at = 0.0
        self._settled_kinds: tuple[str, ...] = ()
        self._is_beside_wide = False
        self._refused: set[tuple[str, ...]] = set()
        self._tries: Counter[int] = Counter()

    def note_refusal(self, degree: int, sights: Sequence[Sight]) -> None:
        """So many were too many; those that run, if it is them."""
        self._tries[degree] += 1
        if degree <= len(sights):
            self._refused.add(_list_kinds(sights))

    def note_settled(self, at: float, sights: Sequence[Sight]) -> None:
        """It was decided, at a time in seconds since the epoch, while these ran."""
        self._settled_at = at
        self._settled_kinds = _list_kinds(sights)
        self._is_beside_wide = any(sight.is_wide for sight in sights)

    def may_try(self, at: float, sights: Sequence[Sight], next_kind: str) -> bool:
        """Whether one more may be tried next to these: others run than those it was settled with.

        Args:
            at: Seconds since the epoch.
            sights: The members that run.
            next_kind: The kind of the one that would be added.
        """
        if self._is_beside_wide and not any(sight.is_wide for sight in sights):
            # Next to one that had all threads, those with a part each were slower than among
            # themselves: nothing of that holds any more.
            self._is_beside_wide = False
            self._settled_at, self._settled_kinds = -math.inf, ()
            self._refused.clear()
            self._tries.clear()
        kinds = _list_kinds(sights)
        if kinds == self._settled_kinds:
            return False
        if tuple(sorted((*kinds, next_kind))) in self._refused:
            return False
        wait_s = NEW_LOOK_S * 2.0 ** self._tries[len(sights) + 1]
        return at >= self._settled_at + wait_s


def _list_kinds(sights: Sequence[Sight]) -> tuple[str, ...]:
    return tuple(sorted(sight.kind for sight in sights))
