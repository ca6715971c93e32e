"""What a job was measured to do alone under power limits of one GPU model; values only."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.late_definitions import dataclass, replace

NEAR_W = 1.0
"""Limits that differ by less are one."""

_POINTS_MOST = 32


@dataclass(frozen=True)
class PowerPoint:
    """A job alone under one power limit.

    Attributes:
        limit_w: The limit that held, in watts.
        steps_per_s: Its rate.
        power_w: Mean power of each of its GPUs.
        runs: How many runs these are means of.
    """

    limit_w: float
    steps_per_s: float
    power_w: float
    runs: int = 1

    @property
    def joules_per_step(self) -> float:
        """Energy of each of its GPUs for one step."""
        return self.power_w / self.steps_per_s


def add_point(points: Sequence[PowerPoint], seen: PowerPoint) -> tuple[PowerPoint, ...]:
    """The curve with one more run, by falling limit."""
    known = find_point(points, seen.limit_w)
    others = [point for point in points if point is not known]
    if known is not None:
        runs = known.runs + 1
        seen = replace(
            known,
            steps_per_s=known.steps_per_s + (seen.steps_per_s - known.steps_per_s) / runs,
            power_w=known.power_w + (seen.power_w - known.power_w) / runs,
            runs=runs,
        )
    return tuple(sorted([*others, seen], key=lambda one: -one.limit_w))[:_POINTS_MOST]


def find_point(points: Sequence[PowerPoint], limit_w: float) -> PowerPoint | None:
    """What was measured under a limit; None where nothing was."""
    return next((point for point in points if abs(point.limit_w - limit_w) < NEAR_W), None)


def is_lowered(points: Sequence[PowerPoint], limit_w: float | None) -> bool:
    """Whether a limit is lower than one under which the job ran before: its rate tells less."""
    return limit_w is not None and any(point.limit_w > limit_w + NEAR_W for point in points)
