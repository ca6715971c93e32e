"""Steps in a window, cores, power and arguments are computed right."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc_lab.calibration.gpu_bench import give_cores
from slurm_colloc_lab.calibration.training_window import choose_unit, measure
from slurm_colloc_lab.calibration.whole_gpu import compute_power


def test_steps_at_the_ends_of_a_window_lie_on_straight_lines() -> None:
    ran = measure([(0.0, 0, 0.0), (1.0, 10, 0.5), (3.0, 20, 1.5)], 0.5, 2.0)
    assert ran.steps == pytest.approx(15 - 5)
    assert ran.cpu_s == pytest.approx(1.0 - 0.25)
    assert ran.units == 1
    assert ran.window_s == 1.5


@given(st.floats(0.1, 1000), st.lists(st.floats(0.001, 1), min_size=3, max_size=50))
def test_a_steady_training_has_its_rate_in_every_window(rate: float, gaps: list[float]) -> None:
    points = [(0.0, 0.0, 0.0)]
    for gap in gaps:
        moment = points[-1][0] + gap
        points.append((moment, rate * moment, moment))
    begin, end = points[-1][0] * 0.3, points[-1][0] * 0.9
    assert math.isclose(measure(points, begin, end).steps, rate * (end - begin), rel_tol=1e-6)


def test_a_window_that_was_not_seen_whole_has_no_rate() -> None:
    for begin, end in ((-1.0, 0.5), (0.5, 2.0)):
        with pytest.raises(ValueError, match="whole window"):
            measure([(0.0, 0, 0.0), (1.0, 10, 0.5)], begin, end)


def test_the_gpu_is_waited_for_every_20_ms_or_every_step() -> None:
    assert [choose_unit(step_s) for step_s in (0.0, 0.001, 0.009, 0.5)] == [1, 20, 2, 1]


def test_cores_are_disjoint_while_they_last() -> None:
    assert give_cores([1, 3, 1], range(8)) == ([(0,), (1, 2, 3), (4,)], False)
    assert give_cores([1, 1, 1], (5, 7)) == ([(5,), (7,), (5,)], True)
    assert give_cores([3], (5,)) == ([(5,)], True)


def test_power_comes_from_moments_at_which_the_counter_moved() -> None:
    readings = [(0.0, 100.0), (0.05, 100.0), (0.1, 130.0), (0.2, 130.0), (0.3, 190.0)]
    assert compute_power(readings) == pytest.approx(300.0)
    assert compute_power(readings[:3]) is None
    assert compute_power([]) is None
