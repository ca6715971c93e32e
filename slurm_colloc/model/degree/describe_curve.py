"""Which degree is best in a pack, and from which numbers, in one sentence; pure.

Its runner writes these words, and csub says them again from what the runner has written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_colloc.model.degree.degree_reasons import (
    BEING_MEASURED,
    is_degree_reason,
    say_at_once,
    say_no_more,
)
from slurm_colloc.model.degree.measured_curve import CurvePoint, DegreeState
from slurm_colloc.model.member import tell_number
from slurm_colloc.model.sbatch.quantities import format_members

_ERRORS = 2.0
"""A difference of fewer standard errors is none."""
_EVEN = 1.01
"""Below it a member does not count as slower."""


def describe_curve(curve: Sequence[CurvePoint], degree: int) -> str:
    """Why so many members of a pack run at once, by what was measured.

    `no more than 6 run at once: 6 together make 4.1 times the progress of one alone, 8 make 3.6,
    and member 2 would be 1.7 times slower than alone (1.5 is accepted)`.

    Args:
        curve: The measured points, in any order; of several of one degree the last counts.
        degree: How many may run.

    Returns:
        The sentence, without a full stop; empty where no two were measured together.
    """
    points = {point.degree: point for point in curve if point.degree > 1}
    if not points:
        return ""
    chosen = points.get(degree)
    fewer = max((other for other in points if other < degree), default=None)
    more = min((other for other in points if other > degree), default=None)
    if more is None:
        shown = chosen or points[max(points)]
        fewer = max((other for other in points if other < shown.degree), default=None)
        others = [] if fewer is None else [points[fewer]]
        told = f"{say_at_once(degree)}: {_compare(shown, others)}"
        return told + _tell_bound(shown, ", and", "is")
    beyond = points[more]
    base = chosen if fewer is None or chosen is not None else points[fewer]
    told = _compare(beyond, []) if base is None else _compare(base, [beyond])
    is_more = beyond.stp > (1.0 if base is None else base.stp)
    bound = ""
    if is_beyond_bound(beyond):
        bound = _tell_bound(beyond, ", but" if is_more else ", and", "would be")
    elif chosen is not None and is_more and not _is_surely_more(beyond, chosen):
        bound = ", which is not surely more"
    return f"{say_no_more(degree)}: {told}{bound}"


def describe_measured(
    state: DegreeState, curve: Sequence[CurvePoint], degree: int, reason: str
) -> str:
    """What is known of how many run at once, or why nothing was measured; empty where neither is.

    The numbers are the newest ones; the reason of the newest decision comes after them where it is
    something else.

    Args:
        state: How far the measurement is.
        curve: The measured points.
        degree: How many may run.
        reason: The reason of the newest decision; empty while there is none.
    """
    if state is not DegreeState.SETTLED:
        return reason
    told = describe_curve(curve, degree)
    if not told:
        return reason
    # Behind a semicolon stands what follows from no curve.
    other = reason.partition("; ")[2] if is_degree_reason(reason) else reason
    return f"{told}; {other}" if other else told


def explain_no_start(state: DegreeState, degree: int, places: int, running: int, said: str) -> str:
    """Why a member waits although its pack has a place for it; empty where that is not why.

    Args:
        state: How far the measurement is.
        degree: How many may run.
        places: How many can be there, those that are paused among them.
        running: Members that are there, those that are paused among them.
        said: What is known of how many run at once; see `describe_measured`.
    """
    if state is DegreeState.OFF or running < degree or running >= places:
        return ""
    if state is DegreeState.MEASURING:
        return f"{BEING_MEASURED} with {format_members(running)}"
    return said


def is_beyond_bound(point: CurvePoint) -> bool:
    """Whether a member was slower there than is accepted for it."""
    slowdown, bound = point.worst_slowdown, point.worst_bound
    return slowdown is not None and bound is not None and slowdown > bound


def _compare(first: CurvePoint, others: Sequence[CurvePoint]) -> str:
    told = f"{first.degree} together make {first.stp:.1f} times the progress of one alone"
    return ", ".join([told, *(f"{other.degree} make {other.stp:.1f}" for other in others)])


def _tell_bound(point: CurvePoint, link: str, verb: str) -> str:
    slowdown, bound, member = point.worst_slowdown, point.worst_bound, point.worst_member
    if slowdown is None or bound is None or member is None or slowdown < _EVEN:
        return ""
    # Of two figures that look the same none would be seen to be the larger one.
    digits = 1 if f"{slowdown:.1f}" != f"{bound:.1f}" else 2
    return (
        f"{link} member {tell_number(member)} {verb} {slowdown:.{digits}f} times slower than alone "
        f"({bound:.{digits}f} is accepted)"
    )


def _is_surely_more(point: CurvePoint, than: CurvePoint) -> bool:
    if point.error is None or than.error is None:
        return f"{point.stp:.1f}" != f"{than.stp:.1f}"
    return point.stp - than.stp > _ERRORS * math.hypot(point.error, than.error)
