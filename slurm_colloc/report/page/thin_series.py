"""A long series in few points, each with the least, mean and greatest of what it stands for.

Pure, with numpy. No extreme is lost: what a point stands for lies between its least and greatest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.intp]

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


def find_places(at: Floats, begin: float, step_s: float) -> Places:
    """In which step of time each moment lies; the first step is 0, and moments may lie outside.

    Args:
        at: Moments, in seconds.
        begin: Where the first step begins.
        step_s: How long a step is.
    """
    import numpy as np

    return np.floor((at - begin) / step_s).astype(np.intp)


def thin(place: Places, values: Floats, count: int) -> ThinSeries:
    """Even steps of time with what was read in each.

    Args:
        place: In which step each value was read.
        values: What was read; NaN where it could not be.
        count: How many steps there are; what lies outside is left out.
    """
    import numpy as np

    kept = np.isfinite(values) & (place >= 0) & (place < count)
    if not kept.all():
        place, values = place[kept], values[kept]
    if np.any(np.diff(place) < 0):
        order = np.argsort(place, kind="stable")
        place, values = place[order], values[order]
    if not len(place):
        return ThinSeries([None] * count, [], [])
    first = np.concatenate([[0], np.flatnonzero(np.diff(place)) + 1])
    filled, number = place[first], np.diff(first, append=len(place))

    def spread(of_each: Floats) -> Numbers:
        whole = np.full(count, np.nan)
        whole[filled] = of_each
        return shorten(whole)

    mean = spread(np.add.reduceat(values, first) / number)
    if number.max() <= 1:
        return ThinSeries(mean, [], [])
    return ThinSeries(
        mean,
        spread(np.minimum.reduceat(values, first)),
        spread(np.maximum.reduceat(values, first)),
    )


def shorten(values: Floats) -> Numbers:
    """Numbers of few digits, as JSON writes them in little room; None for what is not a number."""
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        more = np.floor(np.log10(np.abs(values))) - (_DIGITS - 1)
        # What is multiplied and divided by is whole, so that no digits come behind those kept.
        small, large = 10.0 ** np.maximum(-more, 0), 10.0 ** np.maximum(more, 0)
        short = np.round(values / large * small) / small * large
    short = np.where(np.abs(values) < _SMALL, 0.0, short)
    return [
        (int(value) if value.is_integer() else value) if math.isfinite(value) else None
        for value in short.tolist()
    ]
