"""A run with stops has the figures of the same run with the time of the stops cut out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.presence import (
    Phase,
    Stay,
    compute_phases,
    find_alone,
    find_briefly_alone,
    find_shared,
    leave_out_stops,
)
from slurm_colloc.metrics.rates import (
    NEVER_STOPPED,
    CounterReadings,
    OwnTime,
    Settled,
    Track,
    compute_rate,
    measure_windows,
    settle,
)
from slurm_colloc.metrics.sharing_cost import compute_data_share

T0 = 1_700_000_000.0

# Binary fractions: sums of them are exact, so that both runs can be compared by ==.
EIGHTHS = st.integers(1, 240).map(lambda count: count / 8)
STOPS = st.lists(st.tuples(st.integers(0, 2000).map(lambda n: n / 8), EIGHTHS), max_size=12)


def to_wall(own: float, stops: Sequence[tuple[float, float]]) -> float:
    """When something happened, of which the member's own clock is known."""
    return T0 + own + sum(length for at, length in stops if at < own)


def make_own_time(stops: Sequence[tuple[float, float]]) -> OwnTime:
    merged: dict[float, float] = {}
    for at, length in stops:
        merged[at] = merged.get(at, 0.0) + length
    before, windows = 0.0, []
    for at, length in sorted(merged.items()):
        windows.append((T0 + at + before, T0 + at + before + length))
        before += length
    return OwnTime(windows)


def strip(settled: Settled) -> tuple[object, ...]:
    """What must not depend on stops."""
    intervals = [(i.length_s, i.steps, i.samples, i.wait_s) for i in settled.intervals]
    rest = dataclasses.replace(settled, intervals=())
    return intervals, rest, compute_rate(settled.intervals)


@given(
    st.lists(st.tuples(EIGHTHS, st.integers(0, 40)), min_size=1, max_size=60),
    STOPS,
    st.booleans(),
    st.booleans(),
)
def test_rates_are_those_of_the_run_without_its_stops(
    rows: list[tuple[float, int]],
    stops: list[tuple[float, float]],
    has_times: bool,
    has_first: bool,
) -> None:
    at, steps, own, done = [], [], 0.0, 0
    for length_s, more in rows:
        own += length_s
        done += more
        at.append(own)
        steps.append(done)

    def read(stopped: Sequence[tuple[float, float]], own_time: OwnTime) -> CounterReadings:
        times = [to_wall(value, stopped) for value in at]
        # The newest step ended a moment before the reading.
        ends = [to_wall(value - 1 / 16, stopped) if has_times else None for value in at]
        return CounterReadings(
            times,
            steps,
            [32 * count for count in steps],
            [value / 4 for value in at],
            ends,
            to_wall(1 / 32, stopped) if has_first else None,
            own_time,
        )

    assert strip(settle(read(stops, make_own_time(stops)))) == strip(
        settle(read((), NEVER_STOPPED))
    )


WINDOWS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=5)
STAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(1, 4)), max_size=8)


@given(STAYS, st.dictionaries(st.integers(1, 4), WINDOWS))
def test_who_is_stopped_is_not_there(
    stays: list[tuple[int, int, int]], stops: dict[int, list[tuple[int, int]]]
) -> None:
    there: dict[int, set[int]] = {member: set() for member in range(1, 5)}
    present: list[Stay] = []
    for begin, length, member in stays:
        own_time = OwnTime((b, b + n) for b, n in stops.get(member, ()))
        present += leave_out_stops([Stay(begin, begin + length, member)], own_time)
        stopped = {t for b, n in stops.get(member, ()) for t in range(b, b + n)}
        there[member] |= set(range(begin, begin + length)) - stopped
    phases = compute_phases(present)
    for second in range(100):
        found = [p.members for p in phases if p.begin <= second and second + 1 <= p.end]
        assert (found[0] if found else frozenset()) == {
            member for member, seconds in there.items() if second in seconds
        }
    for member, own in there.items():
        others = set().union(*(seconds for other, seconds in there.items() if other != member))
        assert measure_windows(find_alone(phases, member, margin_s=0)) == len(own - others)
        assert measure_windows(find_shared(phases, member)) == len(own & others)


