"""GPU memory of a member that has just started is looked at each second, later every five."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.instrument import layout
from slurm_colloc.monitor.gpu_reading import Capabilities
from slurm_colloc.monitor.member_progress import Members
from slurm_colloc.monitor.member_reading import EARLY_S
from slurm_colloc.monitor.nvml_reading import NvmlSample
from slurm_colloc.monitor.sampling_loop import Gaps, Loop, MonitorRecord
from slurm_colloc.store.progress_counters import read_member_progress

from ..wait_until import wait_until
from .watched_pack import WatchedPack

UUID = "GPU-11111111-2222-3333-4444-555555555555"
MIB = 1 << 20


class Watch:
    """In the place of NVML: a GPU whose lists name one process, and when they were asked for."""

    def __init__(self) -> None:
        self.looks: list[float] = []
        self.now = 0.0
        self._with_processes = False

    def ask(self, _uuids: Sequence[str], *, with_processes: bool) -> None:
        self._with_processes = with_processes
        if with_processes:
            self.looks.append(self.now)

    def collect(self, _patience_s: float) -> NvmlSample:
        sample = NvmlSample(gpus={UUID: {"power_w": 50.0}})
        if self._with_processes:
            sample.processes[UUID] = {os.getpid(): 1.0}
        return sample

    def close(self) -> None:
        pass


class Rows:
    """In the place of Parquet files."""

    dropped = 0

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def write_piece(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def loop(bed: WatchedPack, watch: Watch, rows: Rows) -> Loop:
    (bed.pack / "report").mkdir()
    return Loop(
        pack=str(bed.pack),
        attempt=1,
        parent=os.getppid(),
        tick_s=1.0,
        watch=watch,  # type: ignore[arg-type]
        members=Members(str(bed.pack), 1, str(bed.progress), read_member_progress),
        gpu_files=Rows(),  # type: ignore[arg-type]
        member_files=rows,  # type: ignore[arg-type]
        record=MonitorRecord(str(bed.pack), 1, "n1", 1.0, 0.0, Gaps(), Capabilities()),
    )


def run(loop: Loop, watch: Watch, begin: int, end: int) -> list[float]:
    """Ticks of these seconds; at which of them the lists were asked for."""
    watch.looks.clear()
    for second in range(begin, end):
        watch.now = float(second)
        loop._tick(1e9 + second, watch.now)
    return list(watch.looks)


def start_member(bed: WatchedPack, number: int) -> None:
    bed.start_member(number, "sleep 600")
    record = bed.pack / "members" / f"{number:04d}" / "run.1.1.started"
    wait_until(record.exists, "the wrapper is up")


def test_a_young_member_is_looked_at_each_second(
    bed: WatchedPack, watch: Watch, loop: Loop
) -> None:
    assert run(loop, watch, 0, 20) == [0, 5, 10, 15]
    start_member(bed, 1)
    young_until = 20 + int(EARLY_S)
    looks = run(loop, watch, 20, young_until + 21)
    # It is found in the first of these ticks, which looks by its own turn.
    assert looks[: int(EARLY_S)] == list(range(20, young_until))
    late = looks[int(EARLY_S) :]
    assert {after - before for before, after in itertools.pairwise(late)} == {5}
    # One more makes all be looked at again.
    start_member(bed, 2)
    looks = run(loop, watch, young_until + 21, young_until + 31)
    assert looks[-8:] == list(range(young_until + 23, young_until + 31))


def write_counters(directory: Path, **words: int) -> None:
    content = bytearray(layout.SIZE)
    head = (layout.MAGIC, layout.VERSION, layout.SIZE, 0, 77, *[0] * 10, -1, 0)
    layout.RECORD.pack_into(content, 0, *head, layout.SOURCE_OPTIMIZER, 1, 0, 0, 0, 0)
    cells = memoryview(content).cast("q")
    for name, value in words.items():
        cells[getattr(layout, name)] = value
    (directory / "77.1.progress").write_bytes(content)


def test_what_allocator_and_loader_say_is_in_the_newest_figures(
    bed: WatchedPack, watch: Watch, loop: Loop, rows: Rows
) -> None:
    start_member(bed, 1)
    run(loop, watch, 0, 1)
    assert rows.rows[-1].get("gpu_memory_reserved_peak_mb") is None
    write_counters(
        bed.progress / "0001.1",
        STEPS=3, FIRST_STEP_NS=10**9, LAST_STEP_NS=2 * 10**9, UPDATED_NS=2 * 10**9,
        GPU_RESERVED_PEAK=6042 * MIB, GPU_RESERVED=238 * MIB, GPU_READ_NS=2 * 10**9,
        LOADER_WORKERS=3,
    )  # fmt: skip
    run(loop, watch, 1, 4)
    row = rows.rows[-1]
    assert (row["gpu_memory_reserved_peak_mb"], row["gpu_memory_reserved_mb"]) == (6042, 238)
    latest = bed.latest or {}
    assert latest["members"]["1"]["gpu_memory_reserved_peak_mb"] == 6042
    assert latest["members"]["1"]["loader_workers"] == 2
