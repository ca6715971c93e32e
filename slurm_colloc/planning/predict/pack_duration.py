"""How long a pack lasts: when a member ends, those left are rated anew.

Those left keep their thread limits. They are taken to go as fast as they would where the same way
of sharing were chosen for them alone, but no faster than its own limit lets each go alone. Of five
members or fewer each end counts; in a larger pack those left are rated anew when a fifth has ended,
which takes their slowdown for a little higher than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TIE = 1e-6
"""Members whose ends are closer than this, relatively, end together."""

KEPT_SHARE = (4, 5)
"""Where no more than this share of the members is left of those that were rated, they are rated
anew."""


def compute_ends_s(
    run_s: Sequence[float],
    floors: Sequence[float],
    rate: Callable[[tuple[int, ...]], Sequence[float]],
) -> list[float]:
    """When each member of a pack ends.

    Args:
        run_s: Seconds that each takes alone.
        floors: Slowdown of each by its own limit, without neighbours.
        rate: The slowdowns of those that still run, by their positions, in the same order.

    Returns:
        Seconds from the pack's start.
    """
    left = list(run_s)
    ends = [0.0] * len(left)
    running = tuple(range(len(left)))
    slowdowns: dict[int, float] = {}
    rated = 0
    clock = 0.0
    while running:
        if not rated or len(running) * KEPT_SHARE[1] <= rated * KEPT_SHARE[0]:
            rated = len(running)
            slowdowns = {
                i: max(slowdown, floors[i])
                for i, slowdown in zip(running, rate(running), strict=True)
            }
        step = min(left[i] * slowdowns[i] for i in running)
        clock += step
        ended = {i for i in running if left[i] * slowdowns[i] <= step * (1 + TIE)}
        for i in running:
            left[i] = max(0.0, left[i] - step / slowdowns[i])
            if i in ended:
                ends[i] = clock
        running = tuple(i for i in running if i not in ended)
    return ends
