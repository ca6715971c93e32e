"""What a ramp sees: a running member at one look, and what a window of looks shows; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

RATE_LEAST, RATE_MOST = 1e-6, 1e9
"""Steps per second; what is outside is none's rate."""

_SLOWDOWN_LEAST, _SLOWDOWN_MOST = 0.1, 1e4
"""The same of slowdowns that are accepted or predicted."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A running member as one look shows it.

    Attributes:
        number: Its number.
        start: Which of its starts this is.
        steps: Its steps so far; None where it has reported none.
        last_step_at: When the newest step ended, in seconds since the epoch.
        solo_steps_per_s: Its rate alone; None where unknown.
        bound: The slowdown that is accepted for it; None for any.
        predicted: Its slowdown in the whole pack by the plan; None where nothing was predicted.
        kind: Equal for members that are alike.
        steady: The monitor has found its rate settled.
        is_wide: It has all of the GPU's threads, others have a part each.
    """

    number: int
    start: int
    steps: int | None = None
    last_step_at: float | None = None
    solo_steps_per_s: float | None = None
    bound: float | None = None
    predicted: float | None = None
    kind: str = ""
    steady: bool = False
    is_wide: bool = False


@dataclass(frozen=True)
class Measured:
    """What a settled window shows.

    Attributes:
        running: Members in it.
        stp: Sum of their normalised progress (Eyerman and Eeckhout 2008); one that cannot be judged
            counts as the mean of the others.
        slowdowns: Of those that can be judged, by number. In a window that is too short to tell
            members apart that are alike, each has what they have in the mean.
        bounds: Slowdowns that are accepted, by number.
        predicted: Slowdowns in the whole pack by the plan, by number.
        window_s: Its length in seconds.
        singly: Of each by itself, by number; None where `slowdowns` are that.
        stp_error: Standard error of the sum, by how much it varies within the window; None where
            that is too short to tell.
    """

    running: int
    stp: float
    slowdowns: Mapping[int, float]
    bounds: Mapping[int, float]
    predicted: Mapping[int, float]
    window_s: float
    singly: Mapping[int, float] | None = None
    stp_error: float | None = None

    @property
    def worst(self) -> tuple[float, int | None]:
        """The largest part of a bound that is used, and whose; 0 and None where there is none."""
        return self._find_worst(self.slowdowns)

    @property
    def worst_singly(self) -> tuple[float, int | None]:
        """The same where each counts for itself alone."""
        return self._find_worst(self.slowdowns if self.singly is None else self.singly)

    def is_its_own(self, number: int) -> bool:
        """Whether a member's slowdown is its own, and not the mean of several."""
        return self.singly is None or self.singly[number] == self.slowdowns[number]

    def _find_worst(self, slowdowns: Mapping[int, float]) -> tuple[float, int | None]:
        shares = [(slowdowns[number] / bound, number) for number, bound in self.bounds.items()]
        return max(shares, default=(0.0, None))


def leave_out_absurd(sight: Sight) -> Sight:
    """Without figures that nothing can have; not a number is one of them."""

    def keep(value: float | None, least: float, most: float) -> float | None:
        return value if value is not None and least <= value <= most else None

    return dataclasses.replace(
        sight,
        solo_steps_per_s=keep(sight.solo_steps_per_s, RATE_LEAST, RATE_MOST),
        bound=keep(sight.bound, _SLOWDOWN_LEAST, _SLOWDOWN_MOST),
        predicted=keep(sight.predicted, _SLOWDOWN_LEAST, _SLOWDOWN_MOST),
    )
