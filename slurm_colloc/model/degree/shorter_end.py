"""How many members run at once where few are left over: more, so that the last end sooner; pure.

The degree of the most progress may leave the GPU to few at the end: of twelve, ten at once and
then two take longer than twelve at once that make as much progress together as ten.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from slurm_colloc.model.degree.measured_curve import CurvePoint

LOSS_MOST = 0.05
"""Of the progress of the best degree: so much may be given up for a shorter end."""
GAIN_LEAST = 0.05
"""By so much all of them must end sooner."""


def choose_for_the_end(curve: Sequence[CurvePoint], degree: int, members: int, places: int) -> int:
    """The degree at which the last of some members ends first.

    All count as equally long. Between measured degrees progress goes in a straight line; more than
    were measured make no more progress than the most that were.

    Args:
        curve: The measured points.
        degree: The degree of the most progress.
        members: Those that run, and those that wait to run there.
        places: How many can be there at once.

    Returns:
        `degree`, or a larger one that gives up little progress, keeps the bounds of all members and
        lets the last one surely end sooner.
    """
    points = {1: 1.0} | {point.degree: point.stp for point in curve}
    if not curve or degree not in points or degree >= members:
        return degree
    best, best_end = degree, _compute_end(points, degree, members) * (1.0 - GAIN_LEAST)
    for more in range(degree + 1, min(members, places) + 1):
        stp = _compute_stp(points, more)
        if stp < (1.0 - LOSS_MOST) * points[degree] or not _keeps_bounds(curve, more):
            break
        end = _compute_end(points, more, members)
        if end < best_end - 1e-9:
            best, best_end = more, end
    return best


def _compute_end(points: dict[int, float], degree: int, members: int) -> float:
    """When the last one ends, in times that one alone takes: in rounds of so many."""
    full, rest = divmod(members, degree)
    end = full * degree / _compute_stp(points, degree)
    return end + (rest / _compute_stp(points, rest) if rest else 0.0)


def _compute_stp(points: dict[int, float], degree: int) -> float:
    known = sorted(points)
    place = bisect.bisect_left(known, degree)
    if place == len(known):
        return points[known[-1]]
    above = known[place]
    if above == degree:
        return points[degree]
    below = known[place - 1]
    part = (degree - below) / (above - below)
    return points[below] + part * (points[above] - points[below])


def _keeps_bounds(curve: Sequence[CurvePoint], degree: int) -> bool:
    """By the next larger degree that was measured; beyond all, slowdowns grow with the degree."""
    larger = [point for point in curve if point.degree >= degree]
    point = min(larger or curve, key=lambda point: abs(point.degree - degree))
    if point.worst_slowdown is None or point.worst_bound is None:
        return True
    grown = max(1.0, degree / point.degree)
    return point.worst_slowdown * grown <= point.worst_bound
