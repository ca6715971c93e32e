"""A cheap division of many jobs into packs: greedy merging, then improving pack by pack."""

from __future__ import annotations

import random

from slurm_colloc.model.plan import MPS_CLIENTS_MAX
from slurm_colloc.planning.predict.pack_costs import GAIN_MIN, Costs
from slurm_colloc.planning.predict.pack_pricing import Key, Pricing
from slurm_colloc.planning.search.exact_search import Partition, assign
from slurm_colloc.planning.search.exact_search import divide as divide_exactly
from slurm_colloc.planning.search.member_exchange import improve
from slurm_colloc.planning.search.pack_dissolving import dissolve
from slurm_colloc.planning.search.pack_merging import merge

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
    fewer = dissolve(costs, found)
    if len(fewer) < len(found):
        found = improve(costs, fewer)
    if len(rest) <= _WINDOWED_MAX:
        for members_max, windows_max in _WINDOWS:
            found = _solve_windows(costs, found, members_max, windows_max)
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
