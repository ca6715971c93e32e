"""`csub plan`: a plan that is not submitted, as text and as JSON; docs/json.md has the fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.model.plan import KnownBy, SharingMode
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.queue_waits import WaitEstimate
from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.planning.explain.explanation import (
    PackExplanation,
    PlanExplanation,
)
from slurm_colloc.report.plan.layout_picture import draw_layout
from slurm_colloc.report.plan.member_table import drop_names, render_members
from slurm_colloc.report.plan.plan_figures import (
    compute_plan_figures,
    group_slurm_jobs,
    render_budget,
    tell_pairs,
)
from slurm_colloc.report.terminal_tables import (
    Column,
    build_table,
    format_mb_figure,
    format_span,
    render,
)
from slurm_colloc.report.words.report_words import PEAK_SOURCE_WORDS

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAN_SCHEMA = 1
_REASONS_MOST = 20
_TOLD_MOST = 12
"""Packs that are alike whose members are told."""
_UNIT = re.compile(r"(?<=\d) (%|s\b|min\b|MB\b|GB\b)")
_GLUE = "\x1f"
"""Stands for the blank between them: no text has it whose control characters are escaped."""


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
    places = {id(pack): place for place, pack in enumerate(explanation.packs)}
    for numbers, packs in group_packs(explanation.packs):
        render_alike = _render_packs if packs[0].slurm_job is None else _render_gpu_sets
        parts += ["", *render_alike(numbers, packs, width, explain=explain)]
        wait = waits[places[id(packs[0])]] if waits else None
        if wait is not None:
            parts.append(_fold(_tell_wait(wait), width, "  "))
    if explain:
        parts += _render_reasons(explanation, sources, width)
    return render(parts, width)


def _tell_head(explanation: PlanExplanation) -> str:
    figures = compute_plan_figures(explanation)
    jobs = sum(len(pack.members) for pack in explanation.packs)
    text = f"{_count(jobs, 'job')} in {_count(figures.packs, 'pack')}"
    if figures.gpus > figures.packs:
        text += f" with {figures.gpus} GPUs"
    if figures.gpu_hours is None:
        return f"{text}; how long they hold a GPU is not known yet"
    text += f": {_tell_hours(figures.gpu_hours)} of GPU time"
    if figures.serial_gpu_hours is not None and jobs > 1:
        text += f", {_tell_hours(figures.serial_gpu_hours)} one after the other"
    at_once = explanation.packs_at_once
    if at_once is not None and at_once < figures.packs:
        text += f"; {_count(at_once, 'pack')} at a time, the last ends "
        text += f"{format_span(figures.finish_s)} after the first has started"
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
) -> list[tuple[tuple[int, ...], tuple[PackExplanation, ...]]]:
    """Packs that look alike together, with their numbers from 1 on.

    The GPU sets of a Slurm job are one pack, and stand together whatever they look like.
    """
    found: dict[object, list[int]] = {}
    jobs = group_slurm_jobs(packs)
    for number, (pack, *others) in enumerate(jobs, start=1):
        if others:
            found[number] = [number]
            continue
        members = tuple(drop_names(member) for member in pack.members)
        layout = tuple(dataclasses.replace(seat, number=None) for seat in pack.layout)
        key = (dataclasses.replace(pack, members=(), reasons=(), layout=layout), members)
        found.setdefault(key, []).append(number)
    return [
        (tuple(numbers), tuple(pack for number in numbers for pack in jobs[number - 1]))
        for numbers in found.values()
    ]


def _render_packs(
    numbers: Sequence[int], packs: Sequence[PackExplanation], width: int, *, explain: bool
) -> list[RenderableType]:
    pack = packs[0]
    name, each = f"Pack {numbers[0]}", ""
    if len(numbers) > 1:
        name, each = f"Packs {format_task_ids(tuple(numbers))}, alike", " each"
    at_once = f"{pack.degree} at once"
    if pack.degree > len(pack.members):
        at_once = f"room for {pack.degree}"
    words = [f"{len(pack.members)} members{each}, {at_once}, {pack.mode.value}"]
    if len(pack.members) == 1 and pack.open_for:
        others = _count(pack.open_for, "more job")
        words = [f"one job, open for {others}", pack.mode.value]
    elif len(pack.members) == 1:
        words = [f"one job{each}, alone" if each else "alone"]
    if pack.is_measured:
        words.append("measured as it starts")
    if pack.predicted_finish_s is not None:
        words.append(f"ends after {format_span(pack.predicted_finish_s)}")
    elif pack.known:
        words.append("how long is not known yet")
    if pack.time_limit_s is not None:
        words.append(f"time limit {format_time_limit(pack.time_limit_s)}")
    parts: list[RenderableType] = [_fold(f"{name}: {', '.join(words)}", width, hanging=2)]
    if len(pack.members) > 1:
        parts += [f"  {line}" for line in render_budget(pack, width - 2)]
    parts += [f"  {line}" for line in draw_layout(pack.layout, tells_who=len(packs) == 1)]
    parts += _indent(render_members(packs, width - 2))
    if len(packs) > 1 and len(pack.members) > 1:
        parts += _tell_who(numbers, packs, width)
    if explain:
        parts += [_fold(text, width, "  because ") for text in pack.reasons]
        parts += [_fold(text, width, "  ", hanging=2) for text in _tell_gpu_memory(packs)]
    return parts


def _render_gpu_sets(
    numbers: Sequence[int], packs: Sequence[PackExplanation], width: int, *, explain: bool
) -> list[RenderableType]:
    """A pack of several GPUs: who begins on which of them."""
    packs = sorted(packs, key=lambda pack: pack.node)
    nodes = 1 + packs[-1].node
    members = [member for pack in packs for member in pack.members]
    words = [f"{len(members)} members", packs[0].mode.value]
    if any(pack.is_measured for pack in packs):
        words.append("measured as it starts")
    limits = [pack.time_limit_s for pack in packs if pack.time_limit_s is not None]
    if len(limits) == len(packs):
        words.append(f"time limit {format_time_limit(max(limits))}")
    gpus = sum(pack.gpus for pack in packs)
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    head = f"Pack {numbers[0]}, {gpus} GPUs of {where}: {', '.join(words)}"
    parts: list[RenderableType] = [_fold(head, width, hanging=2)]
    columns = [
        *([Column("NODE")] if nodes > 1 else []),
        Column("GPU", is_number=False),
        Column("BEGINS WITH", is_number=False, gives_way=True),
        Column("WAIT"),
        Column("PLACES"),
        Column("CPUS"),
        Column("HOST_MEM"),
        Column("ENDS AFTER"),
    ]
    rows = []
    counted = [0] * nodes
    for pack in packs:
        first = counted[pack.node] + 1
        last = counted[pack.node] = first + pack.gpus - 1
        own = format_task_ids(sorted(member.number for member in pack.members))
        end_s = pack.predicted_finish_s
        rows.append(
            (
                *([str(pack.node + 1)] if nodes > 1 else []),
                f"{first}" if first == last else f"{first}-{last}",
                own,
                str(max(0, len(pack.members) - pack.degree)),
                str(pack.degree),
                "unknown" if pack.cpus is None else str(pack.cpus),
                format_mb_figure(pack.host_memory_mb),
                "unknown" if end_s is None else format_span(end_s),
            )
        )
    parts += _indent(render([build_table(columns, rows, width - 2)], width - 2))
    parts += _indent(render_members(packs, width - 2))
    if explain:
        told = dict.fromkeys(text for pack in packs for text in pack.reasons)
        parts += [_fold(text, width, "  because ") for text in told]
        parts += [_fold(text, width, "  ", hanging=2) for text in _tell_gpu_memory(packs)]
    return parts


def _tell_gpu_memory(packs: Sequence[PackExplanation]) -> list[str]:
    """What is known of the members' GPU memory, and who says so."""
    words = {KnownBy.STATED.value: "--gpu-mem"} | {
        source.value: f"the peak of earlier runs by {who}"
        for source, who in PEAK_SOURCE_WORDS.items()
    }
    named: dict[str, dict[str, None]] = {}
    for member in (member for pack in packs for member in pack.members):
        if member.gpu_memory_by is not None:
            named.setdefault(words[member.gpu_memory_by], {})[member.name] = None
    told = [f"{word} ({', '.join(names)})" for word, names in named.items()]
    return [f"GPU memory: {'; '.join(told)}"] if told else []


