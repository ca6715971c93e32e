"""Rows of members and packs, from summaries; pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.data.data_columns import (
    MEMBER_COLUMNS,
    PACK_COLUMNS,
    ColumnKind,
    DataColumn,
)
from slurm_colloc.report.summary.summary_shape import Summary

Row = dict[str, Any]
Chosen = Iterable[tuple[Summary, Collection[int] | None]]
"""Summaries, and the numbers of the members of each that are meant; None for all."""

_WHOLE_MOST = 1 << 63


def build_member_rows(found: Chosen) -> list[Row]:
    """A row for each member, by the names of MEMBER_COLUMNS; what is unknown is None."""
    return [
        _build_row({**member, "pack": summary}, MEMBER_COLUMNS)
        for summary, chosen in found
        for member in summary["members"]
        if chosen is None or member["member"] in chosen
    ]


def build_pack_rows(summaries: Iterable[Summary]) -> list[Row]:
    """A row for each pack, by the names of PACK_COLUMNS; what is unknown is None."""
    return [_build_row(summary, PACK_COLUMNS) for summary in summaries]


def _build_row(part: Mapping[str, Any], columns: Sequence[DataColumn]) -> Row:
    return {column.name: _read(part, column) for column in columns}


def _read(part: Mapping[str, Any], column: DataColumn) -> Any:
    value: Any = part
    for key in column.path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return _take(value, column.kind)


def _take(value: Any, kind: ColumnKind) -> Any:
    """A value of a column's kind; None for one of another, as a damaged summary may have it."""
    if kind is ColumnKind.FLAG:
        return value if isinstance(value, bool) else None
    if kind is ColumnKind.WORDS:
        is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
        # Words that no shell needs to quote are quoted nowhere.
        return escape_controls(shlex.join(value)) if is_list and value else "" if is_list else None
    if kind is ColumnKind.TEXT:
        return escape_controls(value) if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if kind is ColumnKind.WHOLE:
        return int(value) if abs(value) < _WHOLE_MOST else None
    return float(value)
