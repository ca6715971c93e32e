"""Where a pack's samples lie, what their tables hold, and how their files are named; no pyarrow.

While a pack runs its samples are in pieces, `gpu.000001.parquet` and on, one each ten seconds. Many
pieces become one, `gpu.000001-000060.parquet`, and at the end one file holds all: `gpu.parquet`,
which counts as piece 0. A file stands for every number of its range, so whatever moment a monitor
was killed at, `list_sample_files` names each row exactly once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

Columns = tuple[tuple[str, str], ...]

GPU_COLUMNS: Columns = (
    ("at", "float64"),
    ("attempt", "int32"),
    ("uuid", "string"),
    ("sm_active", "float32"),
    ("sm_occupancy", "float32"),
    ("tensor_active", "float32"),
    ("dram_active", "float32"),
    ("engine_active", "float32"),
    ("utilization", "float32"),
    ("pcie_tx_mib_s", "float32"),
    ("pcie_rx_mib_s", "float32"),
    ("nvlink_tx_mib_s", "float32"),
    ("nvlink_rx_mib_s", "float32"),
    ("gpu_memory_mb", "float32"),
    ("power_w", "float32"),
    ("energy_j", "float64"),
    ("sm_clock_mhz", "int32"),
    ("memory_clock_mhz", "int32"),
    ("temperature_c", "int32"),
    ("throttle_power_s", "float64"),
    ("throttle_thermal_s", "float64"),
    ("throttle_brake_s", "float64"),
)
"""One row per GPU and tick. `at` in seconds since the epoch; active parts 0 to 1; counters
(`energy_j`, `throttle_*_s`) since the driver was loaded."""

MEMBER_COLUMNS: Columns = (
    ("at", "float64"),
    ("attempt", "int32"),
    ("member", "int32"),
    ("start", "int32"),
    ("gpu_memory_mb", "float32"),
    ("processes", "int32"),
    ("threads", "int32"),
    ("cpu_s", "float64"),
    ("host_memory_mb", "float32"),
    ("read_bytes", "int64"),
    ("written_bytes", "int64"),
    ("steps", "int64"),
    ("skipped", "int64"),
    ("samples", "int64"),
    ("batches", "int64"),
    ("wait_s", "float64"),
    ("trainers", "int32"),
    ("progress", "string"),
    ("first_step_at", "float64"),
    ("last_step_at", "float64"),
    ("gpu_memory_reserved_mb", "float32"),
    ("gpu_memory_reserved_peak_mb", "float32"),
)
"""One row per running member and tick, and one when it has ended. `cpu_s`, `read_bytes`,
`written_bytes` and all from `steps` to `wait_s` are counters of that start. `wait_s` is a sum over
processes; as a share of time it is divided by `trainers`, those that make steps. The last
two are what PyTorch's allocator says of itself, without contexts."""

TABLES = {"gpu": GPU_COLUMNS, "members": MEMBER_COLUMNS}

GPU_METRICS = tuple(name for name, _ in GPU_COLUMNS[3:])
"""What is measured of a GPU: all columns but those that say when and which."""

_NAME = re.compile(
    r"(?P<table>[a-z]+)(?:\.(?P<first>[0-9]{6,})(?:-(?P<last>[0-9]{6,}))?)?\.parquet"
)


@dataclass(frozen=True, order=True)
class Piece:
    """A file of samples, and the numbers of the pieces it stands for.

    Args:
        first: The first of them; 0 is the file of all that has ended.
        last: The last.
        name: The file's name.
    """

    first: int
    last: int
    name: str


def report_directory(pack: str | os.PathLike[str]) -> str:
    """Where the monitor writes."""
    return f"{os.fspath(pack)}/report"


def latest_path(pack: str | os.PathLike[str]) -> str:
    """The newest sample, for the runner and for people who watch."""
    return f"{os.fspath(pack)}/latest.json"


def monitor_path(pack: str | os.PathLike[str]) -> str:
    """What the monitor says of itself: its gaps, its cost, what it could read."""
    return f"{report_directory(pack)}/monitor.json"


def format_piece(table: str, first: int, last: int) -> str:
    """Name the file of a range of pieces."""
    if last == 0:
        return f"{table}.parquet"
    if first == last:
        return f"{table}.{first:06d}.parquet"
    return f"{table}.{first:06d}-{last:06d}.parquet"


def parse_piece(name: str) -> tuple[str, Piece] | None:
    """Read a file's name; None where it is none of a table here."""
    match = _NAME.fullmatch(name)
    if match is None or match["table"] not in TABLES:
        return None
    first = int(match["first"] or 0)
    return match["table"], Piece(first, int(match["last"] or first), name)


def choose_pieces(names: Iterable[str], table: str) -> tuple[list[Piece], list[Piece]]:
    """Tell the files that hold a table from those whose rows are in another one already; pure.

    Args:
        names: Names of files; others than samples do not matter.
        table: `gpu` or `members`.

    Returns:
        Files to read, in order of time, and files that may go.
    """
    parsed = (parse_piece(name) for name in names)
    pieces = sorted(found[1] for found in parsed if found is not None and found[0] == table)
    # The widest first among those with the same beginning, so that it is met before its parts.
    pieces.sort(key=lambda piece: (piece.first, -piece.last))
    kept: list[Piece] = []
    spare: list[Piece] = []
    for piece in pieces:
        if kept and piece.last <= kept[-1].last:
            spare.append(piece)
        else:
            kept.append(piece)
    return kept, spare


def list_sample_files(pack: str | os.PathLike[str], table: str) -> list[str]:
    """The files that together hold a pack's table, each row once, in order of time.

    Args:
        pack: The pack's directory.
        table: `gpu` or `members`.
    """
    directory = report_directory(pack)
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{directory}/{piece.name}" for piece in choose_pieces(names, table)[0]]