def _tell_who(numbers: Sequence[int], packs: Sequence[PackExplanation], width: int) -> list[str]:
    """Which members are in which of packs that are alike."""
    told = [
        f"{number} has {format_task_ids(sorted(member.number for member in pack.members))}"
        for number, pack in zip(numbers, packs, strict=True)
    ]
    left = len(told) - _TOLD_MOST
    more = f"; and {left} more, which --json lists" if left > 0 else ""
    return [_fold(f"pack {'; '.join(told[:_TOLD_MOST])}{more}", width, "  ", hanging=2)]


def _render_reasons(
    explanation: PlanExplanation, sources: Sequence[str], width: int
) -> list[RenderableType]:
    parts: list[RenderableType] = [""]
    told = list(dict.fromkeys(explanation.reasons))[:_REASONS_MOST]
    parts += [_fold(text, width, "Plan: ") for text in told]
    parts += [_fold(text, width, hanging=2) for text in sources]
    pairs = tell_pairs(explanation)
    if pairs:
        parts.append("Not together:")
        parts += [_fold(text, width, "  ", hanging=2) for text in pairs]
    return parts


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
        "reasons": list(dict.fromkeys(explanation.reasons)),
    }


def _build_pack(pack: PackExplanation) -> dict[str, Any]:
    value = dataclasses.asdict(pack)
    value["mode"] = SharingMode(pack.mode).value
    for member in value["members"]:
        member["known_by"] = member["known_by"].value
    return value


def _fold(text: str, width: int, lead: str = "", *, hanging: int = 0) -> str:
    """A sentence on lines of this width, without control characters; units stay with numbers."""
    import textwrap

    lines = textwrap.wrap(
        _UNIT.sub(f"{_GLUE}\\1", escape_controls(text)),
        max(20, width),
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) + hanging),
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_GLUE, " ")


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
