"""Reading tables of samples in batches, thinned where there are very many rows.

Of each start one row for each few seconds is kept: counters as they stood at its end, gauges as
their maximum. So totals and peaks stay exact, and rates stay over windows longer than that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.store.atomic_files import open_regular
from slurm_colloc.store.pack.sample_files import GPU_COLUMNS, GPU_METRICS, MEMBER_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_MEMBER = 10_000
"""A start with more rows is thinned to about that many."""
ROWS = 300_000
"""All members together are thinned to about that many: some 40 MB."""
ROWS_PER_GPU = 100_000

_BATCH_ROWS = 1 << 16
KEY = ("attempt", "member", "start")
_NAMING = ("at", "uuid", *KEY)
"""What a row is of: one without it belongs nowhere."""
PEAKS = ("gpu_memory_mb", "host_memory_mb", "gpu_memory_reserved_peak_mb")
LAST = ("cpu_s", "read_bytes", "written_bytes", "steps", "skipped", "samples", "wait_s",
         "progress", "trainers", "first_step_at", "last_step_at",
        "gpu_memory_reserved_mb")  # fmt: skip


_Thin = Callable[["Sequence[Any]"], "tuple[Callable[[pa.Table], pa.Table], Sequence[str], float]"]


def read_table(
    paths: Sequence[str], choose: _Thin, problems: list[str]
) -> tuple[pa.Table | None, float]:
    """Read the files of one table, in order of time.

    Args:
        paths: The files.
        choose: Says from the opened files which columns are read and how rows are thinned.
        problems: Takes a sentence for each file that cannot be read.

    Returns:
        The rows, None where there are none; and how many seconds each stands for, 0 for one
        reading.

    Raises:
        FileNotFoundError: A file has gone meanwhile.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = {}
    for path in paths:
        try:
            # It may be another user's, who may have put a pipe in its place.
            descriptor = open_regular(path)
            try:
                files[path] = pq.ParquetFile(f"/proc/self/fd/{descriptor}", pre_buffer=False)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            problems.append(f"{path} cannot be read: {_first_line(error)}")
    if not files:
        return None, 0.0
    thin, names, stride_s = choose(list(files.values()))
    tables = []
    for path, file in files.items():
        try:
            tables += [thin(batch) for batch in _iterate(file, names)]
        except (OSError, pa.ArrowException, KeyError) as error:
            problems.append(f"{path} is damaged: {_first_line(error)}")
        finally:
            file.close()
    return (pa.concat_tables(tables) if tables else None), stride_s


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


def _iterate(file: Any, names: Sequence[str]) -> Iterator[pa.Table]:
    """Batches with all the columns: one that a file lacks is null, and so is what is not a number.

    Rows without a member or a time are left out.

    Raises:
        ArrowInvalid: The file lacks a column that says what its rows are of.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = dict((*GPU_COLUMNS, *MEMBER_COLUMNS))
    present = [name for name in names if name in file.schema_arrow.names]
    missing = [name for name in names if name in _NAMING and name not in present]
    if missing:
        raise pa.ArrowInvalid(f"it has no column {', '.join(missing)}")
    for batch in file.iter_batches(_BATCH_ROWS, columns=present, use_threads=False):
        columns = {}
        for name in names:
            kind = pa.type_for_alias(kinds[name])
            kind = pa.float64() if pa.types.is_float32(kind) else kind
            if name not in present:
                columns[name] = pa.nulls(batch.num_rows, kind)
                continue
            column = batch.column(name).cast(kind)
            # A sum tells at a fifth of the price whether there is anything to look for.
            if pa.types.is_float64(kind) and not math.isfinite(pc.sum(column).as_py() or 0.0):
                column = pc.if_else(pc.is_finite(column), column, None)
            columns[name] = column
        table = pa.table(columns)
        for name in _NAMING:
            if name in columns and table[name].null_count:
                table = table.filter(pc.is_valid(table[name]))
        yield table


def _count_span_s(files: Sequence[Any]) -> float:
    """From the first row to the last, by what the files say of themselves."""
    ends = []
    for file in files:
        place = file.schema_arrow.names.index("at") if "at" in file.schema_arrow.names else None
        for group in range(file.metadata.num_row_groups if place is not None else 0):
            statistics = file.metadata.row_group(group).column(place).statistics
            if statistics is not None and statistics.has_min_max:
                ends += [float(statistics.min), float(statistics.max)]
    return max(ends) - min(ends) if ends else 0.0


def thin_members(
    interval_s: float,
    files: Sequence[Any],
) -> tuple[Callable[[pa.Table], pa.Table], Sequence[str], float]:
    """Keep one row of each start for a stride of seconds, where there are many rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = ("at", *KEY, *PEAKS, *LAST)
    rows, span_s = sum(file.metadata.num_rows for file in files), _count_span_s(files)
    stride_s = max(span_s / ROWS_PER_MEMBER, interval_s * rows / ROWS)
    if rows <= ROWS_PER_MEMBER or stride_s <= interval_s:
        return (lambda table: table), names, 0.0
    # As it stood, not as it was last known: a value that could not be read stays unknown.
    as_it_stood = pc.ScalarAggregateOptions(skip_nulls=False)

    def thin(table: pa.Table) -> pa.Table:
        bucket = pc.cast(pc.floor(pc.divide(table["at"], stride_s)), pa.int64())
        grouped = table.append_column("bucket", bucket).group_by(
            [*KEY, "bucket"], use_threads=False
        )
        found = grouped.aggregate(
            [("at", "max")]
            + [(name, "max") for name in PEAKS]
            + [(name, "last", as_it_stood) for name in LAST]
        )
        columns = {"at": found["at_max"], **{name: found[name] for name in KEY}}
        columns |= {name: found[f"{name}_max"] for name in PEAKS}
        columns |= {name: found[f"{name}_last"] for name in LAST}
        return pa.table(columns)

    return thin, names, stride_s


def thin_gpu(
    files: Sequence[Any],
) -> tuple[Callable[[pa.Table], pa.Table], Sequence[str], float]:
    """Keep the means over a stride of seconds, where there are very many rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = ("at", "uuid", *GPU_METRICS)
    span_s = _count_span_s(files)
    stride_s = span_s / ROWS_PER_GPU
    if stride_s <= 1:
        return (lambda table: table), names, 0.0

    def thin(table: pa.Table) -> pa.Table:
        bucket = pc.cast(pc.floor(pc.divide(table["at"], stride_s)), pa.int64())
        grouped = table.append_column("bucket", bucket).group_by(
            ["uuid", "bucket"], use_threads=False
        )
        found = grouped.aggregate([(name, "mean") for name in ("at", *GPU_METRICS)])
        columns = {"at": found["at_mean"], "uuid": found["uuid"]}
        return pa.table(columns | {name: found[f"{name}_mean"] for name in GPU_METRICS})

    return thin, names, stride_s
