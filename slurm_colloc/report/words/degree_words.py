"""What measuring a pack by pausing its members has shown, in words; pure."""

from __future__ import annotations

from slurm_colloc.model.degree.degree_reasons import BEING_MEASURED
from slurm_colloc.model.degree.describe_curve import describe_measured, explain_no_start
from slurm_colloc.model.degree.measured_curve import DegreeState
from slurm_colloc.model.degree.measuring_reason import FIRST_COST_MOST_S
from slurm_colloc.store.pack.degree_record import DegreeRecord

_PACK_LEAST = 2
_COST_LEAST_S = 0.05
"""Less is 0.0 s when it is written down."""


def describe_degree(record: DegreeRecord | None, at_once: int, *, is_over: bool = False) -> str:
    """Which degree is best in a pack, and from which numbers, or what came of measuring it.

    Args:
        record: What its runner has decided; None where nothing.
        at_once: How many of its members are there now, or, once it is over, were at most.
        is_over: No member will run again.

    Returns:
        A clause; empty where there is nothing to measure, as with one member.
    """
    if record is None:
        return ""
    if record.state is DegreeState.MEASURING and not record.reason:
        if at_once < _PACK_LEAST:
            return ""
        was_tried = record.cost_s > _COST_LEAST_S
        if is_over:
            why = "members came or went each time" if was_tried else "its members ended before"
            return f"nothing was measured: {why}"
        if was_tried and record.cost_s > FIRST_COST_MOST_S:
            return "measuring was cut short as members came or went, and is tried again later"
        return BEING_MEASURED
    return describe_measured(record.state, record.curve, record.degree, record.reason)


def describe_limit(record: DegreeRecord | None) -> str:
    """Why fewer ran at once than had a place; empty where that was not so."""
    if record is None or record.state is not DegreeState.SETTLED:
        return ""
    if record.degree >= record.places:
        return ""
    said = describe_degree(record, record.places)
    return f"in its pack {said}" if said else ""


def explain_kept_waiting(record: DegreeRecord | None, running: int) -> str:
    """Why a member waits although its pack has a place for it; empty where that is not why.

    Args:
        record: What the runner has decided; None where nothing.
        running: Members that run, those that are paused among them.
    """
    if record is None:
        return ""
    said = describe_degree(record, running)
    return explain_no_start(record.state, record.degree, record.places, running, said)


def describe_cost(cost_s: float | None, share: float | None) -> str:
    """`measuring cost 3.4 s of the pack's work (0.6 %)`; empty where it cost nothing.

    Args:
        cost_s: Seconds of the whole pack's progress.
        share: The same as a part of the time that the pack took; None where that is not known.
    """
    if cost_s is None or cost_s < _COST_LEAST_S:
        return ""
    told = f"measuring cost {cost_s:.1f} s of the pack's work"
    return told if share is None else f"{told} ({100 * share:.1f} %)"
