"""Slowdown, STP, ANTT, fairness and the same work one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.sharing_cost import (
    compare_with_serial,
    compute_antt,
    compute_fairness,
    compute_mean_stp,
    compute_slowdown,
    compute_solo_time_s,
)

SLOWDOWNS = st.lists(st.floats(1, 100), min_size=1, max_size=64)
RATES = st.floats(1e-3, 1e6)


def test_the_sum_of_normalised_progress_of_a_published_table() -> None:
    """DLRM and ResNet152 under MPS: Robroek, Yousefzadeh-Asl-Miandoab and Tozun, EuroMLSys 2024."""
    slowdowns = [5.57 / 5.36, 1.10 / 1.05]
    stays = [(60, slowdown) for slowdown in slowdowns]
    assert compute_mean_stp(stays, 60) == pytest.approx(1.92, abs=0.005)
    assert compute_antt(slowdowns) == pytest.approx(1.043, abs=0.001)


@given(RATES)
def test_who_is_as_fast_as_alone_has_a_slowdown_of_one(rate: float) -> None:
    assert compute_slowdown(rate, rate) == 1


@given(RATES, RATES)
def test_slowdown_is_solo_over_shared(solo: float, shared: float) -> None:
    assert compute_slowdown(solo, shared) == pytest.approx(solo / shared)


@pytest.mark.parametrize(("solo", "shared"), [(None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0)])
def test_an_unknown_rate_gives_no_slowdown(solo: float | None, shared: float | None) -> None:
    assert compute_slowdown(solo, shared) is None


@given(SLOWDOWNS)
def test_stp_is_at_most_the_number_of_members(slowdowns: list[float]) -> None:
    stp = compute_mean_stp([(60, slowdown) for slowdown in slowdowns], 60)
    antt = compute_antt(slowdowns)
    fairness = compute_fairness(slowdowns)
    assert stp is not None
    assert antt is not None
    assert 0 < stp <= len(slowdowns) + 1e-9
    assert min(slowdowns) - 1e-9 <= antt <= max(slowdowns) + 1e-9
    assert fairness is not None
    jain, min_over_max = fairness
    assert 1 / len(slowdowns) - 1e-9 <= jain <= 1
    assert 0 < min_over_max <= 1


@given(SLOWDOWNS, st.integers(0, 63))
def test_one_unknown_member_makes_all_figures_unknown(slowdowns: list[float], at: int) -> None:
    values: list[float | None] = [*slowdowns]
    values[at % len(values)] = None
    assert compute_antt(values) is None
    assert compute_fairness(values) is None
    assert compute_mean_stp([(1, value) for value in values], 1) is None
    assert compare_with_serial(values, 10) == (None, None)


def test_members_that_take_turns_do_not_add_up() -> None:
    assert compute_mean_stp([(50, 1), (50, 1)], 100) == 1
    assert compute_mean_stp([(100, 2), (50, 1)], 100) == 1
    assert compute_mean_stp([], 0) is None


def test_nothing_is_known_of_no_members() -> None:
    assert compute_antt([]) is None
    assert compute_fairness([]) is None
    assert compare_with_serial([], 10)[0] is None


def test_the_time_alone_keeps_start_and_pauses() -> None:
    assert compute_solo_time_s(100, 80, 800, 20) == 20 + 40
    assert compute_solo_time_s(100, 80, None, 20) is None
    assert compute_solo_time_s(100, 80, 800, None) is None


def test_the_tail_counts_as_shared_time() -> None:
    """Two members that need 100 s each; one runs at half speed and finishes alone."""
    serial_s, hours_saved = compare_with_serial([100, 100], 150)
    assert serial_s == 200
    assert hours_saved == pytest.approx(50 / 3600)
    loss = compare_with_serial([100, 100], 250)[1]
    assert loss is not None
    assert loss < 0
