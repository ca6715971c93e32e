"""How many members are added to a pack at once, and how many its bounds allow; pure."""

from __future__ import annotations

from slurm_colloc.model.degree.ramp_look import Measured

DANGER = 0.97
"""Part of a slowdown bound from which on no member is added."""

LARGE_GAIN = 0.8
FAIR_GAIN = 0.5
"""Several members are added at once only where each of the last brought so much of one alone."""

BUSY_MOST = 0.9
"""Activity of the GPU, in proportion to its members, up to which several are added at once."""

SM_MOST = 1.0
DRAM_MOST = 0.8
PCIE_MOST = 0.8
"""Activities of members alone, added up, up to which all start at once: the additive rule, the
usual gate for jobs of which no more is known. On an H200 under MPS, packs of alike members within
it were slowed down 1.32 times at most in the mean (3 to 7 members, with thread limits)."""

_ACTIVITY_LEAST = 1e-3
"""One that takes less of the GPU counts as taking so much: no member's room is without end."""

BOUND_LEAST = 1.4
"""The additive rule does not look at slowdowns: a closer bound is measured up to."""

CONFIRMED = 1.05
CONFIRMED_EACH = 1.15
"""Slowdowns up to so much above the predicted ones, in the mean and each, confirm the plan."""


def compute_room(
    activity: float | None, dram_activity: float | None, pcie_share: float | None = None
) -> int | None:
    """How many like a member fit onto a GPU, by the additive rule, 1 at least.

    Args:
        activity: What it takes alone of what members share: of the SMs under MPS, of the GPU's
            time where they take turns; 0 to 1, None where unknown.
        dram_activity: What it takes alone of the bandwidth of the GPU's memory.
        pcie_share: What it takes alone of what PCIe carries; None where unknown.
    """
    if not activity or dram_activity is None:
        return None
    room = SM_MOST / max(activity, _ACTIVITY_LEAST)
    if dram_activity > 0:
        room = min(room, DRAM_MOST / max(dram_activity, _ACTIVITY_LEAST))
    if pcie_share:
        room = min(room, PCIE_MOST / max(pcie_share, _ACTIVITY_LEAST))
    return max(1, int(room))


def choose_step(
    now: Measured,
    places: int,
    marginal: float | None,
    busy: float | None,
    room: int | None = None,
) -> int:
    """How many members are added next.

    Each step costs the start of a process and a window, a fifteenth of five minutes, and many of
    them would cost more than they can find. So there are fewer where more is known: after one
    alone as many as there is room for by the additive rule; up to four times as many where the
    slowdowns of those that run are as predicted (three after the first, which shows nothing of
    others); up to twice as many where the last each brought more than 0.8 and the GPU's activity
    would stay below 0.9; where that is unknown one up to the fourth, then two, from the sixth on
    three. Half of it where the last brought more than 0.5, else one; and no more than the bounds
    allow by a straight line.

    Args:
        now: What the members show that run.
        places: How many run by the plan.
        marginal: What each of those that were added last brought to the sum of progress; None
            where that is not known.
        busy: The GPU's activity, 0 to 1; None where it says nothing.
        room: How many like the one that runs alone fit, by `compute_room`; None where unknown.

    Returns:
        At least 1; it may be more than there are places for.
    """
    running = now.running
    brought = now.stp / running if marginal is None else marginal
    step = 1 if running < 4 else 2 if running < 6 else 3
    if busy:
        step = max(1, min(running, int(running * (BUSY_MOST / max(busy, _ACTIVITY_LEAST) - 1))))
    elif running > 1 and marginal is None:
        step = min(step, 2)
    if is_confirmed(now, places):
        step = 2 if running == 1 else 3 * running
    elif running == 1 and room is not None and _leaves_room(now):
        step = max(step, room - 1)
    elif brought <= FAIR_GAIN:
        step = 1
    elif brought <= LARGE_GAIN:
        step = max(1, min(step, running // 2))
    used, number = now.worst
    if number is not None and running > 1:
        slope = max(0.0, used - 1.0 / now.bounds[number]) / (running - 1)
        if slope > 0:
            step = min(step, max(1, int((DANGER - used) / slope)))
    # Another window for the last one alone is not worth it.
    return step + (1 < step == places - running - 1)


def _leaves_room(now: Measured) -> bool:
    return min(now.bounds.values(), default=BOUND_LEAST) >= BOUND_LEAST


def is_confirmed(now: Measured, places: int) -> bool:
    """Whether each member is about as fast as the plan says, for as many as run.

    Args:
        now: What the members show that run.
        places: How many run by the plan; the slowdowns in between are taken from a straight line.
    """
    if len(now.predicted) < now.running or places < 2:
        return False
    part = (now.running - 1) / (places - 1)
    ratios = [
        now.slowdowns[number] / (1 + (predicted - 1) * part)
        for number, predicted in now.predicted.items()
    ]
    return sum(ratios) <= CONFIRMED * len(ratios) and max(ratios) <= CONFIRMED_EACH


def find_degree_within_bounds(now: Measured, base: Measured | None) -> int:
    """The largest degree whose slowdowns, by a straight line, are within their bounds.

    A bound that is in danger but not broken lowers nothing.

    Args:
        now: What the members show that run.
        base: What fewer of them have shown; None where nothing is known about that.
    """
    used, number = now.worst
    if used <= 1.0 or number is None:
        return now.running
    before = 1 if base is None else base.running
    low = 1.0 / now.bounds[number]
    if base is not None:
        low = max(low, base.worst[0])
    if used <= low or low >= 1.0:
        return before
    slope = (used - low) / max(1, now.running - before)
    return max(before, min(now.running - 1, before + int((1.0 - low) / slope)))
