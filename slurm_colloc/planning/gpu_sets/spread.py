"""How many GPU sets jobs are spread over, and which sets are on one node; pure arithmetic."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Demand:
    """Jobs that need equally many GPUs.

    Attributes:
        jobs: How many there are.
        degree: How many of them share a GPU set, on average.
    """

    jobs: int
    degree: float


@dataclasses.dataclass(frozen=True)
class Spread:
    """Over how much jobs are spread.

    Attributes:
        nodes: Nodes of Slurm jobs, each of which has one unless more were asked for.
        sets: GPU sets over all of them, by the GPUs of one.
    """

    nodes: int
    sets: Mapping[int, int]


def choose_spread(
    demands: Mapping[int, Demand],
    gpus_per_pack: int,
    *,
    least_nodes: int = 1,
    most_nodes: int | None = None,
    waits: bool = True,
) -> Spread:
    """How many nodes and GPU sets there are to be.

    As many nodes as the places come nearest to: rather some members wait than that a second one
    is half empty. In them the GPUs go to those of whom most would share one.

    Args:
        demands: The jobs, by the GPUs of one; none needs more than a pack has on a node.
        gpus_per_pack: GPUs of a Slurm job on each of its nodes.
        least_nodes: Nodes at least.
        most_nodes: Nodes at most, unless there are to be more at least; None for any number.
        waits: Members may wait; otherwise there are places for all.
    """
    wanted = sum(gpus * demand.jobs / demand.degree for gpus, demand in demands.items())
    nearest = math.floor(wanted / gpus_per_pack + 0.5)
    nearest = nearest if most_nodes is None else min(nearest, most_nodes)
    nodes = max(1, least_nodes, nearest if waits else math.ceil(wanted / gpus_per_pack))
    while True:
        targets = _share_out(demands, nodes * gpus_per_pack)
        placed = _count_placed(targets, gpus_per_pack, nodes)
        if all(placed.get(gpus) for gpus in demands):
            return Spread(nodes, placed)
        nodes += 1


def _share_out(demands: Mapping[int, Demand], gpus: int) -> dict[int, int]:
    """How many sets of each kind GPUs are enough for: one of each, then where most would share."""
    sets = dict.fromkeys(demands, 1)
    left = gpus - sum(demands)
    # The most members to a set first; of equally many the larger set.
    queue = [(float(-demand.jobs), -size) for size, demand in demands.items()]
    heapq.heapify(queue)
    while queue:
        _, negative = heapq.heappop(queue)
        size = -negative
        if size > left or sets[size] >= demands[size].jobs:
            continue
        sets[size] += 1
        left -= size
        heapq.heappush(queue, (-demands[size].jobs / sets[size], negative))
    return sets


def _count_placed(sets: Mapping[int, int], gpus_per_pack: int, nodes: int) -> dict[int, int]:
    """How many of the sets find room on so many nodes; the largest first."""
    sizes = [size for size in sorted(sets, reverse=True) for _ in range(sets[size])]
    placed: dict[int, int] = {}
    for size, _ in _place(sizes, gpus_per_pack, nodes):
        placed[size] = placed.get(size, 0) + 1
    return placed


def _place(sizes: Sequence[int], gpus_per_pack: int, nodes: int) -> list[tuple[int, int]]:
    """Sets, each with the node that has most GPUs left; without those that fit on none."""
    free = [(-gpus_per_pack, number) for number in range(nodes)]
    placed = []
    for size in sizes:
        left, number = free[0]
        if -left < size:
            continue
        heapq.heapreplace(free, (left + size, number))
        placed.append((size, number))
    return placed


def place_sets(sizes: Sequence[int], gpus_per_pack: int, nodes: int) -> list[int]:
    """Which node each GPU set is on.

    Sets that follow each other come onto one node where their sizes allow it; all nodes have about
    equally many.

    Args:
        sizes: The GPUs of each set, none more than a node has.
        gpus_per_pack: GPUs of a Slurm job on each of its nodes.
        nodes: Nodes at least; there are more where the sets need them.
    """
    ordered = sorted(sizes, reverse=True)
    placed = _place(ordered, gpus_per_pack, nodes)
    while len(placed) < len(sizes):
        nodes += 1
        placed = _place(ordered, gpus_per_pack, nodes)
    room: dict[int, list[int]] = {}
    for size, number in placed:
        room.setdefault(size, []).append(number)
    for numbers in room.values():
        numbers.sort(reverse=True)
    return [room[size].pop() for size in sizes]


def deal(loads: Sequence[int], sets: int, slurm_jobs: int) -> list[list[int]]:
    """Deal jobs out to GPU sets in turn, so that the first ones begin first.

    Those of the first Slurm job get the first jobs, since the others may begin later.

    Args:
        loads: The GPUs of each job.
        sets: How many GPU sets, at most as many as jobs.
        slurm_jobs: Over how many Slurm jobs, as `place_sets` places them; at most as many as sets.

    Returns:
        For each set the places of its jobs among `loads`.
    """
    hands: list[list[int]] = [[] for _ in range(sets)]
    if len(set(loads)) > 1:
        least_full = [(0, place) for place in range(sets)]
        for at, load in enumerate(loads):
            full, place = least_full[0]
            hands[place].append(at)
            heapq.heapreplace(least_full, (full + load, place))
        return hands
    least, more = divmod(len(loads), sets)
    first = at = 0
    for number in range(slurm_jobs):
        own = sets // slurm_jobs + (number < sets % slurm_jobs)
        count = least * own + max(0, min(more - first, own))
        for place in range(count):
            hands[first + place % own].append(at + place)
        first, at = first + own, at + count
    return hands
