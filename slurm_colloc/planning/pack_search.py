"""csub's own search for packs: exact for few jobs or few kinds of them, local for many.

Also: the cheapest division of few jobs into packs, found exactly; a cheap division of many jobs
into packs: greedy merging, then moving and swapping members.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from slurm_colloc.model.plan import MPS_CLIENTS_MAX
from slurm_colloc.planning.pack_pricing import GAIN_MIN, RATINGS_MAX, Costs, Key, Pricing

# ---- The cheapest division of few jobs into packs, found exactly ---------------------------------

SUBJECTS_MAX = 16
"""How many jobs are divided exactly; the time grows threefold with each further one."""

_STATES_MAX = 128
"""Multisets up to which each is priced on its own: then loading numpy would take longer."""

_ALIKE_MAX, _ALIKE_STATES_MAX = 128, 512
"""More jobs are divided exactly, too, where they are of so few kinds that multisets are few."""

Partition = tuple[tuple[int, ...], ...]


def partition_exactly(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of least total cost.

    Args:
        pricing: Prices of packs, of subjects as is_small has them.

    Returns:
        Positions in `pricing.subjects`, ascending in kind within a pack. The packs are in the
        order of their kinds. It does not depend on the order of the subjects, as far as they
        differ.
    """
    key = tuple(sorted(pricing.kind_of))
    return assign(pricing, divide_exactly(pricing, key))


def is_small(key: Key) -> bool:
    """Whether members, given by their kinds, are divided exactly within a second."""
    return len(key) <= SUBJECTS_MAX or (
        len(key) <= _ALIKE_MAX and _count_states(key) <= _ALIKE_STATES_MAX
    )


def _count_states(key: Key) -> int:
    """How many multisets of members there are."""
    return math.prod(count + 1 for count in Counter(key).values())


def divide_exactly(pricing: Pricing, key: Key) -> list[Key]:
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
    from slurm_colloc.planning.subset_costs import (
        compute_subset_costs,
        find_cheapest_partition,
    )

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


# ----
# A cheap division of many jobs into packs: greedy merging, then moving and swapping members.


