"""How copies of one training can share a GPU, which of it is measured, and in which order; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurm_colloc_lab.calibration.cells import (
    ALONE,
    MPS,
    SAME,
    TIMESLICE,
    Cell,
    CellTraining,
    Group,
)
from slurm_colloc_lab.calibration.workloads import (
    MOST_WORKERS,
    Room,
    WorkloadNeed,
    compute_gpu_memory_mb,
)


class Usual(NamedTuple):
    """What is measured of a workload unless something else is asked for.

    Attributes:
        most: How many jobs csub is asked about.
        degrees: How many copies run at once.
        limits: Thread limits under MPS, in percent; no limit is measured, too.
    """

    most: int
    degrees: tuple[int, ...]
    limits: tuple[int, ...]


USUAL: Mapping[str, Usual] = {
    "small": Usual(16, (4, 6, 8, 10, 12, 14, 16), (8, 10, 12, 16, 20, 25, 33, 40, 50, 66, 80)),
    "medium": Usual(8, (2, 3, 4, 5, 6, 7, 8), (16, 25, 33, 50, 66, 80)),
    "large": Usual(4, (2, 3, 4, 5), (25, 33, 50, 66, 80)),
}
OTHER = Usual(8, (2, 3, 4, 5, 6, 7, 8), (12, 16, 25, 33, 50, 66, 80))

# What the members' limits add up to, in percent: with less the GPU cannot be filled, and with more
# it is as with no limits. csub itself tries 100, 200 and 300.
_TOTAL_LEAST, _TOTAL_MOST, _TOTAL_USUAL = 90, 330, 200
# A limit that differs by less from one that csub chose tells nothing more.
_ALIKE = 1.1
_COARSEST = 4
_WORTH_CELLS = 2


class Sharing(NamedTuple):
    """How copies of one training share a GPU; one copy in time slices is the training alone.

    Attributes:
        mode: `timeslice` or `mps`.
        limit: Thread limit of each, in percent; None for none.
        degree: How many run.
    """

    mode: str
    limit: int | None
    degree: int

    def __str__(self) -> str:
        """For people: `12 by mps at 16 %`."""
        if self == ALONE_SHARING:
            return "one alone"
        limit = "" if self.limit is None else f" at {self.limit} %"
        return f"{self.degree} by {self.mode}{limit}"


ALONE_SHARING = Sharing(TIMESLICE, None, 1)


@dataclass(frozen=True)
class Times:
    """How long cells take, in seconds.

    Attributes:
        settle_s: From the start of all members to the window.
        window_s: The window of a cell of the grid, and of a training alone.
        again_s: The window of a cell that is measured in turn with others.
    """

    settle_s: float = 0.8
    window_s: float = 2.5
    again_s: float = 4.0


@dataclass(frozen=True)
class Ask:
    """What is to be measured.

    Attributes:
        kind: The workload.
        need: What one copy of it takes.
        degrees: As in Usual.
        limits: Likewise.
        room: Cores, memory and modes.
        times: How long it takes.
    """

    kind: str
    need: WorkloadNeed
    degrees: tuple[int, ...]
    limits: tuple[int, ...]
    room: Room
    times: Times = Times()

    def fits(self, sharings: Iterable[Sharing]) -> bool:
        """Whether the processes of all these fit onto the GPU at the same time."""
        copies: dict[CellTraining, int] = {}
        for sharing in sharings:
            member = CellTraining(self.kind, sharing.limit)
            copies[member] = max(sharing.degree, copies.get(member, 0))
        taken_mb = compute_gpu_memory_mb(copies, {self.kind: self.need})
        return sum(copies.values()) <= MOST_WORKERS and taken_mb <= self.room.usable_mb

    def can_run(self, sharing: Sharing) -> bool:
        """Whether there are cores, memory and the mode for it."""
        return (
            sharing.mode in self.room.modes
            and sharing.degree * self.need.cpus <= self.room.cores
            and self.fits([sharing])
        )


SharingRow = tuple[Sharing, ...]
"""What one group of the grid serves: one mode and limit, several degrees."""


def build_grid(ask: Ask, chosen: Collection[Sharing]) -> tuple[SharingRow, ...]:
    """All of the grid that the machine has room for, the most interesting first.

    What csub chose comes first, then no limits, then limits by how near they are to twice the GPU
    for as many members as csub chose, with time slices behind the nearest two. In a row likewise.
    What csub chose takes the place of limits that are nearly the same.
    """
    shared = [sharing for sharing in chosen if sharing != ALONE_SHARING]
    usual = max((sharing.degree for sharing in shared), default=max(ask.degrees))
    rows: list[SharingRow] = []
    # A row of time slices or without limits is added in its place among them.
    ways: list[tuple[str, int | None]] = [(each.mode, each.limit) for each in shared]
    ways.append((MPS, None))
    own = [each.limit for each in shared if each.limit is not None]
    limits = [
        limit
        for limit in ask.limits
        if all(max(limit / each, each / limit) >= _ALIKE for each in own)
    ]
    limits.sort(key=lambda limit: (_distance(limit * usual), limit))
    nearest: list[tuple[str, int | None]] = [(MPS, limit) for limit in limits]
    ways += [*nearest[:2], (TIMESLICE, None), *nearest[2:]]
    for mode, limit in dict.fromkeys(ways):
        extra = {sharing.degree for sharing in shared if sharing.mode == mode}
        row = [Sharing(mode, limit, degree) for degree in {*ask.degrees, *extra}]
        row = [each for each in row if ask.can_run(each)]
        row.sort(key=lambda each: _rank(each, chosen))
        if row:
            rows.append(tuple(row))
    return tuple(rows)


def _distance(total: int) -> float:
    """How far a sum of limits is from twice the GPU, as a factor."""
    return max(total / _TOTAL_USUAL, _TOTAL_USUAL / total)


def _rank(sharing: Sharing, chosen: Collection[Sharing]) -> tuple[bool, float, int]:
    far = 0.0 if sharing.limit is None else _distance(sharing.limit * sharing.degree)
    return sharing not in chosen, far, -sharing.degree


def coarsen(
    grid: Sequence[SharingRow], chosen: Collection[Sharing], level: int
) -> tuple[tuple[Sharing, ...], ...]:
    """Leave out what matters least, evenly; what csub chose never.

    Args:
        grid: All of it.
        chosen: What csub chose.
        level: 0 for nothing; from 1 on limits that add up to too little or too much; from 2 on
            every second degree of time slices and of no limits; from 3 on every second limit; from
            4 on every second degree under limits.
    """
    limits = sorted(row[0].limit for row in grid if row[0].limit is not None)
    kept_limits = set(limits[::2]) | {sharing.limit for sharing in chosen}
    rows = []
    for row in grid:
        limit = row[0].limit
        if level >= 3 and limit is not None and limit not in kept_limits:
            continue
        degrees = sorted((sharing.degree for sharing in row), reverse=True)
        if level >= (2 if limit is None else _COARSEST):
            degrees = degrees[::2]
        rows.append(
            tuple(
                sharing
                for sharing in row
                if sharing in chosen
                or (sharing.degree in degrees and (level < 1 or _is_in_band(sharing)))
            )
        )
    return tuple(row for row in rows if row)


def _is_in_band(sharing: Sharing) -> bool:
    if sharing.limit is None:
        return True
    return _TOTAL_LEAST <= sharing.limit * sharing.degree <= _TOTAL_MOST


def make_group(
    ask: Ask, name: str, sharings: Sequence[Sharing], window_s: float | None = None
) -> Group:
    """The processes and cells for some ways of sharing of one mode.

    Args:
        ask: What is measured.
        name: What rows call it.
        sharings: The cells, in order.
        window_s: Another window than that of the grid.
    """
    times = ask.times
    cells = tuple(
        Cell(
            SAME if sharing.degree > 1 else ALONE,
            (CellTraining(ask.kind, sharing.limit),) * sharing.degree,
            times.settle_s,
            times.window_s if window_s is None else window_s,
        )
        for sharing in sharings
    )
    return Group(name, sharings[0].mode, cells)


def estimate_s(group: Group, pace: float = 1.0) -> float:
    """How long a group takes where starting it takes `pace` times as long as is usual."""
    return pace * group.estimate_start_s() + sum(cell.estimate_s() for cell in group.cells)


def choose_next(
    ask: Ask,
    grid: Sequence[SharingRow],
    done: Collection[Sharing],
    *,
    chosen: Collection[Sharing],
    seconds: float,
    pace: float = 1.0,
) -> SharingRow:
    """The row to measure next, as fine as all that is left fits into the time.

    Args:
        ask: What is measured.
        grid: All of the grid.
        done: What of it is measured, or has failed.
        chosen: What csub chose.
        seconds: The time that is left.
        pace: How much longer than usual a start takes.

    Returns:
        Its cells; nothing where not even the coarsest row fits.
    """
    fitting: SharingRow = ()
    for level in range(_COARSEST + 1):
        rows = [
            tuple(sharing for sharing in row if sharing not in done)
            for row in coarsen(grid, chosen, level)
        ]
        rows = [row for row in rows if row]
        costs = [estimate_s(make_group(ask, "", row), pace) for row in rows]
        if rows and sum(costs) <= seconds:
            return rows[0]
        # At the coarsest, the last rows are left out; a start for a single cell comes after others.
        affordable = [row for row, cost in zip(rows, costs, strict=True) if cost <= seconds]
        worth = [row for row in affordable if len(row) >= _WORTH_CELLS] or affordable
        fitting = worth[0] if worth else fitting
    return fitting
