"""The columns of members and packs: names with units, kinds, and where in a summary each stands.

Also: rows of members and packs, from summaries; members as CSV, harmless in a spreadsheet; members
as a Parquet file.

CSV, Parquet and pandas have these columns, under these names (docs/data.md). Columns are only ever
added, at the end.
"""

from __future__ import annotations

import enum
import io
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.printable import escape_controls, render_csv_lines
from slurm_colloc.model.records import is_number
from slurm_colloc.report.report_view import choose_ranking, list_metric_names, read_metric
from slurm_colloc.report.summary_file import Summary, choose_members, format_time, read_path
from slurm_colloc.store.atomic_files import write_atomic

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnKind(enum.Enum):
    """What a column holds."""

    TEXT = "string"
    WHOLE = "int64"
    NUMBER = "float64"
    TIME = "timestamp"
    FLAG = "bool"
    WORDS = "words"


@dataclass(frozen=True)
class DataColumn:
    """A column.

    Attributes:
        name: Its name, with the unit.
        kind: What it holds. TIME is seconds since the epoch in a summary, and a moment elsewhere;
            WORDS is a list in a summary, and a line that a shell would read elsewhere.
        path: Where it stands in a member's or a pack's part of a summary.
    """

    name: str
    kind: ColumnKind
    path: tuple[str, ...]


def _column(name: str, kind: ColumnKind, *path: str) -> DataColumn:
    return DataColumn(name, kind, path or (name,))


MEMBER_COLUMNS: tuple[DataColumn, ...] = (
    _column("member", ColumnKind.TEXT, "id"),
    _column("name", ColumnKind.TEXT),
    _column("state", ColumnKind.TEXT),
    _column("started_at", ColumnKind.TIME),
    _column("ended_at", ColumnKind.TIME),
    _column("starts", ColumnKind.WHOLE),
    _column("steps", ColumnKind.WHOLE),
    _column("skipped", ColumnKind.WHOLE),
    _column("samples", ColumnKind.WHOLE),
    _column("progress", ColumnKind.TEXT),
    _column("steps_per_s", ColumnKind.NUMBER, "rate", "steps_per_s"),
    _column("samples_per_s", ColumnKind.NUMBER, "rate", "samples_per_s"),
    _column("rate_window_s", ColumnKind.NUMBER, "rate", "window_s"),
    _column("rate_spread", ColumnKind.NUMBER, "rate", "spread"),
    _column("solo_steps_per_s", ColumnKind.NUMBER, "solo", "steps_per_s"),
    _column("solo_source", ColumnKind.TEXT, "solo", "source"),
    _column("slowdown", ColumnKind.NUMBER),
    _column("gpu_memory_peak_mb", ColumnKind.NUMBER, "gpu_memory_mb", "peak"),
    _column("gpu_memory_attribution", ColumnKind.TEXT, "gpu_memory_mb", "attribution"),
    _column("sm_share", ColumnKind.NUMBER, "sm_share", "value"),
    _column("sm_share_attribution", ColumnKind.TEXT, "sm_share", "attribution"),
    _column("energy_j", ColumnKind.NUMBER, "energy_j", "value"),
    _column("energy_attribution", ColumnKind.TEXT, "energy_j", "attribution"),
    _column("cpu_s", ColumnKind.NUMBER),
    _column("cpu_cores", ColumnKind.NUMBER),
    _column("host_memory_peak_mb", ColumnKind.NUMBER),
    _column("read_bytes", ColumnKind.WHOLE),
    _column("written_bytes", ColumnKind.WHOLE),
    _column("data_wait_share", ColumnKind.NUMBER, "stall", "data"),
    _column("host_share", ColumnKind.NUMBER, "stall", "host"),
    _column("device_share", ColumnKind.NUMBER, "stall", "device"),
    _column("predicted_slowdown", ColumnKind.NUMBER),
    _column("together_slowdown", ColumnKind.NUMBER),
    _column("gpu_memory_by", ColumnKind.TEXT, "gpu_memory_mb", "by"),
    _column("script", ColumnKind.TEXT),
    _column("arguments", ColumnKind.WORDS),
    _column("directory", ColumnKind.TEXT),
    _column("node", ColumnKind.TEXT),
    _column("gpu_uuid", ColumnKind.WORDS, "gpu_uuids"),
    _column("gpu_model", ColumnKind.TEXT, "pack", "gpu", "model"),
    _column("mode", ColumnKind.TEXT),
    _column("exit_code", ColumnKind.WHOLE),
    _column("exit_signal", ColumnKind.WHOLE),
    _column("cause", ColumnKind.TEXT),
    _column("solo_time_s", ColumnKind.NUMBER),
    _column("stopped_s", ColumnKind.NUMBER),
    _column("job", ColumnKind.TEXT, "pack", "job"),
    _column("pack_id", ColumnKind.TEXT, "pack", "pack_id"),
)

