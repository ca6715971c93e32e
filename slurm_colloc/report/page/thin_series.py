"""A long series in few points, each with the least, mean and greatest of what it stands for.

Pure, with numpy. No extreme is lost: what a point stands for lies between its least and greatest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_DIGITS = 4
_SMALL = 1e-4
Numbers = list[float | None]


@dataclass(frozen=True)
class ThinSeries:
    """A series in even steps of time.

    Attributes:
        mean: Of each step; None where nothing was read in it.
        least: The least reading of each step; empty where no step has more than one.
        greatest: The greatest likewise.
    """

    mean: Numbers
    least: Numbers
    greatest: Numbers

    def build_mapping(self) -> dict[str, Any]:
        """Its JSON form; without what it does not have."""
        value: dict[str, Any] = {"mean": self.mean}
        if self.least:
            value |= {"least": self.least, "greatest": self.greatest}
        return value


def thin(at: Floats, values: Floats, begin: float, step_s: float, count: int) -> ThinSeries:
    """Even steps of time with what was read in each.

    Args:
        at: When it was read, in seconds.
        values: What was read; NaN where it could not be.
        begin: Where the first step begins.
        step_s: How long a step is.
        count: How many steps there are; what lies outside is left out.
    """
    import numpy as np

    place = np.floor((at - begin) / step_s).astype(np.int64)
    kept = np.isfinite(values) & (place >= 0) & (place < count)
    place, values = place[kept], values[kept]
    number = np.bincount(place, minlength=count)
    total = np.bincount(place, weights=values, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / number
    if number.max(initial=0) <= 1:
        return ThinSeries(shorten(mean), [], [])
    least, greatest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(least, place, values)
    np.maximum.at(greatest, place, values)
    return ThinSeries(shorten(mean), shorten(least), shorten(greatest))


def shorten(values: Floats) -> Numbers:
    """Numbers of few digits, as JSON writes them in little room; None for what is no number."""
    return [
        None if value != value or value in (float("inf"), float("-inf")) else _shorten_one(value)  # noqa: PLR0124 - NaN
        for value in values.tolist()
    ]


def _shorten_one(value: float) -> float:
    if abs(value) < _SMALL:
        return 0
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short == int(short) else short
