"""Which trainings are measured together, in which mode and with which thread limits; pure.

A group gets as many cells as MPS and the GPU's memory have room for, and there are as many groups
as the time allows.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc_lab.calibration.cells import (
    ALONE,
    FIRST_START_S,
    MPS,
    SAME,
    TIMESLICE,
    Cell,
    CellTraining,
    Group,
    add_copies,
    make_cell,
)
from slurm_colloc_lab.calibration.workloads import Room, WorkloadNeed, choose_names, fits

# How many of each size; what is drawn first is in all modes and limits.
_COUNTS = {2: 30, 3: 15, 4: 8, 7: 6, 12: 2}
_FEWEST = 0.1
# Of packs of these sizes every second is of light trainings, up to two of a kind, as plans make
# them: next to one that fills the GPU the others of a large pack nearly stand still.
_OF_LIGHT = (4, 7)
# After so many sets in a row that were drawn before, there are taken to be no others.
_IN_VAIN_MAX = 100
# Mode, limit, and the share of the pairs, triples, fours, sevens and twelves that it measures. The
# most valuable first: what is planned most often, then what it is compared with.
_ARMS: tuple[tuple[str, int | None, Mapping[int, float]], ...] = (
    (MPS, None, {2: 1.0, 3: 1.0, 4: 1.0, 7: 1.0, 12: 1.0}),
    (MPS, 50, {2: 1.0, 4: 1.0}),
    (MPS, 66, {3: 1.0}),
    (MPS, 28, {7: 1.0}),
    (MPS, 16, {12: 1.0}),
    (MPS, 33, {3: 0.6, 7: 0.5}),
    (MPS, 12, {}),
    (TIMESLICE, None, {2: 0.6, 3: 0.5, 4: 0.6, 7: 0.5}),
)
# Copies of one training: degrees, and for each the limits at which they are measured; 0 stands for
# no limit, which time slicing has too.
_SAME: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "small": {4: (0, 50), 7: (0, 28), 12: (0, 16), 16: (12,)},
    "medium": {3: (0, 66), 4: (0, 50), 6: (0, 33)},
    "large": {2: (0, 50), 3: (0, 66, 33)},
    # Only its copies ask for more of PCIe than there is.
    "feed": {2: (0, 50), 3: (0, 66), 4: (50,)},
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


def choose_design(
    needs: Mapping[str, WorkloadNeed], room: Room, *, seed: int = 1, minutes: float = 8.0
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
    needs: Mapping[str, WorkloadNeed],
) -> tuple[tuple[str, ...], ...]:
    """Different sets of members; who has been drawn least often comes first."""
    drawn: list[tuple[str, ...]] = []
    used: Counter[str] = Counter()
    in_vain = 0
    light = 2 * [name for name in names if needs[name].light]
    while names and size <= cores and len(drawn) < count and in_vain < _IN_VAIN_MAX:
        of_light = size in _OF_LIGHT and len(drawn) % 2 == 0 and len(light) >= size
        # Few light ones make few sets.
        of_light = of_light and in_vain < _IN_VAIN_MAX // 2
        # What was drawn already is drawn again where only few come into question: so the longer
        # nothing new is found, the less it counts who has been drawn.
        order = sorted(
            light if of_light else names,
            key=lambda name: used[name] + (0.5 + in_vain) * chance.random(),
        )
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
    needs: Mapping[str, WorkloadNeed],
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


def _is_too_large(member: CellTraining, needs: Mapping[str, WorkloadNeed], room: Room) -> bool:
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
        # Once more at the end: what was measured while the host was slow is kept, too.
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
    cells: Iterable[Cell], needs: Mapping[str, WorkloadNeed], usable_mb: float
) -> list[tuple[Cell, ...]]:
    """Put each cell into the first group that has room for the processes that it still lacks."""
    bins: list[tuple[list[Cell], dict[CellTraining, int]]] = []
    for cell in cells:
        for held, copies in bins:
            grown = add_copies(copies, (cell,))
            if fits(grown, needs, usable_mb):
                held.append(cell)
                copies.update(grown)
                break
        else:
            copies = add_copies({}, (cell,))
            # One that fits nowhere is not measured.
            if fits(copies, needs, usable_mb):
                bins.append(([cell], copies))
    return [tuple(held) for held, _ in bins]


def _place_alone(cells: Sequence[Cell], *, twice: bool) -> tuple[Cell, ...]:
    """Trainings alone at the beginning of a group, or at its end, too."""
    alone = [cell for cell in cells if _is_reference(cell)]
    shared = [cell for cell in cells if not _is_reference(cell)]
    return (*alone, *shared, *(alone if twice and shared else ()))


def _is_reference(cell: Cell) -> bool:
    return cell.label == ALONE and cell.members[0].limit is None
