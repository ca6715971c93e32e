"""What a plan comes to, and two plans side by side."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence

from slurm_colloc.planning.explain.explanation import PackExplanation, PlanExplanation
from slurm_colloc.report.terminal import (
    Column,
    build_table,
    format_figure,
    format_span,
    render,
)


@dataclasses.dataclass(frozen=True)
class PlanFigures:
    """What a plan comes to; None where it is unknown of a job.

    Attributes:
        packs: Packs, and so GPUs.
        gpu_hours: For how long GPUs are held.
        serial_gpu_hours: The same if every job had a GPU of its own.
        energy_wh: Energy of the GPUs while they are held, in watt hours.
        mean_slowdown: Mean over the jobs.
        worst_slowdown: The largest.
        finish_s: When the last job ends if all packs start at once, or as many as `%limit` of an
            array lets run, in seconds.
    """

    packs: int
    gpu_hours: float | None
    serial_gpu_hours: float | None
    energy_wh: float | None
    mean_slowdown: float | None
    worst_slowdown: float | None
    finish_s: float | None


def compute_plan_figures(explanation: PlanExplanation) -> PlanFigures:
    """What a plan comes to."""
    held = [_find_finish_s(pack) for pack in explanation.packs]
    slowdowns = [
        1.0 if len(pack.members) == 1 else member.slowdown
        for pack in explanation.packs
        for member in pack.members
    ]
    known = [slowdown for slowdown in slowdowns if slowdown is not None]
    held_s = _sum_known(held)
    serial_s = _sum_known([run_s for pack in explanation.packs for run_s in _find_run_s(pack)])
    is_known = bool(known) and len(known) == len(slowdowns)
    return PlanFigures(
        packs=len(explanation.packs),
        gpu_hours=None if held_s is None else held_s / 3600,
        serial_gpu_hours=None if serial_s is None else serial_s / 3600,
        energy_wh=_sum_known([pack.energy_wh for pack in explanation.packs]),
        # Rounding puts no mean above all that it is of.
        mean_slowdown=min(math.fsum(known) / len(known), max(known)) if is_known else None,
        worst_slowdown=max(known) if is_known else None,
        finish_s=None if held_s is None else _find_end_s(held, explanation.packs_at_once),
    )


def _find_end_s(held: Sequence[float | None], packs_at_once: int | None) -> float:
    """When the last pack ends: they start in their order, as soon as they may."""
    ends = [0.0] * min(len(held), packs_at_once or len(held))
    for pack_s in held:
        heapq.heapreplace(ends, ends[0] + (pack_s or 0.0))
    return max(ends)


def _find_finish_s(pack: PackExplanation) -> float | None:
    """For how long a pack holds its GPU; None where no earlier runs tell."""
    if pack.predicted_finish_s is None and len(pack.members) == 1:
        return pack.members[0].run_s
    return pack.predicted_finish_s


def _find_run_s(pack: PackExplanation) -> list[float | None]:
    """How long each member runs alone; None where unknown."""
    if len(pack.members) == 1:
        return [_find_finish_s(pack)]
    return [member.run_s for member in pack.members]


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def render_comparison(plan: PlanExplanation, other: PlanExplanation, words: str, width: int) -> str:
    """Two plans side by side.

    Args:
        plan: The plan.
        other: The one with something changed.
        words: What was changed.
        width: Columns of the terminal.
    """
    figures, changed = compute_plan_figures(plan), compute_plan_figures(other)

    def write(found: PlanFigures) -> tuple[str, ...]:
        return (
            str(found.packs),
            format_figure(found.gpu_hours),
            format_figure(found.energy_wh),
            format_figure(found.mean_slowdown),
            format_figure(found.worst_slowdown),
            format_span(found.finish_s),
        )

    names = (
        "packs",
        "GPU hours",
        "GPU energy (Wh)",
        "mean slowdown",
        "worst slowdown",
        "last job ends after",
    )
    columns = [
        Column("", is_number=False),
        Column("THIS PLAN"),
        Column(f"WITH {words}", gives_way=True),
    ]
    rows = list(zip(names, write(figures), write(changed), strict=True))
    return render([build_table(columns, rows, width)], width)