PACK_COLUMNS: tuple[DataColumn, ...] = (
    _column("pack_id", ColumnKind.TEXT),
    _column("job", ColumnKind.TEXT),
    _column("name", ColumnKind.TEXT),
    _column("node", ColumnKind.TEXT),
    _column("gpu_uuid", ColumnKind.TEXT, "gpu", "uuid"),
    _column("gpu_model", ColumnKind.TEXT, "gpu", "model"),
    _column("gpu_memory_mb", ColumnKind.NUMBER, "gpu", "memory_mb"),
    _column("mode", ColumnKind.TEXT, "setup", "mode"),
    _column("started_at", ColumnKind.TIME, "window", "from"),
    _column("ended_at", ColumnKind.TIME, "window", "to"),
    _column("final", ColumnKind.FLAG),
    _column("members", ColumnKind.WHOLE, "pack", "members"),
    _column("members_most", ColumnKind.WHOLE, "pack", "members_most"),
    _column("overlap_s", ColumnKind.NUMBER, "pack", "overlap_s"),
    _column("shared_s", ColumnKind.NUMBER, "pack", "shared_s"),
    _column("serial_s", ColumnKind.NUMBER, "pack", "serial_s"),
    _column("gpu_hours_saved", ColumnKind.NUMBER, "pack", "gpu_hours_saved"),
    _column("stp", ColumnKind.NUMBER, "pack", "stp"),
    _column("antt", ColumnKind.NUMBER, "pack", "antt"),
    _column("energy_j", ColumnKind.NUMBER),
    _column("kwh_saved", ColumnKind.NUMBER, "pack", "kwh_saved"),
    _column("idle_power_w", ColumnKind.NUMBER, "pack", "idle_power_w"),
    _column("sm_active_mean", ColumnKind.NUMBER, "gpu_use", "sm_active", "mean"),
    _column("utilization_mean", ColumnKind.NUMBER, "gpu_use", "utilization", "mean"),
    _column("gpu_memory_used_max_mb", ColumnKind.NUMBER, "gpu_use", "gpu_memory_mb", "max"),
    _column("power_mean_w", ColumnKind.NUMBER, "gpu_use", "power_w", "mean"),
    _column("coverage_share", ColumnKind.NUMBER, "coverage", "share"),
)


# ---- Rows of members and packs, from summaries; pure ---------------------------------------------

Row = dict[str, Any]
Chosen = Iterable[tuple[Summary, Collection[int] | None]]
"""Summaries, and the numbers of the members of each that are meant; None for all."""

_WHOLE_MOST = 1 << 63


def build_member_rows(found: Chosen) -> list[Row]:
    """A row for each member, by the names of MEMBER_COLUMNS; what is unknown is None."""
    return [
        _build_row({**member, "pack": summary}, MEMBER_COLUMNS)
        for summary, chosen in found
        for member in choose_members(summary, chosen)
    ]


def build_pack_rows(summaries: Iterable[Summary]) -> list[Row]:
    """A row for each pack, by the names of PACK_COLUMNS; what is unknown is None."""
    return [_build_row(summary, PACK_COLUMNS) for summary in summaries]


