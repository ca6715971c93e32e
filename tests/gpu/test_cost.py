"""What watching costs, found again in units whose truth is known."""

from __future__ import annotations

import math
import random

import pytest

from .cost import (
    AFTER_TICK_S,
    Timeline,
    Unit,
    convert_to_monotonic,
    estimate_instrument,
    estimate_presence,
    estimate_ticks,
    parse_units,
)
from .estimates import Estimate, add_up, compute_trimmed_mean, estimate

FAST_S = 0.0252
SLOW_S = 0.044
SEGMENT_S = 4.0
# Of which 1 s each time belongs to no segment: the monitor has just begun to run again.
CYCLE = ((False, 4.0), (True, -1.0), (True, 4.0), (True, 4.0), (False, 4.0))
DRAWS = 300


def make_run(
    seed: int,
    *,
    seconds: float = 150.0,
    hooks: float = 0.0,
    tick_s: float = 0.0,
    presence: float = 0.0,
) -> tuple[list[Unit], list[float]]:
    """Units of a training on a host that is slow for seconds at a time, and the monitor's ticks.

    Args:
        seed: Of its chance.
        seconds: How long it trains.
        hooks: By how much counting makes units longer, as a share.
        tick_s: What a tick takes from the training.
        presence: By how much a running monitor makes units longer, as a share.
    """
    chance = random.Random(seed)
    units: list[Unit] = []
    ticks: list[float] = []
    now = 100.0
    end = now + seconds
    changes_at = now
    is_slow = False
    phase = chance.uniform(0, math.tau)
    segment = -1
    next_tick = math.inf
    while now < end:
        for is_running, length_s in CYCLE:
            counts = length_s > 0
            segment += counts
            # Going on after a stop it ticks at once.
            next_tick = min(next_tick, now + 0.03) if is_running else math.inf
            until = now + abs(length_s)
            while now < until:
                order = chance.choice([(False, True, True, False), (True, False, False, True)])
                for has_hooks in order:
                    if now > changes_at:
                        is_slow = not is_slow
                        changes_at = now + chance.expovariate(1 / 3.0)
                    took_s = (SLOW_S if is_slow else FAST_S) * chance.gauss(1, 0.012)
                    took_s *= 1 + 0.002 * math.sin(now / 3 + phase)
                    if chance.random() < 0.01:
                        took_s += chance.expovariate(1 / 0.008)
                    took_s *= (1 + hooks * has_hooks) * (1 + presence * is_running)
                    if now + took_s > next_tick:
                        ticks.append(next_tick)
                        took_s += tick_s
                        next_tick += 1.0
                    place = segment if counts else None
                    units.append(Unit(now, took_s, has_hooks, is_running, place))
                    now += took_s + 0.00005
    return units, ticks


def covers(found: Estimate | None, truth: float) -> bool:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


@pytest.mark.long
def test_costs_that_were_put_in_are_found_again_as_often_as_intervals_say() -> None:
    runs = 40
    hit = dict.fromkeys(("trimmed", "plain", "ticks", "control", "fast", "total"), 0)
    for seed in range(runs):
        units, ticks = make_run(seed, hooks=0.003, tick_s=0.003, presence=0.003)
        trimmed, plain = estimate_instrument(units, draws=DRAWS)
        timeline = Timeline(units, ticks)
        lost = estimate_ticks(timeline, draws=DRAWS)
        presence = estimate_presence(timeline, draws=DRAWS)
        hit["trimmed"] += covers(trimmed, 0.3)
        hit["plain"] += covers(plain, 0.3)
        hit["ticks"] += covers(lost.ticks, 0.3)
        hit["control"] += covers(lost.control, 0.0)
        hit["fast"] += covers(presence.fast_mode, 0.3)
        total = add_up([trimmed, lost.ticks, presence.fast_mode])
        hit["total"] += covers(total, 0.9)
        # Narrow enough to judge half a per cent.
        assert trimmed is not None
        assert trimmed.high is not None
        assert trimmed.low is not None
        assert trimmed.n > 900
        assert trimmed.high - trimmed.low < 0.4
    # Of few pairs the interval is a little narrow.
    assert all(count >= 0.8 * runs for count in hit.values()), hit


def test_nothing_is_found_where_nothing_was_put_in() -> None:
    means = []
    for seed in range(100, 110):
        units, ticks = make_run(seed)
        trimmed, plain = estimate_instrument(units, draws=2)
        lost = estimate_ticks(Timeline(units, ticks), draws=2)
        presence = estimate_presence(Timeline(units, ticks), draws=2)
        found = (trimmed, plain, lost.ticks, lost.control, presence.fast_mode)
        means.append([one.mean for one in found if one is not None])
    for column, limit in zip(zip(*means, strict=True), (0.03, 0.3, 0.3, 0.3, 0.1), strict=True):
        assert sum(column) / len(column) == pytest.approx(0, abs=limit), means


def test_a_change_of_the_hosts_speed_is_no_slowdown() -> None:
    # Every group has one, which meets each order of counting equally often.
    units = []
    orders = ((False, True, True, False), (True, False, False, True))
    for number in range(400):
        for place, took_s in enumerate((1.5, 1.0, 1.0, 1.0)):
            units.append(Unit(4.0 * number + place, took_s, orders[number % 2][place], False, 0))
    trimmed, plain = estimate_instrument(units, draws=20)
    assert trimmed is not None
    assert plain is not None
    assert trimmed.mean == pytest.approx(0, abs=1e-9)
    assert plain.mean == pytest.approx(0, abs=1e-9)


