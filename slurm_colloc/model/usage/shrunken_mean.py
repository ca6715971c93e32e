"""Means that begin at nothing and need several values to be believed."""

from __future__ import annotations

from dataclasses import dataclass

SHRINKING = 2.0
"""So many values of 0 are taken to have come before the first."""

LARGEST = 1.0
"""A value further from 0 than that counts as that: one run that went wrong teaches little."""


BELIEVED_FROM = 3
FIRST_MOST = 0.15
"""Fewer values than that move a prediction by no more than this: a job that was disturbed once is
still packed, so that it can show what is usual."""


@dataclass(frozen=True)
class ShrunkenMean:
    """The mean of values between -1 and 1, shrunken towards 0; it stays between them itself.

    Attributes:
        total: Their sum.
        n: How many there were.
    """

    total: float = 0.0
    n: int = 0

    @property
    def value(self) -> float:
        """`total / (n + 2)`, and little for the first few values."""
        mean = self.total / (self.n + SHRINKING)
        if self.n >= BELIEVED_FROM:
            return mean
        return max(-FIRST_MOST, min(FIRST_MOST, mean))

    def add(self, value: float) -> ShrunkenMean:
        """With one more value."""
        return ShrunkenMean(self.total + max(-LARGEST, min(LARGEST, value)), self.n + 1)
