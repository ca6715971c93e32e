"""Which trainings are measured together, in which mode and with which thread limits; pure.

A cell is one measurement: some trainings, running at once for a short time. A group is what is
started together: processes that serve many cells, as many as MPS and the GPU's memory have room
for. Under MPS processes with different thread limits stand side by side, and those that a cell has
no use for are idle and disturb nobody.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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

MOST_WORKERS = 46
"""In one group: an MPS server takes 48 clients on the driver this was chosen on."""
CONTEXT_MB = 614
"""GPU memory of a process beside what torch tells of, about 0.6 GiB on an H200."""
USABLE_MEMORY = 0.85
"""Share of the GPU's memory that a group may take; what trainings need is not known exactly."""

# How many of each size; what is drawn first is in all modes and limits.
_COUNTS = {2: 30, 3: 15, 4: 5, 7: 3, 12: 2}
_FEWEST = 0.1
# Mode, limit, and the share of the pairs, triples, fours, sevens and twelves that it measures. The
# most valuable first: what is planned most often, then what it is compared with.
_ARMS: tuple[tuple[str, int | None, Mapping[int, float]], ...] = (
    (MPS, None, {2: 1.0, 3: 1.0, 4: 1.0, 7: 1.0, 12: 1.0}),
    (MPS, 50, {2: 1.0, 4: 1.0}),
    (MPS, 66, {3: 1.0}),
    (MPS, 28, {7: 1.0}),
    (MPS, 16, {12: 1.0}),
    (MPS, 33, {3: 0.6}),
    (MPS, 12, {}),
    (TIMESLICE, None, {2: 0.6, 3: 0.5, 4: 0.6, 7: 0.5}),
)
# Copies of one training: degrees, and for each the limits at which they are measured; 0 stands for
# no limit, which time slicing has too.
_SAME: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "small": {4: (0, 50), 7: (0, 28), 12: (0, 16), 16: (12,)},
    "medium": {3: (0, 66), 4: (0, 50), 6: (0, 33)},
    "large": {2: (0, 50), 3: (0, 66, 33)},
}
_LIMITED_ALONE = {50: ("cnn32", "gpt125m", "medium", "large"), 33: ("cnn32", "recsys", "medium")}
# What is measured a second time, later.
_REPEATED_PAIRS = 4
# With what takes more of what a group may have, only the most usual limit is measured: otherwise
# every group would be full of it.
_LARGE_PART = 0.1
_LIMIT_OF_LARGE = 50
# So many of the last groups may be left out before fewer packs are drawn.
_LEFT_OUT_MOST = 2
_GROUPS_LEAST = 3


class Member(NamedTuple):
    """One training of a cell.

    Attributes:
        workload: Its name.
        limit: Thread limit under MPS, in percent; None for none.
    """

    workload: str
    limit: int | None = None


@dataclass(frozen=True)
class Need:
    """What one process of a workload takes.

    Attributes:
        cpus: Cores.
        gpu_memory_mb: GPU memory in MiB, without the context.
    """

    cpus: int = 1
    gpu_memory_mb: int = 0


@dataclass(frozen=True)
class Room:
    """What there is.

    Attributes:
        cores: Cores; packs that need more are not measured.
        gpu_memory_mb: All of the GPU's memory in MiB; None for no bound.
        modes: Sharing modes that can be measured, the more valuable first.
    """

    cores: int
    gpu_memory_mb: int | None = None
    modes: Sequence[str] = (MPS, TIMESLICE)

    @property
    def usable_mb(self) -> float:
        """What a group may take."""
        return float("inf") if self.gpu_memory_mb is None else USABLE_MEMORY * self.gpu_memory_mb


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
    members: tuple[Member, ...]
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

    def count_copies(self) -> dict[Member, int]:
        """How many processes of each kind are needed, in the order of the cells."""
        return _add_copies({}, self.cells)

    def estimate_start_s(self) -> float:
        """How long starting and ending it takes."""
        return GROUP_START_S + WORKER_START_S * sum(self.count_copies().values())

    def estimate_s(self) -> float:
        """How long it takes, start and end included."""
        return self.estimate_start_s() + sum(cell.estimate_s() for cell in self.cells)


