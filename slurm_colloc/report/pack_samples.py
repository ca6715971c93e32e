"""The samples of a pack as its monitor has written them, by member and by GPU.

Also: reading tables of samples in batches, thinned where there are very many rows.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.rates import NOTHING_READ, CounterReadings, OwnTime, Track
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.store.atomic_files import open_regular
from slurm_colloc.store.report_files import (
    GPU_COLUMNS,
    GPU_METRICS,
    MEMBER_COLUMNS,
    list_sample_files,
)

if TYPE_CHECKING:
    import pyarrow as pa


# ---- Reading tables of samples in batches, thinned where there are very many rows ----------------
#
# Of each start one row for each few seconds is kept: counters as they stood at its end, gauges as
# their maximum. So totals and peaks stay exact, and rates stay over windows longer than that.

ROWS_PER_MEMBER = 10_000
"""A start with more rows is thinned to about that many."""
ROWS = 300_000
"""All members together are thinned to about that many: some 40 MB."""
ROWS_PER_GPU = 100_000

_TRIES = 3
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
    pack: Path, table: str, choose: _Thin, problems: list[str]
) -> tuple[pa.Table | None, float]:
    """Read the files of one table, in order of time.

    Files that are damaged are left out and named. A running monitor replaces pieces by merged
    ones, so a file that is gone means that the folder has to be looked at again.

    Args:
        pack: The pack's directory.
        table: `members` or `gpu`.
        choose: Says from the opened files which columns are read and how rows are thinned.
        problems: Takes a sentence for each file that cannot be read.

    Returns:
        The rows, None where there are none; and how many seconds each stands for, 0 for one
        reading.

    Raises:
        StateError: pyarrow is not installed, or files come and go all the time.
    """
    for _ in range(_TRIES):
        told: list[str] = []
        try:
            found = _read_files(list_sample_files(pack, table), choose, told)
        except FileNotFoundError:
            time.sleep(0.1)
            continue
        problems += told
        return found
    raise StateError(f"the samples in {pack}/report change faster than they can be read")


def _read_files(
    paths: Sequence[str], choose: _Thin, problems: list[str]
) -> tuple[pa.Table | None, float]:
    if not paths:
        # Nothing was measured, or not yet; pyarrow takes longer than all else.
        return None, 0.0
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise StateError(
            f"samples are Parquet files, which need pyarrow ({error})",
            hint="install it alongside csub: pip install pyarrow",
        ) from error

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


def read_columns(
    pack: Path, table: str, names: Sequence[str], problems: list[str]
) -> pa.Table | None:
    """All readings of one table of a pack; as `read_table` otherwise."""
    return read_table(pack, table, lambda _files: ((lambda rows: rows), names, 0.0), problems)[0]


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
        found = _group(table, KEY, stride_s).aggregate(
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

    names = ("at", "uuid", *GPU_METRICS)
    span_s = _count_span_s(files)
    stride_s = span_s / ROWS_PER_GPU
    if stride_s <= 1:
        return (lambda table: table), names, 0.0

    def thin(table: pa.Table) -> pa.Table:
        grouped = _group(table, ("uuid",), stride_s)
        found = grouped.aggregate([(name, "mean") for name in ("at", *GPU_METRICS)])
        columns = {"at": found["at_mean"], "uuid": found["uuid"]}
        return pa.table(columns | {name: found[f"{name}_mean"] for name in GPU_METRICS})

    return thin, names, stride_s


def _group(table: pa.Table, keys: Sequence[str], stride_s: float) -> pa.TableGroupBy:
    """Rows of the same keys and the same stride of seconds together."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bucket = pc.cast(pc.floor(pc.divide(table["at"], stride_s)), pa.int64())
    return table.append_column("bucket", bucket).group_by([*keys, "bucket"], use_threads=False)


# ---- The samples of a pack as its monitor has written them, by member and by GPU -----------------

_GPU_MEMORY_UNREAD_S = 15.0
"""The monitor reads NVML's lists of processes every 5 s, of one that is young each second."""