def partition_locally(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of small total cost.

    Args:
        pricing: Prices of packs, of any number of subjects.

    Returns:
        As exact_search.partition does.
    """
    return assign(pricing, divide_locally(pricing, tuple(sorted(pricing.kind_of))))


def divide_locally(pricing: Pricing, key: Key) -> list[Key]:
    """Divide members, given by their kinds, into packs of small total cost."""
    alone = [kind for kind in key if pricing.kinds[kind].load is None]
    rest = tuple(kind for kind in key if pricing.kinds[kind].load is not None)
    packs: list[Key] = [(kind,) for kind in alone]
    if not pricing.families:
        return [*packs, *((kind,) for kind in rest)]
    if len(set(rest)) <= 1:
        return packs + _divide_alike(pricing, rest)
    costs = Costs(pricing)
    found = improve(costs, merge(costs, rest))
    costs.remember(found)
    for pack in found:
        # What was legal by a hair in single precision may not be.
        is_legal = pricing.price_key(pack) is not None
        packs += [pack] if is_legal else [(kind,) for kind in pack]
    return packs


def _divide_alike(pricing: Pricing, key: Key) -> list[Key]:
    """Members of one kind: exact, over the number of members in a pack."""
    if not key:
        return []
    largest = min(len(key), pricing.limits.members or MPS_CLIENTS_MAX)
    costs = {}
    for size in range(1, largest + 1):
        priced = pricing.price_key(key[:size])
        if priced is not None:
            costs[size] = priced.cost
    best = [0.0]
    sizes = [0]
    for count in range(1, len(key) + 1):
        cost, size = min((best[count - s] + cost, s) for s, cost in costs.items() if s <= count)
        best.append(cost)
        sizes.append(size)
    packs = []
    count = len(key)
    while count:
        packs.append(key[: sizes[count]])
        count -= sizes[count]
    return packs


_ALL_PAIRS_MAX = 96
"""So many different packs are tried pairwise; of more, each with neighbours in length."""
_SMALL = 6
"""Packs of so many members on average are small."""
_MERGED_AT_ONCE = {True: 4, False: 3}
"""One pack in so many is merged before those left are looked at again, by whether they are
small."""


def merge(costs: Costs, key: Key) -> list[Key]:
    """Merge packs while that makes them cheaper, the best mergers first.

    Equal packs are merged together. A merger is the better the larger a part it saves of what
    its packs cost.
    """
    counts: Counter[Key] = Counter((kind,) for kind in key)
    gains: dict[tuple[Key, Key], float] = {}
    round_number = 0
    while True:
        packs = sorted(counts, key=lambda pack: (costs.measure_length_s(pack), pack))
        pairs = _list_pairs(packs, counts, round_number)
        new = [pair for pair in pairs if pair not in gains]
        merged = costs.look_up([tuple(sorted(a + b)) for a, b in new])
        own = dict(zip(packs, costs.look_up(packs), strict=True))
        for (a, b), cost in zip(new, merged, strict=True):
            apart = own[a] + own[b]
            # Where an idle GPU draws nothing, energy may be nothing, too.
            gains[a, b] = (apart - cost) / apart if apart else 0.0
        good = sorted((-gains[pair], pair) for pair in pairs if gains[pair] > GAIN_MIN)
        # The few mergers that are left to find among many packs are found by moving members.
        if len(good) <= (len(packs) // 100 if len(packs) > _ALL_PAIRS_MAX else 0):
            return [pack for pack in sorted(counts) for _ in range(counts[pack])]
        enough = max(1, len(packs) // _MERGED_AT_ONCE[_are_small(packs)])
        _merge_best(counts, [pair for _, pair in good], enough)
        gains = {
            pair: gain for pair, gain in gains.items() if pair[0] in counts and pair[1] in counts
        }
        round_number += 1


def _list_pairs(
    packs: Sequence[Key], counts: Counter[Key], round_number: int
) -> list[tuple[Key, Key]]:
    """Pairs of packs, ordered by length, that are worth a try."""
    if len(packs) <= _ALL_PAIRS_MAX:
        return [
            (a, b)
            for place, a in enumerate(packs)
            for b in packs[place:]
            if a != b or counts[a] > 1
        ]
    pairs = [(a, a) for a in packs if counts[a] > 1]
    offsets = (1, 2, 3, 4 + round_number % 13)
    for offset in offsets if _are_small(packs) else offsets[::2]:
        pairs += zip(packs, packs[offset:], strict=False)
    return pairs


def _are_small(packs: Sequence[Key]) -> bool:
    """Whether packs are small; large ones are dear to price, and many of them go together."""
    return sum(map(len, packs)) <= _SMALL * len(packs)


def _merge_best(counts: Counter[Key], pairs: Sequence[tuple[Key, Key]], enough: int) -> None:
    done = 0
    used: set[Key] = set()
    for a, b in pairs:
        if done >= enough:
            break
        if a in used or b in used:
            continue
        times = counts[a] // 2 if a == b else min(counts[a], counts[b])
        used |= {a, b}
        done += 1
        for pack in (a, b):
            counts[pack] -= times
        counts[tuple(sorted(a + b))] += times
    for pack in used:
        if not counts[pack]:
            del counts[pack]


_OFFSETS = (1, 2, 3, 5, 8, 13)
"""How far apart, in the order of length, two packs are that are tried together."""

_EFFORT = 4_500_000
_EFFORT_LEFT_MIN = 100_000
_EFFORT_MIN = 1_000_000
_EFFORT_PER_SUBJECT = 200
"""Members that may be rated, in packs tried: in all; for improving, whatever merging took; and for
improving in the first place. A second has one to two million."""
_EFFORT_AT_ONCE = 100_000
_TRIED = 8
"""Members of a pack that are tried elsewhere, at most, evenly chosen."""


def improve(costs: Costs, packs: list[Key]) -> list[Key]:
    """Move and swap members between two packs at a time while that makes them cheaper."""
    members = sum(map(len, packs))
    effort = min(
        _EFFORT_MIN + _EFFORT_PER_SUBJECT * members,
        max(_EFFORT_LEFT_MIN, _EFFORT - costs.effort),
    )
    most = costs.effort + effort
    settled: set[tuple[Key, Key]] = set()
    quiet = 0
    round_number = 0
    while quiet < len(_OFFSETS) and costs.effort < most and len(packs) > 1:
        packs.sort(key=lambda pack: (costs.measure_length_s(pack), pack))
        offset = _OFFSETS[round_number % len(_OFFSETS)]
        start = round_number // len(_OFFSETS) % 2
        round_number += 1
        couples = [
            (i, j)
            for i, j in _couple(len(packs), offset, start)
            if (packs[i], packs[j]) not in settled
        ]
        changed = False
        while couples and costs.effort < most:
            batch = _take_batch(packs, couples)
            couples = couples[len(batch) :]
            changed |= _improve_couples(costs, packs, batch, settled)
        packs = [pack for pack in packs if pack]
        quiet = 0 if changed else quiet + 1
    return packs


def _take_batch(
    packs: Sequence[Key], couples: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, int]]:
    """As many couples as can be tried with a certain effort, at least one."""
    effort = 0
    for number, (i, j) in enumerate(couples):
        a, b = min(len(packs[i]), _TRIED), min(len(packs[j]), _TRIED)
        larger = max(len(packs[i]), len(packs[j]))
        effort += 2 * (a * b + a + b) * larger * min(larger, RATINGS_MAX)
        if effort > _EFFORT_AT_ONCE:
            return couples[: number + 1]
    return couples


def _improve_couples(
    costs: Costs,
    packs: list[Key],
    couples: Sequence[tuple[int, int]],
    settled: set[tuple[Key, Key]],
) -> bool:
    """Divide packs anew, two and two, where that makes them cheaper; whether it did.

    Couples for which nothing better was found are noted as settled.
    """
    alike = {(packs[i], packs[j]): None for i, j in couples}
    splits = {couple: _list_splits(*couple) for couple in alike}
    before = costs.look_up([pack for couple in alike for pack in couple])
    tried = iter(costs.look_up([pack for of in splits.values() for split in of for pack in split]))
    better = {}
    for number, (couple, of) in enumerate(splits.items()):
        totals = [(next(tried) + next(tried), split) for split in of]
        best, split = min(totals, default=(math.inf, couple))
        if best < (before[2 * number] + before[2 * number + 1]) * (1 - GAIN_MIN):
            better[couple] = split
        else:
            settled.add(couple)
    for i, j in couples:
        packs[i], packs[j] = better.get((packs[i], packs[j]), (packs[i], packs[j]))
    return bool(better)


def _couple(count: int, offset: int, start: int) -> list[tuple[int, int]]:
    """Disjoint pairs of places that are `offset` apart."""
    couples = []
    taken: set[int] = set()
    for place in range(start, count - offset):
        if place not in taken and place + offset not in taken:
            couples.append((place, place + offset))
            taken |= {place, place + offset}
    return couples


def _list_splits(a: Key, b: Key) -> list[tuple[Key, Key]]:
    """Other divisions of two packs: one member moved, or two swapped."""
    splits = set()
    from_a, from_b = _choose(a), _choose(b)
    for kind in from_a:
        less = _without(a, kind)
        splits.add((less, tuple(sorted((*b, kind)))))
        for other in from_b:
            if other != kind:
                swapped = tuple(sorted((*_without(b, other), kind)))
                splits.add((tuple(sorted((*less, other))), swapped))
    for kind in from_b:
        splits.add((tuple(sorted((*a, kind))), _without(b, kind)))
    return sorted(splits)


def _choose(pack: Key) -> list[int]:
    """Kinds of a pack, evenly over all, that are tried elsewhere."""
    kinds = sorted(set(pack))
    count = min(_TRIED, len(kinds))
    return [kinds[i * len(kinds) // count] for i in range(count)]


def _without(pack: Key, kind: int) -> Key:
    place = pack.index(kind)
    return pack[:place] + pack[place + 1 :]


# ---- csub's own search for packs: exact for few jobs or few kinds of them, local for many --------


def partition(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of least total cost, or little more where they are many.

    Returns:
        Positions in `pricing.subjects`; each is in exactly one pack. It does not depend on the
        order of the subjects, as far as they differ.
    """
    if is_small(tuple(sorted(pricing.kind_of))):
        return partition_exactly(pricing)
    return partition_locally(pricing)
