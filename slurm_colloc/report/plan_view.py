"""`csub plan`: a plan that is not submitted, as text and as JSON; docs/json.md has the fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.model.arrays import format_task_ids
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.quantities import format_time_limit
from slurm_colloc.model.waits import WaitEstimate
from slurm_colloc.planning.explanation import (
    MemberExplanation,
    PackExplanation,
    PairExplanation,
    PlanExplanation,
)
from slurm_colloc.report.terminal import (
    Column,
    build_table,
    escape_controls,
    format_figure,
    format_mb_figure,
    format_span,
    render,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAN_SCHEMA = 1
_BAR_MOST = 40
_BAR_LEAST = 10
_BESIDE_BAR = 40
"""Columns of a line beside its bar."""
_REASONS_MOST = 20


@dataclasses.dataclass(frozen=True)
class PlanFigures:
    """What a plan comes to; None where it is unknown of a job.

    Attributes:
        packs: Packs, and so GPUs.
        gpu_hours: For how long GPUs are held.
        serial_gpu_hours: The same if every job had a GPU of its own.
        mean_slowdown: Mean over the jobs.
        worst_slowdown: The largest.
        finish_s: When the last job ends if all packs start at once, in seconds.
    """

    packs: int
    gpu_hours: float | None
    serial_gpu_hours: float | None
    mean_slowdown: float | None
    worst_slowdown: float | None
    finish_s: float | None


def compute_plan_figures(explanation: PlanExplanation) -> PlanFigures:
    """What a plan comes to."""
    finishes = [_find_finish_s(pack) for pack in explanation.packs]
    slowdowns = [
        1.0 if len(pack.members) == 1 else member.slowdown
        for pack in explanation.packs
        for member in pack.members
    ]
    known = [slowdown for slowdown in slowdowns if slowdown is not None]
    held_s = _sum_known(finishes)
    serial_s = _sum_known([run_s for pack in explanation.packs for run_s in _find_run_s(pack)])
    is_known = bool(known) and len(known) == len(slowdowns)
    return PlanFigures(
        packs=len(explanation.packs),
        gpu_hours=None if held_s is None else held_s / 3600,
        serial_gpu_hours=None if serial_s is None else serial_s / 3600,
        mean_slowdown=sum(known) / len(known) if is_known else None,
        worst_slowdown=max(known) if is_known else None,
        finish_s=None if held_s is None else max((f for f in finishes if f), default=None),
    )


def _find_finish_s(pack: PackExplanation) -> float | None:
    """How long a pack holds its GPU; None where no earlier runs tell."""
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


def render_plan(
    explanation: PlanExplanation,
    width: int,
    *,
    explain: bool = False,
    sources: Sequence[str] = (),
    waits: Sequence[WaitEstimate | None] = (),
) -> str:
    """A plan as text.

    Args:
        explanation: The plan and its reasons.
        width: Columns of the terminal.
        explain: With all reasons.
        sources: What the prediction rests on, a sentence each; for `explain`.
        waits: How long each pack waits in the queue; none where nothing tells.
    """
    parts: list[RenderableType] = [_fold(_tell_head(explanation), width)]
    for numbers, pack in group_packs(explanation.packs):
        parts += ["", *_render_pack(numbers, pack, width, explain=explain)]
        wait = waits[numbers[0] - 1] if waits else None
        if wait is not None:
            parts.append(_fold(_tell_wait(wait), width, "  "))
    if explain:
        parts += _render_reasons(explanation, sources, width)
    return render(parts, width)


def _tell_head(explanation: PlanExplanation) -> str:
    figures = compute_plan_figures(explanation)
    jobs = sum(len(pack.members) for pack in explanation.packs)
    text = f"{_count(jobs, 'job')} in {_count(figures.packs, 'pack')}"
    if figures.gpu_hours is None:
        return f"{text}; how long they hold a GPU is not known yet"
    text += f": {_tell_hours(figures.gpu_hours)} of GPU time"
    if figures.serial_gpu_hours is not None and jobs > 1:
        text += f", {_tell_hours(figures.serial_gpu_hours)} one after the other"
    return text


def _tell_wait(wait: WaitEstimate) -> str:
    return (
        f"waits {format_span(wait.median_s)} in the median, nine of ten at most "
        f"{format_span(wait.p90_s)} ({wait.jobs} jobs with {wait.of})"
    )


def _tell_hours(hours: float) -> str:
    return format_span(hours * 3600)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def group_packs(
    packs: Sequence[PackExplanation],
) -> list[tuple[tuple[int, ...], PackExplanation]]:
    """Packs that look alike, with their numbers from 1 on; each by its first."""
    found: dict[object, list[int]] = {}
    for number, pack in enumerate(packs, start=1):
        members = tuple(_key(member) for member in pack.members)
        key = (dataclasses.replace(pack, members=(), reasons=()), members)
        found.setdefault(key, []).append(number)
    return [(tuple(numbers), packs[numbers[0] - 1]) for numbers in found.values()]


def _key(member: MemberExplanation) -> MemberExplanation:
    """A member without what names it."""
    return dataclasses.replace(member, job_index=0, number=0)


def _render_pack(
    numbers: Sequence[int], pack: PackExplanation, width: int, *, explain: bool
) -> list[RenderableType]:
    name = f"Pack {numbers[0]}"
    if len(numbers) > 1:
        name = f"Packs {format_task_ids(tuple(numbers))}, alike"
    words = [f"{len(pack.members)} members, {pack.degree} at once, {pack.mode.value}"]
    if len(pack.members) == 1:
        words = ["alone"]
    if pack.start_degree is not None and pack.start_degree < pack.degree:
        words.append(f"begins with {pack.start_degree}")
    if pack.predicted_finish_s is not None:
        words.append(f"ends after {format_span(pack.predicted_finish_s)}")
    elif pack.known:
        words.append("how long is not known yet")
    if pack.time_limit_s is not None:
        words.append(f"time limit {format_time_limit(pack.time_limit_s)}")
    parts: list[RenderableType] = [_fold(f"{name}: {', '.join(words)}", width)]
    if len(pack.members) > 1:
        parts += [f"  {line}" for line in render_budget(pack, width - 2)]
    parts += _indent(_render_members(pack, width - 2))
    if explain:
        parts += [_fold(text, width, "  because ") for text in pack.reasons]
    return parts


def render_budget(pack: PackExplanation, width: int) -> list[str]:
    """What the members take together, a bar for each resource of which it is known."""
    memory, usable = pack.gpu_memory_mb, pack.gpu_memory_usable_mb
    bars: list[tuple[str, float | None, str]] = [
        (
            "GPU memory",
            memory / usable if memory is not None and usable else None,
            f"{format_mb_figure(memory)} of {format_mb_figure(usable)}",
        ),
        ("SM", pack.sm_activity, ""),
        ("DRAM", pack.dram_activity, ""),
    ]
    length = max(_BAR_LEAST, min(_BAR_MOST, width - _BESIDE_BAR))
    return [
        f"{name:<10}  {draw_bar(share, length)} {100 * share:>4.0f} %  {more}".rstrip()
        for name, share, more in bars
        if share is not None
    ]


def draw_bar(share: float, length: int) -> str:
    """A bar of plain characters, full from 1 on."""
    filled = round(min(1.0, max(0.0, share)) * length)
    return "#" * filled + "-" * (length - filled)


def _render_members(pack: PackExplanation, width: int) -> str:
    columns = [
        Column("MEMBER", is_number=False, gives_way=True),
        Column("NAME", is_number=False, gives_way=True),
        Column("KNOWN\nBY", is_number=False),
        Column("STEPS/S\nALONE"),
        Column("STEPS/S\nHERE"),
        Column("SLOW-\nDOWN"),
        Column("AT\nMOST"),
        Column("THREADS"),
        Column("GPU_MEM"),
    ]
    groups: dict[MemberExplanation, list[int]] = {}
    members = pack.members
    if len(members) == 1:
        rate = members[0].solo_steps_per_s
        members = (dataclasses.replace(members[0], slowdown=1.0, predicted_steps_per_s=rate),)
    for member in members:
        groups.setdefault(_key(member), []).append(member.number)
    rows = [
        (
            format_task_ids(tuple(sorted(numbers))),
            member.name,
            member.known_by.value,
            format_figure(member.solo_steps_per_s),
            format_figure(member.predicted_steps_per_s),
            format_figure(member.slowdown),
            "" if member.max_slowdown is None else f"{member.max_slowdown:g}",
            "all" if member.thread_percentage is None else f"{member.thread_percentage} %",
            format_mb_figure(member.gpu_memory_mb),
        )
        for member, numbers in groups.items()
    ]
    return render([build_table(columns, rows, width)], width)


def _render_reasons(
    explanation: PlanExplanation, sources: Sequence[str], width: int
) -> list[RenderableType]:
    parts: list[RenderableType] = [""]
    parts += [_fold(text, width, "Plan: ") for text in explanation.reasons[:_REASONS_MOST]]
    parts += [_fold(text, width) for text in sources]
    if explanation.pairs:
        parts.append("Not together:")
        parts += [_fold(tell_pair(pair), width, "  ") for pair in explanation.pairs]
    if explanation.pairs_left_out:
        parts.append(f"  and {_count(explanation.pairs_left_out, 'more pair')} of jobs")
    return parts


def tell_pair(pair: PairExplanation) -> str:
    """Why two jobs are in different packs."""
    who = f"{pair.first} and {pair.second}"
    if pair.packs:
        who += f" (with {', '.join(dict.fromkeys(pair.packs))})"
    if pair.pairs > 1:
        who += f", {pair.pairs} such pairs"
    return f"{who}: {pair.text}"


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
            format_figure(found.mean_slowdown),
            format_figure(found.worst_slowdown),
            format_span(found.finish_s),
        )

    names = ("packs", "GPU hours", "mean slowdown", "worst slowdown", "last job ends after")
    columns = [
        Column("", is_number=False),
        Column("THIS PLAN"),
        Column(f"WITH {words}", gives_way=True),
    ]
    rows = list(zip(names, write(figures), write(changed), strict=True))
    return render([build_table(columns, rows, width)], width)


def build_plan_json(
    explanation: PlanExplanation, waits: Sequence[WaitEstimate | None] = ()
) -> dict[str, Any]:
    """A plan with the fields that docs/json.md describes."""
    estimates = waits or [None] * len(explanation.packs)
    return {
        "figures": dataclasses.asdict(compute_plan_figures(explanation)),
        "packs": [
            {**_build_pack(pack), "queue": None if wait is None else dataclasses.asdict(wait)}
            for pack, wait in zip(explanation.packs, estimates, strict=True)
        ],
        "not_together": [dataclasses.asdict(pair) for pair in explanation.pairs],
        "not_together_left_out": explanation.pairs_left_out,
        "reasons": list(explanation.reasons),
    }


def _build_pack(pack: PackExplanation) -> dict[str, Any]:
    value = dataclasses.asdict(pack)
    value["mode"] = SharingMode(pack.mode).value
    for member in value["members"]:
        member["known_by"] = member["known_by"].value
    return value


def _fold(text: str, width: int, lead: str = "") -> str:
    """A sentence on lines of this width, without control characters."""
    import textwrap

    return "\n".join(
        textwrap.wrap(
            escape_controls(text),
            max(20, width),
            initial_indent=lead,
            subsequent_indent=" " * len(lead),
            break_on_hyphens=False,
        )
    )


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