@given(STAYS, WINDOWS)
def test_where_all_are_stopped_the_run_is_as_if_that_time_had_not_been(
    stays: list[tuple[int, int, int]], stops: list[tuple[int, int]]
) -> None:
    own_time = OwnTime((begin, begin + length) for begin, length in stops)
    whole = [Stay(begin, begin + length, member) for begin, length, member in stays]
    cut = [Stay(own_time.read(s.begin), own_time.read(s.end), s.member) for s in whole]

    def list_parts(phases: Sequence[Phase], clock: OwnTime) -> list[tuple[object, ...]]:
        parts: list[tuple[object, ...]] = []
        for phase in phases:
            begin, end = clock.read(phase.begin), clock.read(phase.end)
            if parts and parts[-1][0] == phase.members and parts[-1][2] == begin:
                parts[-1] = (phase.members, parts[-1][1], end)
            elif end > begin:
                parts.append((phase.members, begin, end))
        return [part for part in parts if part[0]]

    found = list_parts(compute_phases(leave_out_stops(whole, own_time)), own_time)
    assert found == list_parts(compute_phases(cut), NEVER_STOPPED)


@given(WINDOWS, st.integers(0, 70), st.integers(0, 30))
def test_a_clock_stands_still_while_a_member_is_stopped(
    stops: list[tuple[int, int]], begin: int, length: int
) -> None:
    clock = OwnTime((at, at + long) for at, long in stops)
    seconds = {t for at, long in stops for t in range(at, at + long)}
    own = set(range(begin, begin + length)) - seconds
    assert clock.count_stopped_s(begin, begin + length) == length - len(own)
    assert clock.read(begin + length) - clock.read(begin) == len(own)
    parts = clock.cut(begin, begin + length)
    assert {t for low, high in parts for t in range(int(low), int(high))} == own
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(parts))
    assert clock.bridge(parts) == ([(parts[0][0], parts[-1][1])] if parts else [])
    kept = clock.keep_longer(5)
    assert all(high - low >= 5 for low, high in kept.stopped)
    assert set(kept.stopped) <= set(clock.stopped)


def test_waiting_while_it_was_stopped_is_no_wait_for_data() -> None:
    at = [T0 + second for second in range(60)]
    own_time = OwnTime([(T0 + 30.25, T0 + 40.5)])
    steps = [10.0 * own_time.read(moment) - 10 * T0 + 1 for moment in at]
    # It waits for a fifth of its time, and through all of its stop.
    waited = [
        0.2 * (own_time.read(moment) - T0) + (10.25 if moment > T0 + 40.5 else 0.0) for moment in at
    ]
    none = [None] * len(at)
    settled = settle(CounterReadings(at, steps, none, waited, none, None, own_time))
    assert settled.paused_s == 0, "its stop is no pause of its own"
    assert compute_rate(settled.intervals).steps_per_s == pytest.approx(10)
    assert compute_data_share(settled.intervals) == pytest.approx(0.2)
    seen = settle(CounterReadings(at, steps, none, waited, none))
    assert seen.paused_s > 9, "without what its runner wrote it would be one"


def test_windows_are_joined_only_over_a_stop() -> None:
    clock = OwnTime([(T0 + 10.1, T0 + 12.3), (T0 + 20, T0 + 21)])
    windows = [(T0, T0 + 10.1), (T0 + 12.3, T0 + 20), (T0 + 21.5, T0 + 30)]
    assert clock.bridge(windows) == [(T0, T0 + 20), (T0 + 21.5, T0 + 30)]


def test_a_moment_alone_is_one_in_which_all_others_were_stopped() -> None:
    stops = {1: [(20.0, 22.5)], 2: [(10.0, 12.5)], 3: [(10.0, 12.5), (20.0, 22.5)]}
    stays = [Stay(0, 30, number) for number in stops]
    present = [
        part for stay in stays for part in leave_out_stops([stay], OwnTime(stops[stay.member]))
    ]
    phases = compute_phases(present)
    assert find_alone(phases, 1) == [], "too short for a margin of 2 s"
    assert find_briefly_alone(phases, 1, ()) == [(10.3, 12.5)]
    assert find_briefly_alone(phases, 2, ()) == [(20.3, 22.5)]
    assert find_briefly_alone(phases, 3, ()) == []
    assert find_briefly_alone(phases, 1, [(12.0, 16.0)]) == [(10.3, 12.0)], "one may have come"
    track = Track([10.0, 11.0, 12.0, 13.0], [0.9, 0.8, 0.2, 0.9])
    assert track.select_whole(find_briefly_alone(phases, 1, ())) == [0.2]
    assert track.select_whole([(9.0, 13.0)]) == [0.8, 0.2, 0.9]
    assert Track([10.0, 11.0, 12.0], [0.9, None, 0.2]).select_whole([(10.0, 12.0)]) == [0.2]
