"""Improving packs by moving and exchanging members, two packs at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_colloc.planning.predict.pack_costs import GAIN_MIN, RATINGS_MAX, Costs
from slurm_colloc.planning.predict.pack_pricing import Key

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
    """Move and exchange members between two packs at a time while that makes them cheaper."""
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
    """Other divisions of two packs: one member moved, or two exchanged."""
    splits = set()
    from_a, from_b = _choose(a), _choose(b)
    for kind in from_a:
        less = _without(a, kind)
        splits.add((less, tuple(sorted((*b, kind)))))
        for other in from_b:
            if other != kind:
                exchanged = tuple(sorted((*_without(b, other), kind)))
                splits.add((tuple(sorted((*less, other))), exchanged))
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
