"""Arithmetic on arrays of many packs. Imported only where a search needs it: it loads numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from slurm_colloc.planning.predict.pack_duration import KEPT_SHARE, TIE
from slurm_colloc.planning.predict.sharing_ways import Arithmetic

Array = np.ndarray[Any, Any]

ARRAYS = Arithmetic(np.minimum, np.maximum, lambda table, index: np.asarray(table)[index])


def compute_spans_s(
    run_s: Array,
    slowdowns: Array,
    floors: Array,
    rate: Callable[[Array], Array],
    *,
    taken: Array | None = None,
    kept_share: tuple[int, int] = KEPT_SHARE,
) -> tuple[Array, Array]:
    """When packs end, and the sum of when their members do.

    The same as durations.compute_ends_s; a row for each place, a column for each pack.

    Args:
        run_s: Seconds that each member takes alone.
        slowdowns: While all run.
        floors: Slowdown of each by its own limit, without neighbours.
        rate: The slowdowns where only some still run, as flags.
        taken: Which places have a member; None for all.
        kept_share: When they are rated anew; see durations.KEPT_SHARE.
    """
    left = run_s.copy()
    running = np.ones(run_s.shape, bool) if taken is None else taken.copy()
    clock = np.zeros(run_s.shape[1], run_s.dtype)
    ends = np.zeros(run_s.shape[1], run_s.dtype)
    rated = running.sum(axis=0)
    slowdowns = np.maximum(slowdowns, floors)
    while True:
        spans = left * slowdowns
        spans[~running] = np.inf
        step = spans.min(axis=0)
        step[np.isinf(step)] = 0.0
        ended = spans <= step * (1.0 + TIE)
        clock += step
        ends += clock * ended.sum(axis=0)
        running &= ~ended
        counts = running.sum(axis=0)
        if not counts.any():
            return clock, ends
        left -= step / slowdowns
        np.maximum(left, 0.0, out=left)
        due = (counts * kept_share[1] <= rated * kept_share[0]) & (counts > 0)
        if due.any():
            rated[due] = counts[due]
            np.copyto(slowdowns, np.maximum(rate(running), floors), where=due)
