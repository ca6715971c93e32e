"""When a running pack is measured, again or for the first time; pure."""

from __future__ import annotations

from collections.abc import Mapping

AGAIN_S = 600.0
"""How often a pack is measured again whose company has not changed."""
FIRST_COST_MOST_S = 10.0
"""What the first measurement may cost, its attempts included."""
COST_MOST = 0.01
"""What measuring may cost of a pack's progress after that."""


def find_measuring_reason(
    kinds: Mapping[str, int], measured: Mapping[str, int], *, elapsed_s: float, has_parked: bool
) -> str:
    """Why a pack is to be measured now; empty where its company says nothing.

    Args:
        kinds: How many of each kind run.
        measured: How many of each kind the last measurement was of; empty before the first.
        elapsed_s: Since the last measurement, in seconds.
        has_parked: Members are parked.
    """
    if not measured:
        return "it has settled"
    if set(kinds) - set(measured):
        return "another kind of member has come"
    if sum(kinds.values()) > sum(measured.values()):
        return "more members have come"
    if has_parked and set(kinds) != set(measured):
        return "members of a kind have gone"
    return f"{AGAIN_S / 60:g} minutes have gone by" if elapsed_s >= AGAIN_S else ""


def may_cost(cost_s: float, elapsed_s: float, *, is_first: bool) -> bool:
    """Whether a pack may be measured, by what that has cost so far.

    Args:
        cost_s: Seconds of the pack's progress.
        elapsed_s: Since its first member started.
        is_first: It was not measured yet.
    """
    return cost_s <= max(COST_MOST * elapsed_s, FIRST_COST_MOST_S if is_first else 0.0)
