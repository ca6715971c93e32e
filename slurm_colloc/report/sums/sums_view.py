"""`csub report --since`: sums as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.report.data.csv_table import write_cell
from slurm_colloc.report.sums.sum_packs import Grouping, PackSums
from slurm_colloc.report.terminal_tables import (
    Column,
    build_lines,
    build_table,
    format_figure,
    format_part,
    format_share,
    format_slowdown,
    render,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


_WIDE = 100
_LEFT_OUT = 2
"""In a narrow terminal so many columns at the end, those of energy, are left out."""


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
    if width < _WIDE:
        # Figures are never cut; --csv and --json have all.
        columns, cells = columns[:-_LEFT_OUT], [row[:-_LEFT_OUT] for row in cells]
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
        format_part(format_figure(sums.known_saved_hours), sums.saved_of, sums.shared),
        format_figure(sums.wasted_hours),
        format_part(format_slowdown(sums.mean_slowdown), sums.slowdowns_of, sums.members),
        format_share(sums.sm_active),
        format_part(format_figure(sums.known_energy_kwh), sums.energy_of, sums.packs),
        format_part(format_figure(sums.known_saved_kwh), sums.saved_kwh_of, sums.shared),
    )


def _tell_partial(total: PackSums) -> list[str]:
    """What `(2 of 77)` behind a figure means, where it stands behind one."""
    parts = [
        ("hours and kWh saved", min(total.saved_of, total.saved_kwh_of), total.shared,
         "the packs that shared"),
        ("energy", total.energy_of, total.packs, "the packs"),
        ("the mean slowdown", total.slowdowns_of, total.members, "the members"),
    ]  # fmt: skip
    told = [f"{name} of {of}" for name, known, count, of in parts if known < count]
    if not told:
        return []
    return [
        f"what is not known is left out; (2 of 77) says of how many a figure is: {', '.join(told)}"
    ]


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
        "packs_shared": sums.shared,
        "gpu_hours_saved": sums.known_saved_hours,
        "gpu_hours_saved_of_packs": sums.saved_of,
        "gpu_hours_wasted": sums.wasted_hours,
        "mean_slowdown": sums.mean_slowdown,
        "mean_slowdown_of_members": sums.slowdowns_of,
        "sm_active": sums.sm_active,
        "energy_kwh": sums.known_energy_kwh,
        "energy_of_packs": sums.energy_of,
        "kwh_saved": sums.known_saved_kwh,
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