def _build_row(part: Mapping[str, object], columns: Sequence[DataColumn]) -> Row:
    return {column.name: _take(read_path(part, column.path), column.kind) for column in columns}


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
    if not is_number(value):
        return None
    if kind is ColumnKind.WHOLE:
        return int(value) if abs(value) < _WHOLE_MOST else None
    return float(value)


# ---- Members as CSV, harmless in a spreadsheet ---------------------------------------------------

# What a spreadsheet takes for the beginning of a formula; the wide ones in East Asian settings.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = late_pattern(r"(?a)[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def render_csv(found: Chosen, best: str = "") -> str:
    """Members as CSV with a head; what is unknown is empty, times are ISO 8601 in UTC.

    A text that a spreadsheet would take for a formula gets a `'` before it. Where members have
    results, the best are first.

    Args:
        found: Summaries, and the numbers of the members of each to show; None for all.
        best: By which result, see report.report_view.

    Raises:
        UsageProblem: No member has that result.
    """
    found = list(found)
    members = [member for one in found for member in choose_members(*one)]
    # Each call has parameters of its own, so they are no columns of the table of all packs.
    names = list(dict.fromkeys(name for m in members for name in m["parameters"]))
    own = [f"param.{escape_controls(name)}" for name in names]
    metrics = list_metric_names(members)
    results = [f"metric.{escape_controls(name)}" for name in metrics]
    lines: list[Sequence[Any]] = [
        [*(column.name for column in MEMBER_COLUMNS), "retry_of", *own, *results]
    ]
    rows = list(zip(build_member_rows(found), members, strict=True))
    ranking = choose_ranking(members, best)
    if ranking is not None:
        rows = ranking.sort(rows, lambda row: row[1])
    for row, member in rows:
        parameters = member["parameters"]
        cells = [
            format_time(row[column.name]) if column.kind is ColumnKind.TIME else row[column.name]
            for column in MEMBER_COLUMNS
        ]
        cells += [member["retry_of"], *(parameters.get(name) for name in names)]
        cells += [read_metric(member, name) for name in metrics]
        lines.append([write_cell(cell) for cell in cells])
    return render_csv_lines(lines)


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


# ---- Members as a Parquet file -------------------------------------------------------------------


def write_parquet(path: Path, found: Chosen) -> int:
    """Write members into a file, whole or not at all; how many there are.

    Times are moments in UTC with milliseconds, what is unknown is null.

    Args:
        path: The file; one that is there is replaced.
        found: Summaries, and the numbers of the members of each to write; None for all.

    Raises:
        StateError: pyarrow is not installed.
        UsageProblem: The file cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise StateError(
            f"--parquet needs pyarrow ({error})",
            hint="install it alongside csub: pip install pyarrow",
        ) from error
    rows = build_member_rows(found)
    schema = pa.schema(
        [(column.name, _choose_type(column.kind)) for column in MEMBER_COLUMNS],
        metadata={"slurm_colloc.members": "1"},
    )
    columns = [
        pa.array([_write_value(row[column.name], column.kind) for row in rows], field.type)
        for column, field in zip(MEMBER_COLUMNS, schema, strict=True)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), buffer)
    if path.is_dir():
        raise UsageProblem(f"--parquet: {path} is a directory", hint="name a file in it")
    try:
        # As any file that a user makes: by the umask.
        write_atomic(path, buffer.getvalue(), 0o666)
    except StateError as problem:
        raise UsageProblem(f"--parquet: {problem.message}") from problem
    return len(rows)


def _choose_type(kind: ColumnKind) -> pa.DataType:
    import pyarrow as pa

    kinds = {
        ColumnKind.WHOLE: pa.int64(),
        ColumnKind.NUMBER: pa.float64(),
        ColumnKind.TIME: pa.timestamp("ms", "UTC"),
        ColumnKind.FLAG: pa.bool_(),
    }
    return kinds.get(kind, pa.string())


def _write_value(value: Any, kind: ColumnKind) -> Any:
    return None if value is None else round(value * 1000) if kind is ColumnKind.TIME else value
