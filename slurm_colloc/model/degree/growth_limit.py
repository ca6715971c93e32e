"""Where a pack is to grow no further: a bound in danger, or too little gained; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_colloc.model.degree.ramp_decision import format_ordinal, say_no_more
from slurm_colloc.model.degree.ramp_look import Measured
from slurm_colloc.model.degree.ramp_noise import GAIN_LEAST, SHORT_SHARE
from slurm_colloc.model.degree.ramp_steps import DANGER, find_degree_within_bounds, is_confirmed

SHARE_NOISE = 0.15
"""Part of a member's share by which noise lengthens a sum: it stands for no further member."""

SERIAL = 0.97
"""A sum of progress below this is slower than one after the other."""


@dataclass(frozen=True)
class GrowthLimit:
    """Why no more members are added.

    Attributes:
        degree: How many may run.
        refused: The degree that was too many; None where it may be tried again.
        reason: Why, in words.
    """

    degree: int
    refused: int | None
    reason: str


def find_growth_limit(
    now: Measured, base: Measured | None, share: float, places: int
) -> GrowthLimit | None:
    """Judge what was added last; None where more may be added.

    Args:
        now: What the members that run show.
        base: What fewer members have shown; None where nothing is known about that.
        share: What each of several that come at once is to bring to the sum; 0 for none.
        places: How many run by the plan.
    """
    running = now.running
    used, number = now.worst
    if used > DANGER and running > 1 and number is not None:
        degree = find_degree_within_bounds(now, base)
        who = f"member {number} is" if now.is_its_own(number) else f"members like {number} are"
        return GrowthLimit(
            degree,
            running + (used <= 1.0),
            f"{say_no_more(degree)}: with {running} {who} "
            f"{now.slowdowns[number]:.2f} times slower than alone, and "
            f"{now.bounds[number]:g} times is accepted",
        )
    if base is None:
        if running == 1 or now.stp >= SERIAL:
            return None
        return GrowthLimit(
            running,
            None,
            f"{say_no_more(running)}: {running} are slower than one after the other (sum of "
            f"progress {now.stp:.2f})",
        )
    if base.running >= running:
        return None
    return _judge_gain(now, base, share, places)


def _judge_gain(now: Measured, base: Measured, share: float, places: int) -> GrowthLimit | None:
    running = now.running
    added = running - base.running
    gain = now.stp - base.stp
    is_short = share > 0 and gain < SHORT_SHARE * added * share
    if added > 1 and is_short and not is_confirmed(now, places):
        # The sum stopped growing somewhere between: as few as could bring that much.
        least = math.ceil(gain / share - SHARE_NOISE)
        degree = base.running + max(0, min(added, least))
    elif gain < added * GAIN_LEAST * base.stp:
        degree = base.running
    else:
        return None
    if degree > base.running:
        why = (
            f"from {base.running} to {running} the sum of progress went "
            f"from {base.stp:.2f} to {now.stp:.2f}, as much as {degree} bring"
        )
    else:
        which = f"the {format_ordinal(running)}" if added == 1 else f"{added} more"
        why = (
            f"with {which} the sum of progress went from {base.stp:.2f} to "
            f"{now.stp:.2f} ({100 * GAIN_LEAST * added:g} % more was asked for)"
        )
    return GrowthLimit(degree, running, f"{say_no_more(degree)}: {why}")
