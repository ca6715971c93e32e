"""What a calibration measures: trainings that run at once, and what is started together; pure.

A cell is one measurement: some trainings, running at once for a short time. A group is what is
started together: processes that serve many cells. Under MPS processes with different thread limits
stand side by side, and those that a cell has no use for are idle and disturb none.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from slurm_colloc_lab.calibration.whole_gpu import NAMES

TIMESLICE = "timeslice"
MPS = "mps"

ALONE = "alone"
SAME = "same"

# Seconds of settling, and of the window.
ALONE_TIMES_S = (0.4, 1.0)
SHARED_TIMES_S = (0.5, 1.5)
# Between two cells; what starting and ending a group takes, for each worker and in all; and
# loading torch, for the first time.
CELL_OVERHEAD_S = 0.12
WORKER_START_S = 0.55
GROUP_START_S = 6.0
FIRST_START_S = 25.0


class CellTraining(NamedTuple):
    """One training of a cell.

    Attributes:
        workload: Its name.
        limit: Thread limit under MPS, in percent; None for none.
    """

    workload: str
    limit: int | None = None


@dataclass(frozen=True)
class Cell:
    """Some trainings at once.

    Attributes:
        label: `alone`, `pair`, `triple`, `pack4` and so on, or `same` for copies of one training.
        members: Its trainings; one that stands there twice runs twice.
        settle_s: How long all run before the window begins.
        window_s: How long the window is.
    """

    label: str
    members: tuple[CellTraining, ...]
    settle_s: float = SHARED_TIMES_S[0]
    window_s: float = SHARED_TIMES_S[1]

    def estimate_s(self) -> float:
        """How long it takes."""
        return self.settle_s + self.window_s + CELL_OVERHEAD_S


@dataclass(frozen=True)
class Group:
    """Cells that the same processes serve.

    Attributes:
        name: What rows call it.
        mode: `timeslice` or `mps`.
        cells: In the order in which they are measured.
    """

    name: str
    mode: str
    cells: tuple[Cell, ...]

    def count_copies(self) -> dict[CellTraining, int]:
        """How many processes of each kind are needed, in the order of the cells."""
        return add_copies({}, self.cells)

    def estimate_start_s(self) -> float:
        """How long starting and ending it takes."""
        return GROUP_START_S + WORKER_START_S * sum(self.count_copies().values())

    def estimate_s(self) -> float:
        """How long it takes, start and end included."""
        return self.estimate_start_s() + sum(cell.estimate_s() for cell in self.cells)


def make_cell(label: str, names: Iterable[str], limit: int | None = None) -> Cell:
    """A cell whose members all have one limit."""
    times = ALONE_TIMES_S if label == ALONE else SHARED_TIMES_S
    return Cell(label, tuple(CellTraining(name, limit) for name in names), *times)


def add_copies(
    copies: Mapping[CellTraining, int], cells: Iterable[Cell]
) -> dict[CellTraining, int]:
    """The processes that there are, and those that cells still lack."""
    grown = dict(copies)
    for cell in cells:
        for member, count in Counter(cell.members).items():
            grown[member] = max(grown.get(member, 0), count)
    return grown


def shorten(groups: Iterable[Group], settle_s: float, window_s: float) -> tuple[Group, ...]:
    """The same cells with other times, for trainings that need none to settle."""
    return tuple(
        replace(
            group,
            cells=tuple(replace(c, settle_s=settle_s, window_s=window_s) for c in group.cells),
        )
        for group in groups
    )


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
