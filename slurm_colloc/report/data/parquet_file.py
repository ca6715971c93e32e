"""Members as a Parquet file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.report.data.data_columns import MEMBER_COLUMNS, ColumnKind
from slurm_colloc.report.data.data_rows import Chosen, build_member_rows
from slurm_colloc.store.atomic_files import write_atomic

if TYPE_CHECKING:
    import pyarrow as pa


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
        pa.array([_write(row[column.name], column.kind) for row in rows], field.type)
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


def _write(value: Any, kind: ColumnKind) -> Any:
    return None if value is None else round(value * 1000) if kind is ColumnKind.TIME else value