@dataclass(frozen=True)
class StartSamples:
    """What was read of one start of a member.

    Attributes:
        attempt: The pack's attempt.
        start: The start's number.
        table: Its rows in order of time. They stay as Arrow has them: as Python's numbers, those
            of all members of a long run would need hundreds of MB.
    """

    attempt: int
    start: int
    table: pa.Table

    def read(self, name: str) -> list[Any]:
        """A column's values, each None where the table has no such column."""
        if name not in self.table.column_names:
            return [None] * len(self.table)
        return _to_list(self.table[name])

    @cached_property
    def begin(self) -> float:
        """When it was seen first, in seconds since the epoch."""
        return float(self.table["at"][0].as_py())

    @cached_property
    def end(self) -> float:
        """When it was seen last."""
        return float(self.table["at"][-1].as_py())

    def first(self, name: str) -> Any:
        """The first known value of a column; None where none is."""
        known = self.table[name].drop_null()
        return known[0].as_py() if len(known) else None

    def last(self, name: str) -> Any:
        """The last known value of a column; None where none is."""
        known = self.table[name].drop_null()
        return known[-1].as_py() if len(known) else None

    def compute_rise(self, name: str) -> float | None:
        """How far a counter rose since it was seen first; None where it was never read."""
        first = self.first(name)
        return None if first is None else float(self.last(name) - first)

    def peak(self, name: str) -> float | None:
        """The largest known value of a column; None where none is."""
        import pyarrow.compute as pc

        if name not in self.table.column_names:
            return None
        value = pc.max(self.table[name]).as_py()
        return None if value is None else float(value)

    @cached_property
    def gpu_memory_peak_mb(self) -> float | None:
        """The largest gpu_memory that NVML told at a look, in MiB; None where it is not known.

        A member that has moved into a pid namespace of its own may be read no longer: that it used
        none before says nothing.
        """
        peak = self.peak("gpu_memory_mb")
        if peak == 0:
            at = self.read("at")
            rows = zip(at, self.read("gpu_memory_mb"), strict=True)
            newest = max(moment for moment, value in rows if value is not None)
            # Of a long run each row stands for many seconds.
            row_s = (self.end - self.begin) / len(at)
            if newest < self.end - max(_GPU_MEMORY_UNREAD_S, 3 * row_s):
                return None
        return peak

    @cached_property
    def first_step_at(self) -> float | None:
        """When its first step ended; None where it made none, or none was seen."""
        value = self.last("first_step_at")
        return None if value is None else float(value)

    def build_progress(self, own_time: OwnTime) -> CounterReadings:
        """Its counters.

        Args:
            own_time: Tells when its runner had stopped it.
        """
        return CounterReadings(
            self.read("at"),
            self.read("steps"),
            self.read("samples"),
            self.read("wait_s"),
            self.read("last_step_at"),
            self.first_step_at,
            own_time,
        )


class GpuSamples:
    """What was measured of one GPU.

    Args:
        table: Its rows in order of time; None for a GPU of which nothing was.
    """

    def __init__(self, table: pa.Table | None = None) -> None:
        self.table = table
        self._tracks: dict[str, Track] = {}

    def __bool__(self) -> bool:
        return self.table is not None

    @cached_property
    def at(self) -> list[float]:
        """When it was read, in seconds since the epoch."""
        return [] if self.table is None else _to_list(self.table["at"])

    def get(self, metric: str) -> Track:
        """A metric over time."""
        if self.table is None:
            return NOTHING_READ
        track = self._tracks.get(metric)
        if track is None:
            track = Track(self.at, _to_list(self.table[metric]))
            # The others are looked at once.
            if metric in _LOOKED_AT_OFTEN:
                self._tracks[metric] = track
        return track


