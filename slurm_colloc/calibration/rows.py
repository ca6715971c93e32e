"""The table that a calibration writes: one row for each member of each cell."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.calibration.readings import NAMES

COLUMNS = (
    "run",
    "run_at",
    "gpu_model",
    "driver",
    "power_limit_w",
    "group",
    "mode",
    "thread_percentage",
    "cell",
    "label",
    "members",
    "size",
    "member",
    "workload",
    "family",
    "cores",
    "cores_shared",
    "settle_s",
    "window_s",
    "steps",
    "rate_per_s",
    "cpu_s",
    "gpu_memory_mb",
    *NAMES,
    "t_begin",
)
"""Units stand in the names; shares are between 0 and 1; `run_at` is when the run began in seconds
since the epoch, `t_begin` when the window began in monotonic seconds. What could not be read is
empty."""


class RowWriter:
    """Appends rows to a CSV file.

    Args:
        path: The file; its header is written where it is new or empty.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        if self._file.tell() == 0:
            self._writer.writeheader()

    def write(self, rows: list[Mapping[str, object]]) -> None:
        """Append the rows of one cell, so that they outlive whatever comes after."""
        for row in rows:
            self._writer.writerow({name: _render(row.get(name)) for name in COLUMNS})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _render(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    # No figure is known better, and tables stay small.
    return f"{value:.0f}" if value >= 1e5 else f"{value:.5g}"