def make_cell(label: str, names: Iterable[str], limit: int | None = None) -> Cell:
    """A cell whose members all have one limit."""
    times = ALONE_TIMES_S if label == ALONE else SHARED_TIMES_S
    return Cell(label, tuple(Member(name, limit) for name in names), *times)


def choose_names(needs: Mapping[str, Need], room: Room) -> tuple[str, ...]:
    """The workloads that a GPU has room for: with any of them, half is left for others."""
    return tuple(
        name
        for name, need in needs.items()
        if need.cpus < room.cores and need.gpu_memory_mb + CONTEXT_MB <= room.usable_mb / 2
    )


def choose_design(
    needs: Mapping[str, Need], room: Room, *, seed: int = 1, minutes: float = 8.0
) -> tuple[Group, ...]:
    """Choose groups and cells that fit a time, the most valuable first.

    Pairs, triples and packs are drawn by `seed` so that all workloads take part about equally
    often; each mode and limit takes the first of one list of them, so that the same members are
    seen in several. Where the time is short, fewer are. Every training is measured alone at
    several moments, because a host that is slow for a while would make it look slow.

    Args:
        needs: The workloads, and what each takes.
        room: What there is.
        seed: For drawing.
        minutes: How long all groups may take. What is alone is measured all the same.
    """
    names = choose_names(needs, room)
    chance = random.Random(seed)
    drawn = {
        size: _draw(names, size, count, cores=room.cores, chance=chance, needs=needs)
        for size, count in _COUNTS.items()
    }
    part = 1.0
    while True:
        groups = _build_groups(names, drawn, part, needs=needs, room=room)
        for left_out in range(_LEFT_OUT_MOST + 1):
            kept = groups[: max(_GROUPS_LEAST, len(groups) - left_out)]
            if estimate_minutes(kept) <= minutes:
                return kept
        if part <= _FEWEST:
            return groups
        part -= 0.05


def estimate_minutes(groups: Sequence[Group]) -> float:
    """How long groups take on one GPU, one after another, from the start of the program on."""
    return (FIRST_START_S + sum(group.estimate_s() for group in groups)) / 60 if groups else 0.0


def _draw(
    names: Sequence[str],
    size: int,
    count: int,
    *,
    cores: int,
    chance: random.Random,
    needs: Mapping[str, Need],
) -> tuple[tuple[str, ...], ...]:
    """Different sets of members; who has been drawn least often comes first."""
    drawn: list[tuple[str, ...]] = []
    used: Counter[str] = Counter()
    in_vain = 0
    while names and size <= cores and len(drawn) < count and in_vain < 100:
        # What was drawn already is drawn again where only few come into question: so the longer
        # nothing new is found, the less it counts who has been drawn.
        order = sorted(names, key=lambda name: used[name] + (0.5 + in_vain) * chance.random())
        # One in eight pairs is two of a kind, as users submit them.
        if size == 2 and chance.random() < 0.125:
            order = [order[0], order[0]]
        members: list[str] = []
        while len(members) < size and order:
            name = order.pop(0)
            missing = size - len(members) - 1
            if sum(needs[each].cpus for each in (*members, name)) + missing <= cores:
                members.append(name)
        found = tuple(sorted(members))
        if len(found) < size or found in drawn:
            in_vain += 1
            continue
        in_vain = 0
        drawn.append(found)
        used.update(found)
    return tuple(drawn)


def _build_groups(
    names: Sequence[str],
    drawn: Mapping[int, Sequence[tuple[str, ...]]],
    part: float,
    *,
    needs: Mapping[str, Need],
    room: Room,
) -> tuple[Group, ...]:
    groups: list[Group] = []
    for mode in room.modes:
        shared = [
            cell
            for cell in _list_shared(names, drawn, part, mode)
            if sum(needs[each.workload].cpus for each in cell.members) <= room.cores
            and not any(_is_too_large(each, needs, room) for each in cell.members)
        ]
        alone = [make_cell(ALONE, (name,)) for name in names]
        bins = _fill([*alone, *shared], needs, room.usable_mb)
        for number, cells in enumerate(bins, 1):
            twice = mode == room.modes[0]
            groups.append(Group(f"{mode}-{number}", mode, _place_alone(cells, twice=twice)))
    # The first of each mode comes first: what is left when the time is over is worth least.
    groups.sort(key=lambda group: int(group.name.rpartition("-")[2]))
    return tuple(groups)


