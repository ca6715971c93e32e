"""What is measured by pausing, on simulated packs: the degree found is nearly the best there is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.model.measurement import (
    DegreeMeasurement,
    PausableMember,
    Window,
    WindowResult,
    describe_seldom_lines,
    measure_degree,
)

SETTLE_S = 0.3


def run(
    members: Sequence[PausableMember],
    rate: Callable[[int, frozenset[int]], float | None],
    *,
    noise: float = 0.0,
    seed: int = 1,
    pace: Callable[[float], float] = lambda at: 1.0,  # noqa: ARG005
) -> tuple[DegreeMeasurement, list[Window]]:
    """Measure a pack whose members have these rates; a host's pace may change with time."""
    chance = random.Random(seed)
    measuring = measure_degree(members)
    windows, at = [], 0.0
    window = next(measuring)
    while True:
        windows.append(window)
        at += SETTLE_S + window.length_s
        rates: dict[int, float | None] = {}
        for number in window.members:
            found = rate(number, window.members)
            factor = pace(at) * chance.gauss(1.0, noise)
            rates[number] = None if found is None else max(0.0, found * factor)
        try:
            window = measuring.send(WindowResult(rates, SETTLE_S + window.length_s))
        except StopIteration as end:
            return end.value, windows


def make(count: int, **values: object) -> list[PausableMember]:
    return [
        PausableMember(number, **{"kind": "k", "bound": 1.5, **values})  # type: ignore[arg-type]
        for number in range(1, count + 1)
    ]


def saturate(at: float) -> Callable[[int, frozenset[int]], float]:
    """Each has all it wants until as many run; from there they share it."""
    return lambda _, running: 10.0 * min(1.0, at / len(running))


def test_small_ones_all_run_and_the_numbers_are_told() -> None:
    found, windows = run(make(12), lambda *_: 75.0)
    assert found.degree == 12
    assert [(point.degree, point.stp) for point in found.curve] == [
        (1, 1.0),
        (6, pytest.approx(6.0)),
        (12, pytest.approx(12.0)),
    ]
    (alone,) = found.rates_alone
    assert (alone.member, alone.steps_per_s, alone.error) == (1, 75.0, 0.0)
    # Two windows of each, in turn.
    assert [len(window.members) for window in windows] == [1, 12, 6, 1, 12, 6]


def test_what_measuring_costs_is_the_progress_that_was_missed() -> None:
    found, _ = run(make(12), lambda *_: 75.0)
    assert found.cost_s == pytest.approx(2 * 1.3 * (11 / 12) + 2 * 1.3 * 0.5)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 6, 8, 10, 12])
def test_no_more_run_than_the_gpu_has_room_for(at: int) -> None:
    members = make(12, bound=None)
    found, _ = run(members, saturate(at))
    stp = min(at, found.degree)
    assert stp >= 0.9 * at
    # As long as each brings a good part of what it has, it is not worth a longer measurement.
    assert found.degree <= 1.5 * at + 1


def test_a_bound_that_would_be_broken_is_kept() -> None:
    # Four make the most progress that two each can have.
    found, _ = run(make(8, bound=1.5), saturate(4.0))
    assert 4 <= found.degree <= 6
    point = next(point for point in found.curve if point.degree == 8)
    assert point.worst_slowdown == pytest.approx(2.0)
    assert point.worst_bound == 1.5


@pytest.mark.parametrize("seed", range(60))
def test_a_noisy_host_does_not_leave_the_gpu_to_one_or_two(seed: int) -> None:
    # Seven of five kinds keep the bound. Windows of a second differ by a sixth.
    alone = {"residual": 80.0, "loader": 45.0, "trainer": 60.0, "lightning": 170.0, "graph": 130.0}
    kinds = list(alone)
    members = [PausableMember(n, kinds[n % 5], 1.5) for n in range(16)]

    def rate(number: int, running: frozenset[int]) -> float:
        more = len(running) - 1
        return alone[kinds[number % 5]] / (1.0 + 0.05 * more + 0.0055 * more**2)

    host = random.Random(seed)
    found, windows = run(members, rate, noise=0.15, seed=seed, pace=lambda _: host.gauss(1.0, 0.05))
    assert 3 <= found.degree <= 10
    assert len(windows) <= 45


