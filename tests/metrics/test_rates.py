"""Rates from counters: exact to 1 % whatever disturbs them, and unknown where they must be."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.rates import (
    NEVER_MOVED,
    NO_PROGRESS,
    CounterReadings,
    compute_rate,
    compute_spread,
    find_intervals,
    select_within,
    settle,
    sum_known,
)

T0 = 1_700_000_000.0


def read(
    steps: Sequence[float], ticks: Sequence[float], *, has_times: bool = True
) -> CounterReadings:
    """What is read at some moments of a program whose steps ended at others."""
    counts = [sum(1 for step in steps if step <= tick) for tick in ticks]
    return CounterReadings(
        at=ticks,
        steps=[count or None for count in counts],
        samples=[32 * count or None for count in counts],
        wait_s=[0.25 * (tick - ticks[0]) for tick in ticks],
        last_step_at=[steps[c - 1] if c and has_times else None for c in counts],
        first_step_at=steps[0] if steps else None,
    )


def make_steps(
    step_s: float, end: float, pauses: Sequence[tuple[float, float]] = ()
) -> list[float]:
    """Steps until `end` s; the first 6 s are slow, and pauses are times without any."""
    at = 0.0
    steps: list[float] = []
    while True:
        at += step_s * (3 if at < 6 else 1)
        for begin, length in pauses:
            if begin <= at < begin + length:
                at += length
        if at > end:
            return [T0 + step for step in steps]
        steps.append(at)


def jitter(end: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [T0 + tick + chance.uniform(0, 0.4) for tick in range(end)]


@pytest.mark.parametrize("step_s", [0.005, 0.3, 2.7])
@pytest.mark.parametrize("pauses", [(), ((40, 4), (75, 20))])
def test_a_rate_is_exact_to_one_per_cent(
    step_s: float, pauses: tuple[tuple[float, float], ...]
) -> None:
    settled = settle(read(make_steps(step_s, 120, pauses), jitter(121)))
    rate = compute_rate(settled.intervals)
    assert rate.steps_per_s == pytest.approx(1 / step_s, rel=0.01)
    assert rate.samples_per_s == pytest.approx(32 / step_s, rel=0.01)
    # A pause of less than five steps cannot be told from a slow step.
    lengths = sum(length for _, length in pauses if length > 5 * step_s)
    assert settled.paused_s == pytest.approx(lengths, abs=5 * step_s + 1)


def test_readings_that_are_missing_change_nothing() -> None:
    ticks = [tick for tick in jitter(121) if not T0 + 50 < tick < T0 + 80]
    progress = read(make_steps(0.1, 120), ticks)
    steps = [None if index % 7 == 3 else value for index, value in enumerate(progress.steps)]
    holes = CounterReadings(progress.at, steps, progress.samples, progress.wait_s,
                     progress.last_step_at, progress.first_step_at)  # fmt: skip
    assert compute_rate(settle(holes).intervals).steps_per_s == pytest.approx(10, rel=0.01)


def test_a_counter_read_while_it_was_written_counts_once() -> None:
    progress = read(make_steps(0.1, 60), jitter(61))
    torn = [value // 2 if index == 30 and value else value
            for index, value in enumerate(progress.steps)]  # fmt: skip
    holes = CounterReadings(progress.at, torn, progress.samples, progress.wait_s,
                     progress.last_step_at, progress.first_step_at)  # fmt: skip
    settled = settle(holes)
    assert settled.steps == max(step for step in progress.steps if step)
    assert compute_rate(settled.intervals).steps_per_s == pytest.approx(10, rel=0.01)


def test_without_times_of_steps_the_times_of_the_readings_serve() -> None:
    settled = settle(read(make_steps(0.02, 120), jitter(121), has_times=False))
    assert compute_rate(settled.intervals).steps_per_s == pytest.approx(50, rel=0.01)


def test_a_slow_neighbour_is_no_pause() -> None:
    steps = [T0 + 0.1 * n for n in range(600)]
    steps += [steps[-1] + 0.5 * n for n in range(1, 240)]
    # Each reading stands for 9 s, as in a run of a day.
    settled = settle(read(steps, [T0 + 9 * tick for tick in range(21)]))
    assert settled.paused_s == 0


def test_the_warm_up_is_left_out_but_never_more_than_half() -> None:
    long = settle(read([T0 + 0.1 * n for n in range(1, 1200)], jitter(121)))
    assert 10 <= long.warm_up_s <= 12
    short = settle(read([T0 + 0.1 * n for n in range(1, 120)], jitter(13)))
    assert 5 <= short.warm_up_s <= 7.5
    slow = settle(read([T0 + 2 * n for n in range(1, 100)], jitter(200)))
    assert 38 <= slow.warm_up_s <= 42, "20 steps of 2 s"


def test_what_cannot_have_a_rate_says_why() -> None:
    assert settle(read([], jitter(30))).reason == NO_PROGRESS
    ticks = jitter(30)
    still = CounterReadings(ticks, [0] * 30, [0] * 30, [0] * 30, [None] * 30)
    assert settle(still).reason == NEVER_MOVED
    once = settle(read([T0 + 3], ticks))
    assert once.reason.startswith("too short")
    brief = settle(read([T0 + 0.1 * n for n in range(1, 20)], jitter(3)))
    rate = compute_rate(brief.intervals)
    assert rate.steps_per_s is None
    assert rate.samples_per_s is None
    assert rate.reason.startswith("too short")


def test_a_program_that_counts_no_samples_has_no_rate_of_them() -> None:
    progress = read(make_steps(0.1, 60), jitter(61))
    without = CounterReadings(progress.at, progress.steps, [0] * 61, progress.wait_s,
                       progress.last_step_at, progress.first_step_at)  # fmt: skip
    rate = compute_rate(settle(without).intervals)
    assert rate.steps_per_s is not None
    assert rate.samples_per_s is None


def test_intervals_within_windows_lie_wholly_in_one() -> None:
    intervals = find_intervals(read([T0 + 0.1 * n for n in range(1, 600)], jitter(61)))
    windows = [(T0 + 5, T0 + 20.5), (T0 + 30, T0 + 41)]
    chosen = select_within(intervals, windows)
    assert chosen
    assert chosen == [i for i in intervals if any(a <= i.begin and i.end <= b for a, b in windows)]


def test_the_spread_needs_three_blocks_and_is_zero_for_an_even_program() -> None:
    intervals = find_intervals(read([T0 + 0.1 * n for n in range(1, 600)], jitter(61)))
    assert compute_spread(intervals[:8]) is None
    assert compute_spread(intervals) == pytest.approx(0, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.001, 5), st.none() | st.integers(0, 500)), max_size=60),
    st.booleans(),
)
def test_no_series_breaks_it_and_no_step_is_lost_or_invented(
    rows: list[tuple[float, int | None]], has_times: bool
) -> None:
    at, steps, times, now, total = [], [], [], T0, 0
    for wait_s, more in rows:
        now += wait_s
        total += more or 0
        at.append(now)
        steps.append(None if more is None else total)
        times.append(now if has_times else None)
    none: list[float | None] = [None] * len(at)
    progress = CounterReadings(at, steps, none, none, times)
    intervals = find_intervals(progress)
    known = [value for value in steps if value]
    assert sum(i.steps for i in intervals) == (max(known) - min(known) if known else 0)
    settled = settle(progress)
    kept = sum(i.length_s for i in settled.intervals)
    whole = sum(i.length_s for i in intervals)
    assert kept + settled.paused_s <= whole + 1e-6
    rate = compute_rate(settled.intervals)
    assert (rate.steps_per_s is None) == bool(rate.reason)
    assert rate.samples_per_s is None


@given(st.lists(st.none() | st.floats(0, 1e6)))
def test_a_sum_with_something_unknown_is_unknown(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    total = sum_known(values)
    if not values or len(known) < len(values):
        assert total is None
    else:
        assert total == pytest.approx(sum(known))
