"""The samples of a pack as its monitor has written them, by member and by GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.own_time import OwnTime
from slurm_colloc.metrics.rates import CounterReadings
from slurm_colloc.metrics.series import Track
from slurm_colloc.report.summary.sample_tables import (
    KEY,
    LAST,
    PEAKS,
    read_table,
    thin_gpu,
    thin_members,
)
from slurm_colloc.store.pack.sample_files import GPU_METRICS, list_sample_files

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES = 3
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

    def get(self, metric: str) -> Track | None:
        """A metric over time; None where nothing was measured of the GPU."""
        if self.table is None:
            return None
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
    """Read what the monitor has written so far.

    Files that are damaged are left out and named. A running monitor replaces pieces by merged
    ones, so a file that is gone means that the folder has to be looked at again.

    Raises:
        StateError: pyarrow is not installed, or files come and go all the time.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise StateError(
            f"samples are Parquet files, which need pyarrow ({error})",
            hint="install it alongside csub: pip install pyarrow",
        ) from error
    for _ in range(_TRIES):
        problems: list[str] = []
        try:
            members, stride_s = read_table(
                list_sample_files(pack, "members"), partial(thin_members, interval_s), problems
            )
            gpus, _ = read_table(list_sample_files(pack, "gpu"), thin_gpu, problems)
        except FileNotFoundError:
            time.sleep(0.1)
            continue
        return Samples(
            {} if members is None else _split_members(members),
            {} if gpus is None else _split_gpus(gpus),
            tuple(problems),
            stride_s,
        )
    raise StateError(f"the samples in {pack}/report change faster than they can be read")


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
