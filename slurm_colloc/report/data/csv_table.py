"""Members as CSV, harmless in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.best_members import choose_ranking, list_metric_names, read_metric
from slurm_colloc.report.data.data_columns import MEMBER_COLUMNS, ColumnKind
from slurm_colloc.report.data.data_rows import Chosen, build_member_rows
from slurm_colloc.report.summary.member_identity import format_time

# What a spreadsheet takes for the beginning of a formula; the wide ones in East Asian settings.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def render_csv(found: Chosen, best: str = "") -> str:
    """Members as CSV with a head; what is unknown is empty, times are ISO 8601 in UTC.

    A text that a spreadsheet would take for a formula gets a `'` before it. Where members have
    results, the best are first.

    Args:
        found: Summaries, and the numbers of the members of each to show; None for all.
        best: By which result, see report.best_members.

    Raises:
        UsageProblem: No member has that result.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    found = list(found)
    members = [
        member
        for summary, chosen in found
        for member in summary["members"]
        if chosen is None or member["member"] in chosen
    ]
    # Each call has parameters of its own, so they are no columns of the table of all packs.
    names = list(dict.fromkeys(name for m in members for name in m["parameters"]))
    own = [f"param.{escape_controls(name)}" for name in names]
    metrics = list_metric_names(members)
    results = [f"metric.{escape_controls(name)}" for name in metrics]
    writer.writerow([*(column.name for column in MEMBER_COLUMNS), "retry_of", *own, *results])
    rows = list(zip(build_member_rows(found), members, strict=True))
    ranking = choose_ranking(members, best)
    if ranking is not None:
        rows = ranking.sort(rows, lambda row: row[1])
    for row, member in rows:
        parameters = member["parameters"]
        more = [member["retry_of"], *(parameters.get(name) for name in names)]
        more += [read_metric(member, name) for name in metrics]
        cells = [_write(row[column.name], column.kind) for column in MEMBER_COLUMNS]
        writer.writerow([*cells, *map(write_cell, more)])
    return file.getvalue()


def _write(value: Any, kind: ColumnKind) -> Any:
    return write_cell(format_time(value) if kind is ColumnKind.TIME else value)


def write_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula and no terminal for an order.

    Args:
        value: Its value; None is empty.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        text = escape_controls(value)
        if _NUMBER.fullmatch(text):
            return text
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return value
