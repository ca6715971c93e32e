"""`csub report --since`: sums as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.report.data.csv_table import write_cell
from slurm_colloc.report.sums.sum_packs import Grouping, PackSums
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    build_lines,
    build_table,
    format_figure,
    format_share,
    render,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_sums(
    rows: Sequence[PackSums],
    total: PackSums,
    grouping: Grouping,
    notes: Sequence[str],
    width: int,
    *,
    styled: bool = False,
) -> str:
    """The table, with a line for all, and below it what is not in it.

    Args:
        rows: Sums by group.
        total: Of all.
        grouping: What a row is of.
        notes: What else is worth knowing.
        width: Columns of the terminal.
        styled: Heads may be bold.
    """
    columns = [
        Column(grouping.value.upper(), is_number=False, gives_way=True),
        Column("PACKS"),
        Column("MEMBERS"),
        Column("GPU\nHOURS"),
        Column("HOURS\nSAVED"),
        Column("HOURS\nWASTED"),
        Column("MEAN\nSLOWDOWN"),
        Column("SM\nACTIVE"),
        Column("ENERGY\nKWH"),
        Column("KWH\nSAVED"),
    ]
    cells = [_build_row(sums) for sums in (*rows, *((total,) if len(rows) > 1 else ()))]
    parts: list[RenderableType] = []
    if cells:
        parts = [build_table(columns, cells, width), ""]
    lines = [("Note", text) for text in (*notes, *_tell_partial(total))]
    parts.append(build_lines(lines))
    return render(parts, width, styled=styled)


def _build_row(sums: PackSums) -> tuple[str, ...]:
    return (
        sums.name,
        str(sums.packs),
        str(sums.members),
        format_figure(sums.gpu_hours),
        format_figure(sums.saved_hours) if sums.saved_of else UNKNOWN,
        format_figure(sums.wasted_hours),
        format_figure(sums.mean_slowdown),
        format_share(sums.sm_active),
        format_figure(sums.energy_kwh) if sums.energy_of else UNKNOWN,
        format_figure(sums.saved_kwh) if sums.saved_kwh_of else UNKNOWN,
    )


def _tell_partial(total: PackSums) -> list[str]:
    """Of how many packs and members a sum is, where not of all."""
    parts = [
        ("hours saved", total.saved_of, total.packs, "packs"),
        ("energy", total.energy_of, total.packs, "packs"),
        ("energy saved", total.saved_kwh_of, total.packs, "packs"),
        ("mean slowdown", total.slowdowns_of, total.members, "members"),
    ]
    told = [f"{name} of {known} of {of} {what}" for name, known, of, what in parts if known < of]
    return [f"where it is not known it is left out: {', '.join(told)}"] if told else []


def build_sums_json(
    rows: Sequence[PackSums], total: PackSums, grouping: Grouping, notes: Sequence[str]
) -> dict[str, Any]:
    """The sums as JSON; docs/json.md has the fields."""
    return {
        "schema": 1,
        "by": grouping.value,
        "rows": [_build_object(sums) for sums in rows],
        "all": _build_object(total),
        "notes": list(notes),
    }


def _build_object(sums: PackSums) -> dict[str, Any]:
    return {
        "name": sums.name,
        "packs": sums.packs,
        "members": sums.members,
        "gpu_hours": sums.gpu_hours,
        "gpu_hours_saved": sums.saved_hours if sums.saved_of else None,
        "gpu_hours_saved_of_packs": sums.saved_of,
        "gpu_hours_wasted": sums.wasted_hours,
        "mean_slowdown": sums.mean_slowdown,
        "mean_slowdown_of_members": sums.slowdowns_of,
        "sm_active": sums.sm_active,
        "energy_kwh": sums.energy_kwh if sums.energy_of else None,
        "energy_of_packs": sums.energy_of,
        "kwh_saved": sums.saved_kwh if sums.saved_kwh_of else None,
        "kwh_saved_of_packs": sums.saved_kwh_of,
    }


def render_sums_csv(rows: Sequence[PackSums]) -> str:
    """A line for each group, with a head."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_build_object(PackSums("")))
    for sums in rows:
        writer.writerow([write_cell(value) for value in _build_object(sums).values()])
    return file.getvalue()
