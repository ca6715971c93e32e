"""Which power limit a pack asks for with `--goal=energy`: by its jobs' curves of rate and power.

The limit with the least energy per step among those that were measured of all jobs of the pack and
that slow none of them down by more than it accepts. Below the lowest of them one more is measured
in each pack, as long as energy per step falls: it is so near that a rate which falls as fast as the
limit stays within that slowdown, too. PolyThrottle (arXiv 2310.19991) searches likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import PackPlan
from slurm_colloc.model.power_curve import PowerPoint, find_point
from slurm_colloc.planning.job_needs import Question, choose_bound

_STEP = 0.15
"""How far below the lowest limit the next one is measured, as a part of the highest."""

_LEAST = 0.4
"""Nothing is measured below this part of the highest."""

_SPARE = 1.1
"""So much longer than it was expected to take a run may take by itself."""

_ROUND_W = 10
_LEAST_STEP_W = 10.0


@dataclass(frozen=True)
class PowerChoice:
    """What a pack asks for.

    Attributes:
        limit_w: The limit; 0 for none.
        why: In a sentence.
        slowdown: What it was measured to cost the job that it slows most; None where it was not.
        energy_share: Energy per step under it over that without, the mean of the jobs; likewise.
    """

    limit_w: int
    why: str
    slowdown: float | None = None
    energy_share: float | None = None


def choose_limit(
    curves: Sequence[Sequence[PowerPoint]], bound: float, *, may_measure: bool = True
) -> PowerChoice:
    """Choose a pack's limit.

    Args:
        curves: What was measured of each kind of job in it, alone; empty for one that is not known.
        bound: How much slower than without a limit each may get, 1 or more.
        may_measure: A limit that was not measured yet may be tried.
    """
    if not curves or not all(curves):
        return PowerChoice(0, "no power limit: a job was not measured alone without one yet")
    full_w = max(point.limit_w for curve in curves for point in curve)
    if not all(find_point(curve, full_w) for curve in curves):
        return PowerChoice(0, f"no power limit: a job was not measured alone at {full_w:.0f} W yet")
    choices = [
        choice
        for limit_w in sorted({point.limit_w for point in curves[0]}, reverse=True)
        if (choice := _judge(curves, full_w, limit_w)) is not None
    ]
    fitting = [one for one in choices if (one.slowdown or math.inf) <= bound]
    best = min(fitting, key=lambda one: (one.energy_share, -one.limit_w))
    if may_measure and best is choices[-1] and (next_w := _find_next(best, full_w, bound)):
        told = f"asks for a power limit of {next_w} W, to measure it"
        return PowerChoice(next_w, f"{told}: none below {best.limit_w} W was yet")
    if best.limit_w >= math.floor(full_w):
        return PowerChoice(
            0, f"no power limit: none takes less energy per step within {bound:.2f}x"
        )
    return best


def _judge(
    curves: Sequence[Sequence[PowerPoint]], full_w: float, limit_w: float
) -> PowerChoice | None:
    """What a limit costs and saves; None where a job was not measured under it."""
    slowdowns, shares = [], []
    for curve in curves:
        full, point = find_point(curve, full_w), find_point(curve, limit_w)
        if full is None or point is None:
            return None
        slowdowns.append(max(1.0, full.steps_per_s / point.steps_per_s))
        shares.append(point.joules_per_step / full.joules_per_step)
    slowdown, share = max(slowdowns), sum(shares) / len(shares)
    told = f"asks for a power limit of {limit_w:.0f} W: "
    # Steps of unlike jobs are not one sum.
    point = find_point(curves[0], limit_w) if len(curves) == 1 else None
    told += f"{point.joules_per_step:.3g} J per step, " if point is not None else ""
    told += f"{share:.0%} of the energy at {full_w:.0f} W, {slowdown:.2f} times as long"
    return PowerChoice(math.floor(limit_w), told, slowdown, share)


def _find_next(lowest: PowerChoice, full_w: float, bound: float) -> int:
    """The next limit to measure; 0 where there is none that surely stays within the bound."""
    least_w = max(lowest.limit_w - _STEP * full_w, _LEAST * full_w)
    least_w = max(least_w, lowest.limit_w * (lowest.slowdown or 1.0) / bound)
    next_w = math.ceil(least_w / _ROUND_W) * _ROUND_W
    return next_w if lowest.limit_w - next_w >= _LEAST_STEP_W else 0


def limit_pack(question: Question, pack: PackPlan) -> PackPlan:
    """A pack with the power limit that it asks for, and why."""
    bounds = [_find_time_bound(question, pack)]
    curves: dict[tuple[PowerPoint, ...], None] = {}
    for number, member in enumerate(pack.members):
        together = pack.predicted_slowdown[number] if pack.predicted_slowdown else None
        if together is None and min(pack.degree, len(pack.members)) > 1:
            why = "no power limit: how far its jobs slow each other down is not known"
            return _note(pack, PowerChoice(0, why))
        accepted = choose_bound(question.jobs[member.job_index], question.policy)
        bounds.append(max(1.0, accepted / (together or 1.0)))
        profile = question.profiles.get(member.job_index)
        curves[() if profile is None else profile.power_curve] = None
    if all(curves) and min(bounds) < 1.0:
        return _note(
            pack, PowerChoice(0, "no power limit: its time limit may leave no time for one")
        )
    return _note(pack, choose_limit(list(curves), min(bounds)))


def _find_time_bound(question: Question, pack: PackPlan) -> float:
    """How much slower a pack may get within its time limit; less than 1 where nothing is sure."""
    if pack.request is not None:
        limit_s, length_s = pack.request.time_limit_s, pack.predicted_finish_s
        # What is not predicted has the time for all of the slowdown that is accepted.
        is_stretched = length_s is None
    else:
        # A job alone has the time that its user wrote.
        index = pack.members[0].job_index
        profile = question.profiles.get(index)
        limit_s = question.jobs[index].time_limit_s
        length_s = None if profile is None else profile.run_s
        is_stretched = False
    if limit_s is None or is_stretched:
        return math.inf
    return limit_s / (_SPARE * length_s) if length_s else 0.0


def _note(pack: PackPlan, choice: PowerChoice) -> PackPlan:
    return replace(
        pack,
        power_limit_w=choice.limit_w,
        reasons=(*pack.reasons, choice.why),
        sharing=replace(pack.sharing, power=choice.why),
    )