def test_a_tick_loses_what_its_units_took_longer() -> None:
    took = [0.05] * 100
    took[50] = 0.08
    moment, units = 0.0, []
    for one in took:
        units.append(Unit(moment, one, True, True, 1))
        moment += one
    tick = units[50].begin_s + 0.03
    found = estimate_ticks(Timeline(units, [tick]), 2.0, draws=5)
    assert found.ticks is not None
    assert found.ticks.mean == pytest.approx(100 * 0.03 / 2)
    assert found.ticks.low is None
    assert found.control is not None
    assert found.control.mean == pytest.approx(0)
    assert found.met == 1


def test_a_tick_while_the_host_changes_its_speed_is_not_judged() -> None:
    moment, units = 0.0, []
    for number in range(200):
        took_s = 0.025 if number < 100 else 0.04
        units.append(Unit(moment, took_s, True, True, 1))
        moment += took_s
    found = estimate_ticks(Timeline(units, [units[100].begin_s, units[150].begin_s]))
    assert found.met == 2
    assert found.ticks is not None
    assert found.ticks.n == 1
    assert found.ticks.mean == pytest.approx(0, abs=1e-9)


def test_ticks_outside_of_segments_do_not_count() -> None:
    units = [Unit(0.05 * n, 0.05, True, True, None if n < 50 else 1) for n in range(200)]
    before = estimate_ticks(Timeline(units, [1.0]))
    across = estimate_ticks(Timeline(units, [2.5 - AFTER_TICK_S / 2]))
    outside = estimate_ticks(Timeline(units, [-3.0, 50.0]))
    for found in (before, across, outside):
        assert (found.ticks, found.control, found.met) == (None, None, 0)


def test_presence_is_found_between_ticks_alone() -> None:
    units, number = [], 0
    for segment, is_running in enumerate((False, True, True, False)):
        for _ in range(40):
            units.append(
                Unit(0.1 * number, 0.0505 if is_running else 0.05, True, is_running, segment)
            )
            number += 1
    # A unit that a tick has met is not the monitor's presence.
    slow = 60
    units[slow] = Unit(units[slow].begin_s, 0.09, True, True, 1)
    found = estimate_presence(Timeline(units, [units[slow].begin_s + 0.01]), draws=20)
    for one in (found.low_quantile, found.fast_mode):
        assert one is not None
        assert one.n == 2
        assert one.mean == pytest.approx(1, rel=0.01)


def test_no_data_is_unknown_and_not_zero() -> None:
    assert estimate([]) is None
    assert estimate([[], []]) is None
    assert estimate_instrument([]) == (None, None)
    empty = Timeline([], [1.0])
    assert estimate_ticks(empty).ticks is None
    assert estimate_presence(empty).fast_mode is None
    known = Estimate(1.0, 0.5, 1.5, 1.0, 7)
    assert add_up([known, None]) is None
    assert add_up([]) is None


def test_widths_of_a_sum_add_up_like_deviations() -> None:
    found = add_up([Estimate(1.0, 0.7, 1.3, 1.1, 7), Estimate(2.0, 1.6, 2.4, 2.0, 5)])
    assert found is not None
    assert (found.mean, found.n) == (3.0, 5)
    assert found.low == pytest.approx(2.5)
    assert found.high == pytest.approx(3.5)
    without = add_up([Estimate(1.0, 0.7, 1.3, 1.1, 7), Estimate(2.0, None, None, 2.0, 1)])
    assert without is not None
    assert without.low is None


def test_a_trimmed_mean_leaves_the_ends_out() -> None:
    assert compute_trimmed_mean([1000.0, *[1.0] * 8, -90.0]) == 1.0
    assert compute_trimmed_mean([1.0, 2.0]) == 1.5


def test_a_group_that_is_not_balanced_is_refused_and_one_cut_off_left_out() -> None:
    units = [Unit(float(n), 1.0, n in (1, 2), True, 0) for n in range(7)]
    trimmed, _ = estimate_instrument(units)
    assert trimmed is not None
    assert trimmed.n == 1
    with pytest.raises(ValueError, match="not balanced"):
        estimate_instrument([Unit(float(n), 1.0, True, True, 0) for n in range(4)])


def test_units_are_read_as_they_were_written() -> None:
    text = "begin_ns,took_ns,hooks,monitor,segment\n5000000000,25000000,1,running,3\n"
    text += "5025000000,26000000,0,stopped,\n"
    first, second = parse_units(text)
    assert first == Unit(5.0, 0.025, True, True, 3)
    assert (second.has_hooks, second.is_running, second.segment) == (False, False, None)


def test_moments_change_their_clock() -> None:
    # The epoch's clock is set forward by a second meanwhile.
    clocks = [(1000.0, 10.0), (1101.0, 110.0)]
    assert convert_to_monotonic([1000.0, 1050.5, 1101.0], clocks) == pytest.approx([10, 60, 110])
