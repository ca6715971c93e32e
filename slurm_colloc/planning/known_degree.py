"""How many jobs run at once by a curve that earlier packs have measured; pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_colloc.model.measured_curve import CurvePoint, KnownCurve, KnownPoint
from slurm_colloc.model.measurement import GAIN_LEAST, choose_for_the_end
from slurm_colloc.model.usage_profile import may_be_one_kind


@dataclass(frozen=True)
class KnownDegree:
    """How many run at once by what was measured.

    Attributes:
        degree: How many.
        point: The measured degree that this rests on; None where no more than one may run.
        worse: The one that was too slow, where the degree lies below it; else None.
        is_open: No larger degree was measured: more than that may be better still.
        curve: All that was measured.
    """

    degree: int
    point: KnownPoint | None
    worse: KnownPoint | None
    is_open: bool
    curve: KnownCurve

    def describe(self) -> str:
        """`12 at once made 8.4 times the progress of one alone on 2026-11-27 (1 run)`."""
        point = self.point or self.worse or self.curve.points[0]
        runs = "1 run" if point.runs == 1 else f"{point.runs} runs"
        day = time.strftime("%Y-%m-%d", time.localtime(point.at))
        told = f"{point.degree} at once made {point.stp:.1f} times the progress of one alone"
        told = f"{told} on {day} ({runs})"
        if (slow := self.worse) is not None:
            told += f", and {slow.degree} were up to {slow.slowdown:.2f} times slower than alone"
        return told


def find_degree(
    curves: Iterable[KnownCurve],
    kinds: Mapping[str, int],
    bound: float,
    rates: Mapping[str, float] | None = None,
) -> KnownDegree | None:
    """How many of these jobs run at once best, by what earlier packs of the same kinds measured.

    The smallest measured degree within the bound that makes the most progress (within 2 %), or a
    larger one where the last of the jobs would end sooner for it, as in a running pack. Between the
    last degree within the bound and the first beyond it slowdowns go in a straight line.

    Args:
        curves: Those of the GPU model and sharing mode in question (`store.curves`).
        kinds: How many jobs of each family there are (`store.profiles.compute_family`).
        bound: The slowdown that is accepted for each of them.
        rates: Their rates alone by family, as far as known.

    Returns:
        The degree, which may be more than there are jobs; None where exactly these families were
        never measured together, or one of them ran at another rate then.
    """
    wanted = tuple(sorted(kinds))
    curve = next((c for c in curves if c.families == wanted and c.points), None)
    if curve is None or not _is_alike(curve, rates or {}):
        return None
    within = {point.degree: point for point in curve.points if point.slowdown <= bound}
    beyond = [point for point in curve.points if point.slowdown > bound]
    worse = min(beyond, key=lambda point: point.degree, default=None)
    if worse is not None:
        # Who is too slow at one degree is so at any larger one.
        within = {degree: point for degree, point in within.items() if degree < worse.degree}
    stps = {1: 1.0, **{degree: point.stp for degree, point in within.items()}}
    if worse is not None:
        last = within.get(max(stps))
        between, stp = _go_between(last, worse, bound)
        stps.setdefault(between, stp)
    most = max(stps.values())
    best = min(degree for degree, stp in stps.items() if stp >= (1.0 - GAIN_LEAST) * most)
    shown = [
        CurvePoint(p.degree, p.stp, worst_slowdown=p.slowdown, worst_bound=bound)
        for p in curve.points
    ]
    members = sum(kinds.values())
    degree = choose_for_the_end(shown, best, members, members)
    largest = max(point.degree for point in curve.points)
    point = within.get(max((d for d in within if d <= degree), default=0))
    return KnownDegree(
        degree,
        point,
        worse if point is None or degree not in within else None,
        worse is None and degree >= largest,
        curve,
    )


def _is_alike(curve: KnownCurve, rates: Mapping[str, float]) -> bool:
    """Whether each family ran as fast alone as it does by the rates."""
    pairs = ((known.steps_per_s, rates.get(known.family)) for known in curve.rates_alone)
    return all(may_be_one_kind((measured, rate)) for measured, rate in pairs if rate)


def _go_between(last: KnownPoint | None, worse: KnownPoint, bound: float) -> tuple[int, float]:
    """The largest degree that keeps the bound on the line to the first that breaks it; its STP."""
    low, slowdown, stp = (1, 1.0, 1.0) if last is None else (last.degree, last.slowdown, last.stp)
    rise = worse.slowdown - slowdown
    part = (bound - slowdown) / rise if rise > 0 and math.isfinite(rise) else 0.0
    degree = low + max(0, min(worse.degree - low - 1, int(part * (worse.degree - low))))
    return degree, stp + (worse.stp - stp) * (degree - low) / (worse.degree - low)
