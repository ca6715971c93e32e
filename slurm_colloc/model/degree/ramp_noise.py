"""How long a window of a ramp must be for noise not to decide what follows from it; pure."""

from __future__ import annotations

import math

from slurm_colloc.model.degree.ramp_look import Measured
from slurm_colloc.model.degree.ramp_steps import DANGER
from slurm_colloc.model.degree.ramp_window import MIN_WINDOW_S

GAIN_LEAST = 0.02
"""How much of the sum of progress each added member has to bring."""

SMALL_GAIN = 0.06
NEAR_BOUND = 0.03
LONG_WINDOW_S = 20.0
"""A gain for each added member below the first, and a slowdown so near to its bound or beyond it,
are judged by a longer window: there, noise could decide, and little is lost by waiting."""

NOISE_TIMES = 1.5
NOISY_WINDOW_S = 60.0
"""That a sum has stopped growing is not taken from a window whose noise may be what is missing: so
many standard errors (what lies close together varies together), up to the longest window."""

BASE_GAIN = 0.15
BASE_WINDOW_S = 14.0
"""One more that brought less is soon followed by one that brings nothing: what that one is measured
against is not taken from a shortest window."""

SHORT_SHARE, NEAR_SHARE = 0.35, 0.7
"""Several that came at once and brought less than this part of what each before them did, are too
many; below the second, a longer window judges that."""


def choose_window_s(now: Measured, base: Measured | None, share: float) -> float:
    """How long a window must be, by what a shortest one shows.

    Args:
        now: What the shortest window shows.
        base: What fewer members have shown; None where nothing is known of that.
        share: What each of several that come at once is to bring to the sum; 0 for none.
    """
    is_near = now.worst[0] > DANGER - NEAR_BOUND
    is_base = False
    if base is not None and now.running > base.running:
        gain = (now.stp - base.stp) / base.stp
        added = now.running - base.running
        is_near |= gain < SMALL_GAIN * added
        # Noise alone must not say that what came together brought less than its share.
        is_near |= added > 1 and gain * base.stp < NEAR_SHARE * added * share
        is_base = added == 1 and gain < BASE_GAIN
    if is_near:
        return LONG_WINDOW_S
    return BASE_WINDOW_S if is_base else MIN_WINDOW_S


def may_be_noise(now: Measured, base: Measured | None, share: float) -> bool:
    """Whether the sum of progress seems to have grown too little, and noise may be why.

    Args:
        now: What the members show that run.
        base: What fewer members have shown; None where nothing is known of that.
        share: What each of several that come at once is to bring to the sum; 0 for none.
    """
    if base is None or base.running >= now.running or now.worst[0] > DANGER:
        return False
    added = now.running - base.running
    wanted = added * GAIN_LEAST * base.stp
    if added > 1:
        wanted = max(wanted, SHORT_SHARE * added * share)
    gain = now.stp - base.stp
    noise = math.hypot(now.stp_error or 0.0, base.stp_error or 0.0)
    return gain < wanted <= gain + NOISE_TIMES * noise
