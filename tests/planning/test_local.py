"""The local search: whole, legal, deterministic, and close to the exact division."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning import pack_search
from slurm_colloc.planning.hard_limits import Limits, Subject
from slurm_colloc.planning.pack_pricing import Costs, Pricing
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

pytestmark = pytest.mark.long

many_subjects = st.lists(subjects(), min_size=1, max_size=8).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds), min_size=17, max_size=40)
)


@settings(max_examples=25, deadline=None)
@given(many_subjects, limits, goals, modes)
def test_each_job_is_in_one_legal_pack(
    chosen: list[Subject], limit: Limits, goal: Goal, of_modes: list[SharingMode]
) -> None:
    pricing = Pricing(chosen, limit, CALIBRATION, goal=goal, modes=of_modes)
    packs = pack_search.partition(pricing)
    assert Counter(i for pack in packs for i in pack) == Counter(range(len(chosen)))
    alone = add_up(pricing, [[i] for i in range(len(chosen))])
    assert add_up(pricing, packs) <= alone * (1 + 1e-9)
    for pack in packs:
        assert not pricing.find_broken(pack)


@settings(max_examples=10, deadline=None)
@given(many_subjects, limits, st.randoms(use_true_random=False))
def test_the_order_of_the_subjects_does_not_matter(
    chosen: list[Subject], limit: Limits, chance: random.Random
) -> None:
    check_order_does_not_matter(chosen, limit, chance)


@pytest.mark.parametrize("kinds", [1, 3, None])
def test_it_is_close_to_the_exact_division(kinds: int | None) -> None:
    over = []
    for seed in range(6):
        pricing = make_pricing(make_subjects(14, seed, kinds=kinds))
        best = add_up(pricing, pack_search.partition_exactly(pricing))
        over.append(add_up(pricing, pack_search.partition_locally(pricing)) / best - 1.0)
    assert min(over) >= -1e-5
    assert sum(over) / len(over) <= 0.05


def test_it_improves_on_merging_alone() -> None:
    saved = []
    for seed in range(3):
        pricing = make_pricing(make_subjects(30, seed))
        key = tuple(sorted(pricing.kind_of))
        before = add_up_keys(pricing, pack_search.merge(Costs(pricing), key))
        saved.append(1 - add_up(pricing, pack_search.partition_locally(pricing)) / before)
    assert min(saved) >= -1e-9
    assert max(saved) > 0.01


def test_equal_jobs_are_divided_exactly() -> None:
    count = 23
    pricing = make_pricing(make_subjects(count, kinds=1))
    costs = {}
    for size in range(1, count + 1):
        priced = pricing.price(range(size))
        if priced is not None:
            costs[size] = priced.cost
    best = [0.0]
    for total in range(1, count + 1):
        best.append(min(best[total - size] + costs[size] for size in costs if size <= total))
    assert add_up(pricing, pack_search.partition(pricing)) == pytest.approx(best[count])
    assert max(costs) > 1


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_jobs_of_two_lengths_fill_packs_as_far_as_they_go(seed: int) -> None:
    # Merging alone ends with packs of four, where five go together.
    load = make_subjects(1, seed)[0].load
    lengths = (100.0, 10_000.0)
    chosen = [Subject(i, 1, None, 1000, lengths[i % 2], load, 2.0) for i in range(40)]
    packs = pack_search.partition(Pricing(chosen, Limits(members=5), CALIBRATION))
    assert [len(pack) for pack in packs] == [5] * 8


@pytest.mark.parametrize("seed", range(6))
def test_jobs_of_few_kinds_are_divided_exactly(seed: int) -> None:
    chance = random.Random(seed)
    loads = [subject.load for subject in make_subjects(2, seed)]
    chosen = [
        Subject(i, 1, None, 1000, (1000.0, 5000.0)[i % 2], loads[i % 2], 2.0)
        for i in range(chance.randrange(17, 40))
    ]
    pricing = Pricing(chosen, Limits(members=6), CALIBRATION)
    best = add_up(pricing, pack_search.partition(pricing))
    assert best <= add_up(pricing, pack_search.partition_locally(pricing)) * (1 + 1e-6)


def test_lengths_are_grouped_by_their_cost_alone() -> None:
    # Two lengths of otherwise equal jobs: no pack mixes them where both fill packs.
    alike = make_subjects(1, seed=4)[0]
    short, long = 100.0, 10_000.0
    chosen = [
        Subject(i, 1, None, 1000, (short, long)[i % 2], alike.load, 2.0, 0.0) for i in range(40)
    ]
    pricing = Pricing(chosen, Limits(members=5), CALIBRATION)
    packs = pack_search.partition(pricing)
    assert max(map(len, packs)) > 1
    for pack in packs:
        assert len({chosen[i].run_s for i in pack}) == 1


def test_jobs_of_unknown_load_stay_alone_among_many() -> None:
    known = make_subjects(30, seed=2)
    unknown = [Subject(i, 1, None, 1000, 500.0, None, 2.0) for i in range(10)]
    packs = pack_search.partition(make_pricing([*unknown, *known]))
    assert {pack for pack in packs if set(pack) & set(range(10))} == {(i,) for i in range(10)}
    assert any(len(pack) > 1 for pack in packs)


def test_no_pack_is_larger_than_one_mps_server_takes() -> None:
    pricing = Pricing(make_tiny(60), Limits(), CALIBRATION)
    assert max(map(len, pack_search.partition(pricing))) <= 48
    alike = Pricing(make_tiny(1) * 100, Limits(), CALIBRATION)
    assert max(map(len, pack_search.partition(alike))) <= 48


def make_tiny(count: int) -> list[Subject]:
    return [
        Subject(i, 1, None, 1, 1000.0 + i, Load(0.002, 0.0001 + i * 1e-6, 0.0), 50.0)
        for i in range(count)
    ]


def test_several_hundred_jobs_of_all_lengths_gain() -> None:
    pricing = make_pricing(make_subjects(300, seed=8))
    packs = pack_search.partition(pricing)
    assert Counter(i for pack in packs for i in pack) == Counter(range(300))
    alone = add_up(pricing, [[i] for i in range(300)])
    assert add_up(pricing, packs) < 0.6 * alone
