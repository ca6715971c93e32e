"""Means that begin at nothing and need several values to be believed."""

from __future__ import annotations

from dataclasses import dataclass

SHRINKING = 2.0
"""So many values of 0 stand beside the first that was seen."""

LARGEST = 1.0
"""A value further from 0 than that counts as that: one run that went wrong teaches little."""


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
        """`total / (n + 2)`."""
        return self.total / (self.n + SHRINKING)

    def add(self, value: float) -> ShrunkenMean:
        """With one more value."""
        return ShrunkenMean(self.total + max(-LARGEST, min(LARGEST, value)), self.n + 1)