def join_gpus(gpus: Sequence[GpuSamples], metrics: Sequence[str] = GPU_METRICS) -> GpuSamples:
    """Several GPUs as one: what is shares of a GPU, or per GPU, is their mean.

    Power and energy are added up, GPU memory is that of the fullest. A moment at which one of them
    could not be read says nothing of all.

    Args:
        gpus: At least one.
        metrics: Those that are read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = [one.table for one in gpus if one.table is not None]
    if len(tables) < len(gpus):
        return NO_GPU
    if len(tables) == 1:
        return gpus[0]
    all_or_none = pc.ScalarAggregateOptions(skip_nulls=False)
    rows = pa.concat_tables(tables)
    found = rows.group_by("at", use_threads=False).aggregate(
        [("uuid", "count")]
        + [(name, _JOINED_BY.get(name, "mean"), all_or_none) for name in metrics]
    )
    found = found.filter(pc.equal(found["uuid_count"], len(tables))).sort_by("at")
    columns = {"at": found["at"]}
    for name in metrics:
        columns[name] = found[f"{name}_{_JOINED_BY.get(name, 'mean')}"]
    return GpuSamples(pa.table(columns))


NO_GPU = GpuSamples()
_JOINED_BY = {"power_w": "sum", "energy_j": "sum", "gpu_memory_mb": "max"}
_LOOKED_AT_OFTEN = ("sm_active", "power_w", "energy_j")


@dataclass(frozen=True)
class Samples:
    """All samples of a pack.

    Attributes:
        starts: By member, in order of time.
        gpus: By UUID: each metric over time.
        problems: Files that could not be read, a sentence each.
        stride_s: Rows of members stand for so many seconds each; 0 for each reading.
    """

    starts: Mapping[int, tuple[StartSamples, ...]]
    gpus: Mapping[str, GpuSamples]
    problems: tuple[str, ...] = ()
    stride_s: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Nothing was measured."""
        return not self.starts and not self.gpus


def read_samples(pack: Path, interval_s: float = 1.0) -> Samples:
    """Read what the monitor has written so far, as `read_table` does."""
    problems: list[str] = []
    members, stride_s = read_table(pack, "members", partial(thin_members, interval_s), problems)
    gpus, _ = read_table(pack, "gpu", thin_gpu, problems)
    return Samples(
        {} if members is None else _split_members(members),
        {} if gpus is None else _split_gpus(gpus),
        tuple(problems),
        stride_s,
    )


def _split_members(table: pa.Table) -> dict[int, tuple[StartSamples, ...]]:
    import pyarrow.compute as pc

    found: dict[int, list[StartSamples]] = {}
    keys = table.select(list(KEY)).group_by(list(KEY), use_threads=False).aggregate([])
    for key in keys.to_pylist():
        mask = pc.and_(
            pc.equal(table["member"], key["member"]),
            pc.and_(
                pc.equal(table["start"], key["start"]), pc.equal(table["attempt"], key["attempt"])
            ),
        )
        own = table.filter(mask).sort_by("at")
        start = StartSamples(key["attempt"], key["start"], own.select(["at", *PEAKS, *LAST]))
        found.setdefault(key["member"], []).append(start)
    return {
        member: tuple(sorted(starts, key=lambda start: start.begin))
        for member, starts in sorted(found.items())
    }


def _split_gpus(table: pa.Table) -> dict[str, GpuSamples]:
    import pyarrow.compute as pc

    uuids = sorted(value for value in table["uuid"].unique().to_pylist() if value is not None)
    return {
        uuid: GpuSamples(table.filter(pc.equal(table["uuid"], uuid)).sort_by("at"))
        for uuid in uuids
    }


def _to_list(column: pa.ChunkedArray) -> list[Any]:
    """A column as a list; whole columns of numbers go faster by their buffer."""
    import pyarrow as pa

    merged = column.combine_chunks()
    array = merged.combine_chunks() if isinstance(merged, pa.ChunkedArray) else merged
    whole = len(array) > 0 and array.null_count == 0
    if whole and pa.types.is_float64(array.type):
        floats = memoryview(array.buffers()[1]).cast("d")
        return list(floats[array.offset : array.offset + len(array)])
    if whole and pa.types.is_int64(array.type):
        integers = memoryview(array.buffers()[1]).cast("q")
        return list(integers[array.offset : array.offset + len(array)])
    if len(array) and array.null_count == len(array):
        return [None] * len(array)
    return list(array.to_pylist())
