"""The cheapest division of few jobs into packs, found exactly."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from slurm_colloc.model.plan import MPS_CLIENTS_MAX
from slurm_colloc.planning.predict.pack_pricing import Key, Pricing

SUBJECTS_MAX = 16
"""How many jobs are divided exactly; the time grows threefold with each further one."""

_STATES_MAX = 128
"""Multisets up to which each is priced on its own: then loading numpy would take longer."""

_ALIKE_MAX, _ALIKE_STATES_MAX = 128, 512
"""More jobs are divided exactly, too, where they are of so few kinds that multisets are few."""

Partition = tuple[tuple[int, ...], ...]


def partition(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of least total cost.

    Args:
        pricing: Prices of packs, of subjects as is_small has them.

    Returns:
        Positions in `pricing.subjects`, ascending in kind within a pack. The packs are in the
        order of their kinds. It does not depend on the order of the subjects, as far as they
        differ.
    """
    key = tuple(sorted(pricing.kind_of))
    return assign(pricing, divide(pricing, key))


def is_small(key: Key) -> bool:
    """Whether members, given by their kinds, are divided exactly within a second."""
    return len(key) <= SUBJECTS_MAX or (
        len(key) <= _ALIKE_MAX and _count_states(key) <= _ALIKE_STATES_MAX
    )


def _count_states(key: Key) -> int:
    """How many multisets of members there are."""
    return math.prod(count + 1 for count in Counter(key).values())


def divide(pricing: Pricing, key: Key) -> list[Key]:
    """Divide members, given by their kinds, into packs of least total cost.

    Args:
        pricing: Prices of packs.
        key: The members, as is_small has them.
    """
    if len(key) > SUBJECTS_MAX or _count_states(key) <= _STATES_MAX:
        return divide_by_kinds(pricing, key)
    return divide_by_subsets(pricing, key)


def assign(pricing: Pricing, packs: list[Key]) -> Partition:
    """Give each place in packs of kinds to a subject of that kind, the first first."""
    by_kind: dict[int, list[int]] = {}
    for position, kind in enumerate(pricing.kind_of):
        by_kind.setdefault(kind, []).append(position)
    waiting = {kind: iter(positions) for kind, positions in by_kind.items()}
    return tuple(tuple(next(waiting[kind]) for kind in pack) for pack in sorted(packs))


def divide_by_kinds(pricing: Pricing, key: Key) -> list[Key]:
    """The same by multisets of kinds, each priced on its own: for few kinds."""
    kinds = sorted(set(key))
    largest = pricing.limits.members or MPS_CLIENTS_MAX
    start = tuple(key.count(kind) for kind in kinds)
    best: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}

    def solve(counts: tuple[int, ...]) -> float:
        if not any(counts):
            return 0.0
        if counts not in best:
            first = next(i for i, count in enumerate(counts) if count)
            choices = [range(count + 1) for count in counts]
            choices[first] = range(1, counts[first] + 1)
            found: tuple[float, tuple[int, ...]] = (math.inf, counts)
            for taken in itertools.product(*choices):
                if sum(taken) > largest:
                    continue
                pack = tuple(kind for kind, of in zip(kinds, taken, strict=True) for _ in range(of))
                priced = pricing.price_key(pack)
                if priced is not None:
                    rest = tuple(a - b for a, b in zip(counts, taken, strict=True))
                    found = min(found, (priced.cost + solve(rest), taken))
            best[counts] = found
        return best[counts][0]

    packs = []
    counts = start
    while any(counts):
        solve(counts)
        taken = best[counts][1]
        packs.append(tuple(k for k, of in zip(kinds, taken, strict=True) for _ in range(of)))
        counts = tuple(a - b for a, b in zip(counts, taken, strict=True))
    return packs


def divide_by_subsets(pricing: Pricing, key: Key) -> list[Key]:
    """The same by subsets of single members, all priced at once with numpy."""
    from slurm_colloc.planning.search.subset_costs import compute_subset_costs
    from slurm_colloc.planning.search.subset_partition import find_cheapest_partition

    costs = compute_subset_costs(pricing, key)
    while True:
        subsets = find_cheapest_partition(costs)
        packs = [
            tuple(kind for place, kind in enumerate(key) if subset >> place & 1)
            for subset in subsets
        ]
        # What was legal by a hair in single precision may not be.
        refused = [
            subset
            for subset, pack in zip(subsets, packs, strict=True)
            if pricing.price_key(pack) is None
        ]
        if not refused:
            return packs
        costs[refused] = math.inf
