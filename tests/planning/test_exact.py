"""The exact division: held against all partitions there are, and against greedy merging."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning import pack_search
from slurm_colloc.planning.hard_limits import Limits, Subject
from slurm_colloc.planning.pack_pricing import Costs, Pricing
from slurm_colloc.planning.subset_costs import find_cheapest_partition
from tests.planning.coefficients import CALIBRATION
from tests.planning.subjects import (
    add_up,
    add_up_keys,
    check_order_does_not_matter,
    goals,
    limits,
    make_pricing,
    make_subjects,
    modes,
    subjects,
)


def list_partitions(members: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to divide members into packs."""
    if not members:
        yield []
        return
    first, rest = members[0], members[1:]
    for packs in list_partitions(rest):
        yield [[first], *packs]
        for place in range(len(packs)):
            yield [*packs[:place], [first, *packs[place]], *packs[place + 1 :]]


def find_least_cost(pricing: Pricing) -> float:
    best = math.inf
    for packs in list_partitions(range(len(pricing.subjects))):
        priced = [pricing.price(pack) for pack in packs]
        best = min(best, sum(math.inf if one is None else one.cost for one in priced))
    return best


some_subjects = st.lists(subjects(), min_size=1, max_size=5).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds), min_size=1, max_size=7)
)


@settings(max_examples=60, deadline=None)
@given(some_subjects, limits, goals, modes)
def test_no_partition_is_cheaper(
    chosen: list[Subject], limit: Limits, goal: Goal, of_modes: list[SharingMode]
) -> None:
    pricing = Pricing(chosen, limit, CALIBRATION, goal=goal, modes=of_modes)
    least = find_least_cost(pricing)
    packs = pack_search.partition_exactly(pricing)
    assert sorted(i for pack in packs for i in pack) == list(range(len(chosen)))
    assert add_up(pricing, packs) == pytest.approx(least, rel=1e-9)
    key = tuple(sorted(pricing.kind_of))
    for divide in (pack_search.divide_by_kinds, pack_search.divide_by_subsets):
        assert add_up_keys(pricing, divide(pricing, key)) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_of_seven_different_jobs_is_cheaper(seed: int) -> None:
    pricing = make_pricing(make_subjects(7, seed))
    packs = pack_search.partition_exactly(pricing)
    assert any(len(pack) > 1 for pack in packs)
    assert add_up(pricing, packs) == pytest.approx(find_least_cost(pricing), rel=1e-5)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6), goals)
def test_it_is_never_worse_than_greedy_merging(count: int, seed: int, goal: Goal) -> None:
    pricing = make_pricing(make_subjects(count, seed), goal=goal)
    key = tuple(sorted(pricing.kind_of))
    best = add_up_keys(pricing, pack_search.divide_exactly(pricing, key))
    merged = pack_search.merge(Costs(pricing), key)
    for packs in (merged, pack_search.divide_locally(pricing, key)):
        assert best <= add_up_keys(pricing, packs) * (1 + 1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(subjects(), min_size=2, max_size=9), limits, st.randoms(use_true_random=False))
def test_the_order_of_the_subjects_does_not_matter(
    chosen: list[Subject], limit: Limits, chance: random.Random
) -> None:
    check_order_does_not_matter(chosen, limit, chance)


def test_equal_jobs_are_taken_in_their_order() -> None:
    pricing = make_pricing(make_subjects(6, kinds=1))
    packs = pack_search.partition_exactly(pricing)
    assert [i for pack in packs for i in pack] == list(range(6))


def test_sixteen_different_jobs_that_all_go_together_are_one_pack() -> None:
    light = [
        Subject(i, 1, None, 100, 1000.0 + i, make_light(i), 9.0, 0.0, kind=i) for i in range(16)
    ]
    assert pack_search.partition(make_pricing(light)) == (tuple(range(16)),)


def make_light(number: int) -> Load:
    return Load(0.02, 0.01 + number * 1e-5, 0.005)


def test_a_pack_that_is_refused_at_last_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pricing = make_pricing(make_subjects(8, seed=1))
    key = tuple(sorted(pricing.kind_of))
    first = pack_search.divide_by_subsets(pricing, key)
    largest = max(first, key=len)
    price = pricing.price_key
    monkeypatch.setattr(pricing, "price_key", lambda pack: None if pack == largest else price(pack))
    second = pack_search.divide_by_subsets(pricing, key)
    assert largest not in second
    assert sorted(kind for pack in second for kind in pack) == list(key)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6))
def test_the_cheapest_partition_of_any_costs_is_found(count: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    costs = np.where(chance.random(1 << count) < 0.3, np.inf, chance.random(1 << count))
    costs[1 << np.arange(count)] = chance.random(count)
    costs[0] = 0.0
    found = find_cheapest_partition(costs)
    assert sum(found) == (1 << count) - 1
    least = min(
        sum(costs[sum(1 << i for i in pack)] for pack in packs)
        for packs in list_partitions(range(count))
    )
    assert sum(costs[subset] for subset in found) == pytest.approx(least, rel=1e-5)