def test_a_known_rate_is_not_measured_again() -> None:
    found, windows = run(make(4, rate_alone=10.0), lambda *_: 10.0)
    assert found.degree == 4
    assert found.rates_alone == ()
    assert all(len(window.members) > 1 for window in windows)


def test_one_that_may_not_be_paused_runs_in_every_window() -> None:
    members = [PausableMember(9, "x", 1.5, 5.0, may_pause=False), *make(4)]
    members = [members[0], *[PausableMember(m.number, "k", 1.5, 10.0) for m in members[1:]]]
    found, windows = run(members, lambda number, _: 5.0 if number == 9 else 10.0)
    assert found.degree == 5
    assert all(9 in window.members for window in windows)


def test_members_of_unlike_kinds_are_each_measured_alone() -> None:
    members = [PausableMember(n, f"k{n}", 1.5) for n in (1, 2, 3, 4)]
    found, _ = run(members, lambda number, _: 10.0 * number)
    assert {rate.member: rate.steps_per_s for rate in found.rates_alone} == {
        1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0,
    }  # fmt: skip
    assert found.degree == 4


def test_slow_steps_are_given_longer_windows() -> None:
    members = [PausableMember(n, "k", 1.5, steps_per_s=2.0) for n in (1, 2)]
    _, windows = run(members, lambda *_: 2.0)
    assert {window.length_s for window in windows} == {4.0}


def test_windows_are_as_long_as_printed_lines_come() -> None:
    members = [PausableMember(n, "k", 1.5, steps_per_s=40.0, line_s=3.0) for n in (1, 2)]
    _, windows = run(members, lambda *_: 40.0)
    assert {window.length_s for window in windows} == {16.0}
    assert describe_seldom_lines(members) == ""
    # One that prints often enough is measured, whatever the others do.
    seldom = PausableMember(3, "x", 1.5, line_s=40.0)
    _, windows = run([*members, seldom], lambda number, _: None if number == 3 else 40.0)
    assert {window.length_s for window in windows} == {30.0}
    assert describe_seldom_lines([*members, seldom]) == ""
    assert "every 40 s" in describe_seldom_lines([seldom])


def test_where_no_steps_are_seen_it_is_said() -> None:
    found, _ = run(make(4), lambda *_: None)
    assert found.problem
    assert found.degree == 4


def test_a_host_that_slows_down_steadily_deceives_none() -> None:
    found, _ = run(make(8), lambda *_: 50.0, pace=lambda at: 1.0 - 0.02 * at)
    assert found.degree == 8


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(2, 24),
    at=st.floats(1.0, 24.0),
    seed=st.integers(0, 1000),
    bound=st.sampled_from([None, 1.2, 1.5, 2.0]),
)
def test_with_noise_it_is_near_the_best(
    count: int, at: float, seed: int, bound: float | None
) -> None:
    found, windows = run(make(count, bound=bound), saturate(at), noise=0.03, seed=seed)
    # Noise may take one for too slow that is not, by as much as it is.
    allowed = [d for d in range(1, count + 1) if d / min(at, d) <= (bound or 100.0) / 1.08]
    most = max(min(at, d) for d in allowed)
    assert min(at, found.degree) >= 0.75 * most
    if bound is not None:
        assert found.degree == 1 or found.degree / min(at, found.degree) <= bound * 1.1
    assert len(windows) < 40


def test_where_two_may_not_be_paused_degrees_in_between_are_found() -> None:
    fixed = [PausableMember(n, "x", 1.5, 10.0, may_pause=False) for n in (1, 2)]
    others = [PausableMember(n, "k", 1.5, 10.0) for n in range(3, 13)]
    found, windows = run([*fixed, *others], saturate(4.0))
    assert 4 <= found.degree <= 6
    assert len(windows) < 24
