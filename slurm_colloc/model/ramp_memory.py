"""What a ramp has tried with whom, so that it does not go to and fro; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from slurm_colloc.model.ramp_sight import Sight

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
        """Whether one more may be tried beside these: others run than those it was settled with.

        Args:
            at: Seconds since the epoch.
            sights: The members that run.
            next_kind: The kind of the one that would be added.
        """
        if self._is_beside_wide and not any(sight.is_wide for sight in sights):
            # Beside one that had all threads, those with a part each were slower than among
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
