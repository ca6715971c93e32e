"""Steps of a program, from the steps of its optimizers; pure.

A program with two optimizers (GAN), or with one for each parameter (optimizer in backward), steps
several of them in one training step. A round is what lies between two steps of the same
optimizer: an optimizer that steps again, having stepped in this round, begins the next one. The
number of rounds is at least that of the busiest optimizer, and equal to it where they take turns.
It also goes on where one training follows another in the same process (k folds, a search), each
with an optimizer of its own, where the number of the busiest would stand still.

The first step of such a later optimizer looks like another part of the last round. If that
optimizer makes the next two steps as well, it was not, and its first step counts after all.
(The next one alone says little: two that take turns may change their order.)

A round in which some optimizer stepped is a step; one in which all were skipped is skipped.
"""

from __future__ import annotations

# One search may make thousands of optimizers, and their ids come back.
MOST_KNOWN = 4096


class Rounds:
    """Counts rounds.

    Attributes:
        steps: Rounds in which at least one optimizer changed its parameters.
        skipped: Rounds in which all steps were skipped.
        optimizers: How many optimizers were seen.
    """

    __slots__ = (
        "_joiner", "_joiner_again", "_joiner_stepped",
        "_last", "_number", "_stepped", "optimizers", "skipped",
        "steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        self.optimizers = 0
        self._number = 0
        self._stepped = False
        self._last: dict[int, int] = {}
        # The optimizer that came last, if it joined a round begun by another.
        self._joiner = 0
        self._joiner_stepped = False
        self._joiner_again = False

    def note(self, key: int, stepped: bool) -> None:
        """Take one step of the optimizer `key` (its id, not 0), or the skipping of one."""
        last = self._last.get(key)
        if last is None:
            if len(self._last) >= MOST_KNOWN:
                self._last.clear()
            self.optimizers += 1
            last = 0
        if last != self._number:
            self._join(key, stepped)
            return
        self._number += 1
        self._last[key] = self._number
        if self._joiner:
            if self._joiner != key:
                self._joiner = 0
            elif self._joiner_again:
                self._joiner = 0
                self._count_joining()
            else:
                self._joiner_again = True
        self._stepped = stepped
        if stepped:
            self.steps += 1
        else:
            self.skipped += 1

    def _join(self, key: int, stepped: bool) -> None:
        self._last[key] = self._number
        self._joiner = key
        self._joiner_again = False
        self._joiner_stepped = stepped
        if stepped and not self._stepped:
            self._stepped = True
            self.skipped -= 1
            self.steps += 1
            # It has been counted as a step by itself; what the others did was a skipped one.
            self._joiner_stepped = False

    def _count_joining(self) -> None:
        if self._joiner_stepped:
            self.steps += 1
        else:
            self.skipped += 1
