"""Means with intervals, of figures of which those close together are correlated; pure.

Intervals are of 95 %, by the percentile bootstrap (Efron and Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13) over blocks (chapter 8). What has no data is None.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

DRAWS = 2000
TRIMMED = 0.1
"""The part that a trimmed mean leaves out at each end."""
_SEED = 1


@dataclass(frozen=True)
class Estimate:
    """By how much steps take longer, in per cent of what they take without.

    Attributes:
        mean: Over what was compared.
        low: Lower end of its 95 % interval; None for fewer than two blocks.
        high: Its upper end.
        median: Of what was compared.
        n: How many comparisons there are.
    """

    mean: float
    low: float | None
    high: float | None
    median: float
    n: int


def compute_trimmed_mean(values: Iterable[float]) -> float:
    """Mean without the largest and the smallest tenth."""
    ordered = sorted(values)
    out = int(TRIMMED * len(ordered))
    return statistics.fmean(ordered[out : len(ordered) - out])


def estimate(
    blocks: Sequence[Sequence[float]],
    compute: Callable[[list[float]], float] = statistics.fmean,
    *,
    draws: int = DRAWS,
) -> Estimate | None:
    """Mean and interval of shares, of which those of one block are not independent.

    Args:
        blocks: Shares, 0.01 for 1 %.
        compute: What makes a mean of them.
        draws: How often blocks are drawn.

    Returns:
        In per cent; None for no shares.
    """
    filled = [block for block in blocks if block]
    values = list(itertools.chain.from_iterable(filled))
    if not values:
        return None
    low = high = None
    if len(filled) > 1:
        chance = random.Random(_SEED)
        means = sorted(
            compute(list(itertools.chain.from_iterable(chance.choices(filled, k=len(filled)))))
            for _ in range(draws)
        )
        low = 100 * means[int(0.025 * draws)]
        high = 100 * means[min(draws - 1, int(0.975 * draws))]
    return Estimate(100 * compute(values), low, high, 100 * statistics.median(values), len(values))


def add_up(parts: Sequence[Estimate | None]) -> Estimate | None:
    """The sum of independent estimates; None where one of them is.

    Distances of an interval's ends from the mean add up like standard deviations. The least number
    of comparisons is that of the sum.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    mean = math.fsum(part.mean for part in known)
    low = high = None
    lows = [part.mean - part.low for part in known if part.low is not None]
    highs = [part.high - part.mean for part in known if part.high is not None]
    if len(lows) == len(highs) == len(known):
        low, high = mean - math.hypot(*lows), mean + math.hypot(*highs)
    median = math.fsum(part.median for part in known)
    return Estimate(mean, low, high, median, min(part.n for part in known))
