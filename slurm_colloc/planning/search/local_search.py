"""A cheap division of many jobs into packs: greedy merging, then improving pack by pack."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from slurm_colloc.model.plan import MPS_CLIENTS_MAX
from slurm_colloc.planning.predict.pack_costs import GAIN_MIN, Costs
from slurm_colloc.planning.predict.pack_pricing import Key, Pricing
from slurm_colloc.planning.search.exact_search import Partition, assign
from slurm_colloc.planning.search.exact_search import divide as divide_exactly
from slurm_colloc.planning.search.member_exchange import improve
from slurm_colloc.planning.search.pack_dissolving import dissolve

_WINDOWS = ((13, 24), (16, 3))
_WINDOWED_MAX = 400
_QUIET_ROUNDS = 8
"""Members of a window at most, and how many windows; of how many subjects windows are made; and
rounds through all packs in which nothing better was found."""


def partition(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of small total cost.

    Args:
        pricing: Prices of packs, of any number of subjects.

    Returns:
        As exact.partition does.
    """
    return assign(pricing, divide(pricing, tuple(sorted(pricing.kind_of))))


def divide(pricing: Pricing, key: Key) -> list[Key]:
    """Divide members, given by their kinds, into packs of small total cost."""
    alone = [kind for kind in key if pricing.kinds[kind].load is None]
    rest = tuple(kind for kind in key if pricing.kinds[kind].load is not None)
    packs: list[Key] = [(kind,) for kind in alone]
    if not pricing.families:
        return [*packs, *((kind,) for kind in rest)]
    if len(set(rest)) <= 1:
        return packs + _divide_alike(pricing, rest)
    costs = Costs(pricing)
    found = merge(costs, rest)
    found = improve(costs, found)
    costs.remember(found)
    for pack in found:
        # What was legal by a hair in single precision may not be.
        is_legal = pricing.price_key(pack) is not None
        packs += [pack] if is_legal else [(kind,) for kind in pack]
    return packs


def divide_greedily(pricing: Pricing, key: Key) -> list[Key]:
    """Divide members of known load by merging packs alone, the best merger first."""
    return merge(Costs(pricing), key)


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


def _solve_windows(costs: Costs, packs: list[Key], members_max: int, windows_max: int) -> list[Key]:
    """Divide the members of a few packs anew, exactly, again and again.

    Improving two packs at a time ends where no two have anything better to offer; several at once
    mostly have: those of similar length, and others. Which they are is drawn, and the same for the
    same packs.
    """
    chance = random.Random(0)
    tried: set[tuple[Key, ...]] = set()
    left = windows_max
    quiet = number = 0
    while left and quiet < _QUIET_ROUNDS:
        if number % 2:
            waiting = chance.sample(sorted(packs), len(packs))
        else:
            waiting = sorted(packs, key=lambda pack: (costs.measure_length_s(pack), pack))
            start = chance.randrange(len(waiting)) if number else 0
            waiting = waiting[start:] + waiting[:start]
        number += 1
        quiet += 1
        while left and len(inside := _take_window(waiting, members_max)) > 1:
            window = tuple(sorted(inside))
            if window in tried:
                continue
            tried.add(window)
            left -= 1
            members = tuple(sorted(kind for pack in inside for kind in pack))
            found = divide_exactly(costs.pricing, members)
            if costs.add_up(found) < costs.add_up(inside) * (1 - GAIN_MIN):
                for pack in inside:
                    packs.remove(pack)
                packs += found
                quiet = 0
    return packs


def _take_window(waiting: list[Key], members_max: int) -> list[Key]:
    """Take packs off a list, the first that fit into a window; one alone makes none."""
    inside: list[Key] = []
    members = 0
    for pack in waiting:
        if members + len(pack) <= members_max:
            inside.append(pack)
            members += len(pack)
    for pack in inside:
        waiting.remove(pack)
    return inside


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
