"""Prices of packs: durations, settings and limits, and the three ways of computing them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.model.usage_profile import Calibration, Load, ModeModel
from slurm_colloc.planning.hard_limits import Limits, Setting, Subject
from slurm_colloc.planning.pack_pricing import Pricing, compute_ends_s
from tests.planning.coefficients import CALIBRATION, LIMITS
from tests.planning.subjects import (
    ALL,
    BOTH,
    goals,
    limits,
    make_pricing,
    make_subjects,
    modes,
    subjects,
)

SMALL = Subject(0, 1, 1000, 4000, 1000.0, Load(0.3, 0.1, 0.05, power_w=100.0), 1.5)
HUGE = Subject(0, 1, 1000, 4000, 1000.0, Load(1.0, 0.97, 0.6, power_w=600.0), 1.5)


def test_a_job_alone_has_the_whole_gpu_whatever_it_needs() -> None:
    needy = dataclasses.replace(HUGE, cpus=999, gpu_memory_mb=999_999, load=None)
    priced = make_pricing([needy]).price([0])
    assert priced is not None
    assert priced.setting == Setting(SharingMode.EXCLUSIVE, (None,))
    assert (priced.slowdowns, priced.duration_s, priced.gpu_s) == ((1.0,), 1000.0, 1000.0)
    assert priced.cost == 1000.0


def test_small_jobs_share_and_saturating_ones_do_not() -> None:
    pricing = make_pricing([SMALL, SMALL, HUGE, HUGE])
    together = pricing.price([0, 1])
    assert together is not None
    assert 1000.0 <= together.duration_s < 1500.0
    assert pricing.price([2, 3]) is None


def test_jobs_of_unknown_load_share_with_nobody() -> None:
    unknown = dataclasses.replace(SMALL, load=None)
    pricing = make_pricing([SMALL, unknown, unknown])
    assert pricing.price([0, 1]) is None
    assert pricing.price([1, 2]) is None


def test_nothing_is_shared_without_a_calibration() -> None:
    pricing = Pricing([SMALL, SMALL], LIMITS, None)
    assert pricing.price([0, 1]) is None
    assert pricing.price([0]) is not None


@pytest.mark.parametrize(
    "limit",
    [
        Limits(cpus=1),
        Limits(host_memory_mb=1999),
        Limits(gpu_memory_mb=7999),
        Limits(members=1),
        Limits(finish_s=999.0),
        Limits(finish_s=1000.5),
    ],
)
def test_no_pack_passes_a_hard_limit(limit: Limits) -> None:
    assert Pricing([SMALL, SMALL], limit, CALIBRATION).price([0, 1]) is None
    assert Pricing([SMALL, SMALL], Limits(), CALIBRATION).price([0, 1]) is not None


def test_the_bound_holds_with_the_margin_on_top() -> None:
    free = make_pricing([SMALL, SMALL], modes=[SharingMode.TIMESLICE]).price([0, 1])
    assert free is not None
    slowdown = free.slowdowns[0]
    for bound, margin, legal in (
        (slowdown, 0.0, True),
        (slowdown * 0.999, 0.0, False),
        (slowdown, 0.01, False),
        (slowdown * 1.01, 0.01, True),
    ):
        bounded = dataclasses.replace(SMALL, max_slowdown=bound, margin=margin)
        pricing = make_pricing([bounded, bounded], modes=[SharingMode.TIMESLICE])
        assert (pricing.price([0, 1]) is not None) == legal


@pytest.mark.parametrize("margins", [(0.0, 0.0), (0.1, 0.1), (0.0, 0.1), (0.1, 0.0)])
def test_a_pack_ends_in_time_with_the_margin_on_top(margins: tuple[float, float]) -> None:
    from slurm_colloc.planning.cost_columns import Columns
    from slurm_colloc.planning.subset_costs import compute_subset_costs

    longer = dataclasses.replace(SMALL, run_s=1001.0)
    chosen = [
        dataclasses.replace(subject, margin=margin, max_slowdown=9.0)
        for subject, margin in zip((SMALL, longer), margins, strict=True)
    ]
    free = Pricing(chosen, LIMITS, CALIBRATION).price([0, 1])
    assert free is not None
    latest_s = free.gpu_s * (1 + max(margins))
    for finish_s, legal in ((latest_s * 0.999, False), (latest_s * 1.001, True)):
        limits_s = dataclasses.replace(LIMITS, finish_s=finish_s)
        pricing = Pricing(chosen, limits_s, CALIBRATION)
        assert (pricing.price([0, 1]) is not None) == legal
        assert math.isfinite(compute_subset_costs(pricing, (0, 1))[3]) == legal
        assert math.isfinite(Columns(pricing).compute_costs([(0, 1)], thorough=False)[0]) == legal


def test_a_pack_that_saves_less_than_the_model_may_be_wrong_is_not_made() -> None:
    patient = dataclasses.replace(SMALL, max_slowdown=100.0)
    priced = make_pricing([patient, patient]).price([0, 1])
    assert priced is not None
    saved = 1 - priced.cost / 2000.0
    for margin, legal in ((saved - 0.01, True), (saved + 0.01, False)):
        doubtful = dataclasses.replace(patient, margin=margin)
        assert (make_pricing([doubtful, doubtful]).price([0, 1]) is not None) == legal


def test_the_tail_makes_unequal_lengths_dear() -> None:
    short = dataclasses.replace(SMALL, run_s=10.0)
    pricing = make_pricing([SMALL, SMALL, short, short])
    alike = [pricing.price(pack) for pack in ((0, 1), (2, 3))]
    unlike = [pricing.price(pack) or pricing.price([pack[0]]) for pack in ((0, 2), (1, 3))]
    assert sum(priced.cost for priced in alike if priced) < sum(p.cost for p in unlike if p)


def test_when_one_ends_the_other_goes_on_at_its_own_speed() -> None:
    ends = compute_ends_s(
        [10.0, 30.0],
        [1.0, 1.5],
        lambda running: [2.0] * len(running) if len(running) > 1 else [1.0],
    )
    # 20 s together bring the second to 10 of its 30 s; its limit then allows 1 / 1.5.
    assert ends == pytest.approx([20.0, 20.0 + 20.0 * 1.5])


def test_a_large_pack_is_rated_anew_when_a_fifth_has_ended() -> None:
    asked: list[int] = []

    def rate(running: Sequence[int]) -> list[float]:
        asked.append(len(running))
        return [1.0] * len(running)

    ends = compute_ends_s([float(i) for i in range(1, 21)], [1.0] * 20, rate)
    assert ends == pytest.approx(range(1, 21))
    assert asked == [20, 16, 12, 9, 7, 5, 4, 3, 2, 1]


def test_each_member_keeps_its_place_in_the_answer() -> None:
    other = dataclasses.replace(SMALL, load=Load(0.5, 0.3, 0.1), max_slowdown=5.0)
    pricing = make_pricing([SMALL, other, other])
    for members in itertools.permutations(range(3)):
        priced = pricing.price(members)
        first = pricing.price([0, 1, 2])
        assert priced is not None
        assert first is not None
        assert priced.cost == first.cost
        assert [priced.slowdowns[members.index(i)] for i in range(3)] == list(first.slowdowns)
        back = [priced.setting.percentages[members.index(i)] for i in range(3)]
        assert back == list(first.setting.percentages)


def test_goals_count_what_they_say() -> None:
    by_goal = {goal: make_pricing([SMALL, SMALL], goal=goal).price([0, 1]) for goal in Goal}
    throughput, latency = by_goal[Goal.THROUGHPUT], by_goal[Goal.LATENCY]
    energy = by_goal[Goal.ENERGY]
    assert throughput is not None
    assert latency is not None
    assert energy is not None
    assert throughput.cost == throughput.gpu_s
    delay_s = 2 * (latency.duration_s - 1000.0)
    assert latency.cost == pytest.approx(latency.gpu_s + delay_s)
    # 46 W of each 100 W above idle are those of a GPU at work, which count once.
    assert energy.energy_j == pytest.approx(
        75.0 * energy.gpu_s + 46.0 * energy.duration_s + 2 * 54.0 * 1000.0
    )
    assert energy.cost == energy.energy_j


def test_energy_that_is_unknown_is_none_and_gpu_time_stands_for_it() -> None:
    calibration = dataclasses.replace(CALIBRATION, idle_power_w=None)
    priced = Pricing([SMALL, SMALL], LIMITS, calibration, goal=Goal.ENERGY).price([0, 1])
    assert priced is not None
    assert priced.energy_j is None
    assert priced.cost == priced.gpu_s


def test_thread_limits_are_chosen_where_they_help() -> None:
    # Nothing but crowding slows these down: limits that add up to the GPU are best.
    model = ModeModel(width=0.0, capacity=0.5, crowding=0.4)
    calibration = Calibration("H200", {"mps": model}, 0.0)
    subject = dataclasses.replace(SMALL, load=Load(0.3, 0.1, 0.05), max_slowdown=9.0)
    priced = Pricing([subject] * 4, LIMITS, calibration).price([0, 1, 2, 3])
    assert priced is not None
    assert priced.setting == Setting(SharingMode.MPS, (25, 25, 25, 25))


def test_mig_gives_equal_instances_with_memory_of_their_own() -> None:
    member = Subject(0, 1, None, 16_000, 1000.0, Load(0.3, 0.05, 0.05), 2.0)
    pricing = make_pricing([member] * 8, modes=[SharingMode.MIG])
    percentages = {2: 42, 3: 28, 4: 14, 7: 14}
    for count, percentage in percentages.items():
        priced = pricing.price(range(count))
        assert priced is not None
        assert priced.setting == Setting(SharingMode.MIG, (percentage,) * count)
        assert priced.gpu_s == pytest.approx(priced.duration_s + 10.0)
    # 1 - B + B/e; 1/e of one slice: (7/1 + 8/1) / 2.
    assert pricing._rate(0, (0,) * 7)[1] == pytest.approx([1 - 0.05 + 0.05 * 7.5] * 7)
    assert pricing.price(range(8)) is None
    # Each of four equal instances has less than each of three.
    rooms_mb = (0, 136_000, 68_000, 34_000, 17_000)
    limits = dataclasses.replace(LIMITS, instance_rooms_mb=rooms_mb)
    larger = dataclasses.replace(member, gpu_memory_mb=17_001)
    pricing = Pricing([larger] * 5, limits, CALIBRATION, modes=[SharingMode.MIG])
    assert pricing.price(range(5)) is None
    assert pricing.price(range(4)) is None
    assert pricing.price(range(3)) is not None


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.lists(subjects(), min_size=2, max_size=7), limits, goals, modes)
def test_all_ways_of_pricing_agree(
    chosen: list[Subject], limit: Limits, goal: Goal, of_modes: list[SharingMode]
) -> None:
    from slurm_colloc.planning.cost_columns import Columns
    from slurm_colloc.planning.subset_costs import compute_subset_costs

    pricing = Pricing(chosen, limit, CALIBRATION, goal=goal, modes=of_modes)
    key = tuple(sorted(pricing.kind_of))
    lenient, strict = (
        Pricing(
            [dataclasses.replace(s, margin=s.margin + hair) for s in chosen],
            limit,
            CALIBRATION,
            goal=goal,
            modes=of_modes,
        )
        for hair in (-1e-4, 1e-4)
    )
    by_subset = compute_subset_costs(pricing, key)
    many = Pricing(chosen, limit, CALIBRATION, goal=goal, modes=of_modes)
    packs = {
        subset: tuple(kind for place, kind in enumerate(key) if subset >> place & 1)
        for subset in range(1, len(by_subset))
    }
    columns = Columns(many)
    columns.remember(packs.values())
    shared = [pack for pack in packs.values() if len(pack) > 1]
    estimates, thorough = (
        dict(zip(shared, columns.compute_costs(shared, thorough=thorough), strict=True))
        for thorough in (False, True)
    )
    for subset, pack in packs.items():
        one = pricing.price_key(pack)
        among_many = many.price_key(pack)
        assert (among_many is None) == (one is None)
        if len(pack) > 1 and (lenient.price_key(pack) is None) != (strict.price_key(pack) is None):
            # Where sharing saves next to nothing, rounding decides whether it is worth it.
            continue
        assert math.isfinite(by_subset[subset]) == (one is not None)
        if one is not None and among_many is not None:
            assert by_subset[subset] == pytest.approx(one.cost, rel=1e-4)
            assert among_many.cost == pytest.approx(one.cost, rel=1e-9)
            assert among_many.duration_s == pytest.approx(one.duration_s, rel=1e-3)
            assert among_many.energy_j == pytest.approx(one.energy_j, rel=1e-3)
            assert len(pack) == 1 or thorough[pack] == pytest.approx(one.cost, rel=1e-9)
        if one is not None and len(pack) > 1 and math.isfinite(estimates[pack]):
            assert 0.8 * one.cost < estimates[pack] < 2 * one.cost


def test_a_rough_price_counts_what_setting_up_takes() -> None:
    from slurm_colloc.planning.cost_columns import Columns

    # Faster by MPS, but for so short a time that starting it takes longer than that saves.
    brief = [
        Subject(i, 1, None, None, 1.0, Load(e, e / 2, e / 4, power_w=100.0 * e), 9.0)
        for i, e in enumerate((0.02, 0.1, 0.3, 0.5))
    ]
    pricing = make_pricing(brief)
    one = pricing.price(range(4))
    assert one is not None
    assert one.setting.mode is SharingMode.TIMESLICE
    key = tuple(sorted(pricing.kind_of))
    (rough,) = Columns(pricing).compute_costs([key], thorough=False)
    assert rough == pytest.approx(one.cost, rel=0.05)


@pytest.mark.parametrize(
    "limit",
    [Limits(cpus=4), Limits(host_memory_mb=4000), Limits(gpu_memory_mb=400), Limits(members=4)],
)
def test_packs_of_all_sizes_keep_the_limits_when_priced_together(limit: Limits) -> None:
    from slurm_colloc.planning.cost_columns import Columns

    tiny = [
        Subject(i, 1, 1000, 100, 1000.0 + i, Load(0.02, 0.01, 0.005), 5.0, 0.0) for i in range(8)
    ]
    packs = [tuple(range(size)) for size in range(2, 9)]
    pricing = Pricing(tiny, limit, CALIBRATION)
    costs = Columns(pricing).compute_costs(packs, thorough=False)
    assert [len(pack) for pack, cost in zip(packs, costs, strict=True) if math.isfinite(cost)] == [
        2,
        3,
        4,
    ]
    Columns(pricing).remember(packs)
    assert [len(pack) for pack in packs if pricing.price_key(pack)] == [2, 3, 4]


def test_jobs_that_were_in_packs_and_others_are_priced_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from slurm_colloc.planning import cost_columns
    from slurm_colloc.planning.cost_columns import Columns
    from slurm_colloc.planning.pack_pricing import predict_in

    asked: list[int] = []

    def ask(*arguments: Any, **more: Any) -> Any:
        asked.append(1)
        return predict_in(*arguments, **more)

    monkeypatch.setattr(cost_columns, "predict_in", ask)

    def count_calls(seen: float) -> tuple[int, list[float]]:
        loads = [Load(0.02, 0.01, 0.005, sensitivity=seen * (i % 2)) for i in range(8)]
        alike = [Subject(i, 1, 1000, 100, 1000.0 + i, load, 5.0) for i, load in enumerate(loads)]
        asked.clear()
        pairs = [(i, j) for i in range(8) for j in range(i + 1, 8)]
        costs = Columns(Pricing(alike, Limits(), CALIBRATION)).compute_costs(pairs, thorough=True)
        return len(asked), costs

    (calls, costs), (calls_seen, costs_seen) = count_calls(0.0), count_calls(0.3)
    assert calls_seen == calls > 0
    assert costs_seen != costs


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    st.lists(subjects(), min_size=2, max_size=6)
    | st.builds(make_subjects, st.integers(2, 5), st.integers(0, 10**6)),
    limits | st.just(LIMITS),
    goals,
    modes,
)
def test_a_price_keeps_every_promise(
    chosen: list[Subject], limit: Limits, goal: Goal, of_modes: list[SharingMode]
) -> None:
    pricing = Pricing(chosen, limit, CALIBRATION, goal=goal, modes=of_modes)
    members = range(len(chosen))
    priced = pricing.price(members)
    # Few that are drawn at random go together: nothing is promised of the others.
    assume(priced is not None)
    assert priced is not None
    assert not pricing.find_broken(members)
    for subject, slowdown in zip(chosen, priced.slowdowns, strict=True):
        assert slowdown * (1 + subject.bound_margin) <= subject.max_slowdown * (1 + 1e-4)
    assert priced.duration_s >= max(subject.run_s for subject in chosen) * (1 - 1e-6)
    latest_s = priced.gpu_s * (1 + max(subject.margin for subject in chosen))
    assert limit.finish_s is None or latest_s <= limit.finish_s * (1 + 1e-4)
    alone = [pricing.price([i]) for i in members]
    assert priced.cost < sum(one.cost for one in alone if one)


def test_the_order_of_the_subjects_changes_no_price() -> None:
    chosen = make_subjects(8, seed=3)
    first = make_pricing(chosen, modes=ALL)
    turned = make_pricing(chosen[::-1], modes=ALL)
    for pack in itertools.combinations(range(8), 3):
        assert first.price(pack) == turned.price([7 - i for i in pack])


def test_a_single_job_loads_no_numpy() -> None:
    program = (
        "import sys\n"
        "from slurm_colloc.planning.pack_pricing import Pricing\n"
        "from slurm_colloc.planning.pack_search import partition\n"
        "from slurm_colloc.planning.hard_limits import Limits, Subject\n"
        "from slurm_colloc.model.usage_profile import Calibration, Load, ModeModel\n"
        "model = ModeModel(waiting=0.3)\n"
        "calibration = Calibration('H200', {'mps': model}, 0.05)\n"
        "def plan(count, alike):\n"
        "    made = [Subject(i, 1, None, 1, 9.0 if alike else 9.0 + i, Load(0.3, 0.1, 0.1), 2.0)\n"
        "            for i in range(count)]\n"
        "    return partition(Pricing(made, Limits(members=8), calibration))\n"
        "assert plan(1, True) == ((0,),)\n"
        "plan(1000, True)\n"
        "plan(5, False)\n"
        "print('numpy' in sys.modules)\n"
        "plan(12, False)\n"
        "print('numpy' in sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["False", "True"]


def test_modes_without_a_model_are_not_tried() -> None:
    calibration = dataclasses.replace(CALIBRATION, modes={})
    assert Pricing([SMALL, SMALL], LIMITS, calibration, modes=BOTH).price([0, 1]) is None
