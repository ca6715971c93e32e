"""The members of planned packs as a table: those that are alike on one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.sbatch.arrays import format_task_ids, parse_array
from slurm_colloc.planning.explain.explanation import MemberExplanation, PackExplanation
from slurm_colloc.report.terminal_tables import (
    Column,
    build_table,
    format_figure,
    format_mb_figure,
    render,
)

_NUMBERS_WIDE = 16
_NUMBERS_LINES = 4
"""Columns and lines of the numbers of members that are alike; the blanks between them go away."""


def drop_names(member: MemberExplanation) -> MemberExplanation:
    """A member without what names it."""
    return dataclasses.replace(member, job_index=0, number=0)


def render_members(packs: Sequence[PackExplanation], width: int) -> str:
    """The members of packs that are alike, those that are alike on one line."""
    is_cut = any(member.instance for pack in packs for member in pack.members)
    columns = [
        Column("MEMBER", is_number=False),
        Column("NAME", is_number=False, gives_way=True),
        Column("KNOWN\nBY", is_number=False),
        Column("STEPS/S\nALONE"),
        Column("STEPS/S\nHERE"),
        Column("SLOW-\nDOWN"),
        Column("AT\nMOST"),
        Column("INSTANCE" if is_cut else "THREADS", is_number=not is_cut),
        Column("GPU_MEM"),
    ]
    groups: dict[MemberExplanation, list[int]] = {}
    for pack in packs:
        for member in pack.members:
            shown = member
            if len(pack.members) == 1:
                rate = member.solo_steps_per_s
                shown = dataclasses.replace(member, slowdown=1.0, predicted_steps_per_s=rate)
            groups.setdefault(drop_names(shown), []).append(member.number)
    rows: list[tuple[str, ...]] = []
    for member, numbers in groups.items():
        first, *more = _wrap_numbers(numbers)
        cells = (
            member.name,
            member.known_by.value,
            format_figure(member.solo_steps_per_s),
            format_figure(member.predicted_steps_per_s),
            format_figure(member.slowdown),
            "" if member.max_slowdown is None else f"{member.max_slowdown:g}",
            _tell_threads(member),
            format_mb_figure(member.gpu_memory_mb),
        )
        rows.append((first, *cells))
        rows += [(line, *[""] * len(cells)) for line in more]
    return render([build_table(columns, rows, width)], width)


def _tell_threads(member: MemberExplanation) -> str:
    """What limits its part of the GPU: an instance, or threads."""
    if member.instance:
        return member.instance
    return "all" if member.thread_percentage is None else f"{member.thread_percentage} %"


def _wrap_numbers(numbers: Sequence[int]) -> list[str]:
    """The numbers of members on a few lines, and how many more there are."""
    import textwrap

    spaced = format_task_ids(numbers).replace(",", ", ")
    wrapped = textwrap.wrap(spaced, _NUMBERS_WIDE, break_on_hyphens=False, break_long_words=False)
    lines = [line.replace(" ", "") for line in wrapped]
    if len(lines) <= _NUMBERS_LINES:
        return lines
    shown = "".join(lines[: _NUMBERS_LINES - 1]).rstrip(",")
    left = len(set(numbers)) - len(parse_array(shown).task_ids)
    return [*lines[: _NUMBERS_LINES - 1], f"and {left} more"]