def _is_too_large(member: Member, needs: Mapping[str, Need], room: Room) -> bool:
    takes_much = needs[member.workload].gpu_memory_mb > _LARGE_PART * room.usable_mb
    return takes_much and member.limit not in (None, _LIMIT_OF_LARGE)


def _list_shared(
    names: Sequence[str],
    drawn: Mapping[int, Sequence[tuple[str, ...]]],
    part: float,
    mode: str,
) -> list[Cell]:
    """The cells of a mode that are no training alone without a limit, the most valuable first."""
    found: list[Cell] = []
    for of_mode, limit, shares in _ARMS:
        if of_mode != mode:
            continue
        for size, share in shares.items():
            count = round(len(drawn[size]) * share * part)
            found += [make_cell(_label(each), each, limit) for each in drawn[size][:count]]
        same = _choose_same(names, mode, limit)
        found += same[: math.ceil(len(same) * min(1.0, 2 * part))]
        limited = _LIMITED_ALONE.get(limit or 0, ())
        found += [make_cell(ALONE, (name,), limit) for name in limited if name in names]
    if mode == MPS:
        # Once more at the end: what was measured while the host was slow stands beside it.
        found += [cell for cell in found if cell.label == SAME and cell.members[0].limit]
        found += [cell for cell in found if cell.label == "pair"][:_REPEATED_PAIRS]
    return found


def _label(members: Sequence[str]) -> str:
    return {2: "pair", 3: "triple"}.get(len(members), f"pack{len(members)}")


def _choose_same(names: Sequence[str], mode: str, limit: int | None) -> list[Cell]:
    return [
        make_cell(SAME, (name,) * degree, limit)
        for name, degrees in _SAME.items()
        if name in names
        for degree, limits in degrees.items()
        if (limit or 0) in limits and (mode == MPS or not limit)
    ]


def _fill(
    cells: Iterable[Cell], needs: Mapping[str, Need], usable_mb: float
) -> list[tuple[Cell, ...]]:
    """Put each cell into the first group that has room for the processes that it still lacks."""
    bins: list[tuple[list[Cell], dict[Member, int]]] = []
    for cell in cells:
        for held, copies in bins:
            grown = _add_copies(copies, (cell,))
            if _fits(grown, needs, usable_mb):
                held.append(cell)
                copies.update(grown)
                break
        else:
            copies = _add_copies({}, (cell,))
            # One that fits nowhere is not measured.
            if _fits(copies, needs, usable_mb):
                bins.append(([cell], copies))
    return [tuple(held) for held, _ in bins]


def _add_copies(copies: Mapping[Member, int], cells: Iterable[Cell]) -> dict[Member, int]:
    grown = dict(copies)
    for cell in cells:
        for member, count in Counter(cell.members).items():
            grown[member] = max(grown.get(member, 0), count)
    return grown


def compute_gpu_memory_mb(copies: Mapping[Member, int], needs: Mapping[str, Need]) -> float:
    """What some processes take, their contexts included."""
    return sum(
        count * (needs[member.workload].gpu_memory_mb + CONTEXT_MB)
        for member, count in copies.items()
    )


def _fits(copies: Mapping[Member, int], needs: Mapping[str, Need], usable_mb: float) -> bool:
    taken_mb = compute_gpu_memory_mb(copies, needs)
    return sum(copies.values()) <= MOST_WORKERS and taken_mb <= usable_mb


def _place_alone(cells: Sequence[Cell], *, twice: bool) -> tuple[Cell, ...]:
    """Trainings alone at the beginning of a group, or at its end, too."""
    alone = [cell for cell in cells if _is_reference(cell)]
    shared = [cell for cell in cells if not _is_reference(cell)]
    return (*alone, *shared, *(alone if twice and shared else ()))


def _is_reference(cell: Cell) -> bool:
    return cell.label == ALONE and cell.members[0].limit is None


def shorten(groups: Iterable[Group], settle_s: float, window_s: float) -> tuple[Group, ...]:
    """The same cells with other times, for trainings that need none to settle."""
    return tuple(
        replace(
            group,
            cells=tuple(replace(c, settle_s=settle_s, window_s=window_s) for c in group.cells),
        )
        for group in groups
    )
