"""Which power limit a pack asks for: the least energy per step within the accepted slowdown."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal
from slurm_colloc.model.power_curve import PowerPoint, add_point, find_point, is_lowered
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.power_limit import choose_limit
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_job

FULL_W = 700.0
LIMITS = (700.0, 600.0, 500.0, 400.0, 300.0)
POINTS = st.builds(
    PowerPoint,
    st.sampled_from(LIMITS[1:]),
    st.floats(0.1, 100.0),
    st.floats(50.0, 700.0),
)
FULL = st.builds(PowerPoint, st.just(FULL_W), st.floats(0.1, 100.0), st.floats(50.0, 700.0))
CURVES = st.tuples(FULL, st.lists(POINTS, max_size=4, unique_by=lambda one: one.limit_w)).map(
    lambda both: tuple(sorted([both[0], *both[1]], key=lambda one: -one.limit_w))
)
BOUNDS = st.floats(1.0, 3.0)
FALLING = (PowerPoint(700.0, 10.0, 600.0), PowerPoint(600.0, 9.9, 520.0))


def slow_down(curve: tuple[PowerPoint, ...], limit_w: float) -> float:
    full, point = find_point(curve, FULL_W), find_point(curve, limit_w)
    assert full is not None
    assert point is not None
    return full.steps_per_s / point.steps_per_s


def share(curves: list[tuple[PowerPoint, ...]], limit_w: float) -> float:
    parts = []
    for curve in curves:
        full, point = find_point(curve, FULL_W), find_point(curve, limit_w)
        assert full is not None
        assert point is not None
        parts.append(point.joules_per_step / full.joules_per_step)
    return sum(parts) / len(parts)


@given(curves=st.lists(CURVES, min_size=1, max_size=3), bound=BOUNDS)
def test_the_least_energy_within_the_slowdown(
    curves: list[tuple[PowerPoint, ...]], bound: float
) -> None:
    choice = choose_limit(curves, bound, may_measure=False)
    common = [w for w in LIMITS if all(find_point(curve, w) for curve in curves)]
    chosen = float(choice.limit_w or FULL_W)
    assert chosen in common
    assert all(slow_down(curve, chosen) <= bound for curve in curves)
    for other in common:
        if all(slow_down(curve, other) <= bound for curve in curves):
            assert share(curves, chosen) <= share(curves, other)


@given(curves=st.lists(CURVES, min_size=1, max_size=3), bound=BOUNDS)
def test_what_is_measured_next_stays_within_the_slowdown(
    curves: list[tuple[PowerPoint, ...]], bound: float
) -> None:
    choice = choose_limit(curves, bound)
    known = [w for w in LIMITS if all(find_point(curve, w) for curve in curves)]
    assume(choice.limit_w and float(choice.limit_w) not in known)
    assert "to measure it" in choice.why
    lowest = known[-1]
    assert 0.4 * FULL_W <= choice.limit_w < lowest
    # Even where the rate falls as fast as the limit.
    for curve in curves:
        worst = max(1.0, slow_down(curve, lowest)) * lowest / choice.limit_w
        assert worst <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "curves", [[], [()], [FALLING, ()], [FALLING, (PowerPoint(500.0, 1.0, 400.0),)]]
)
def test_without_a_curve_nothing_is_asked_for(curves: list[tuple[PowerPoint, ...]]) -> None:
    choice = choose_limit(curves, 2.0)
    assert (choice.limit_w, choice.energy_share) == (0, None)
    assert choice.why.startswith("no power limit: a job was not measured alone")


def test_measuring_goes_on_while_energy_falls_and_then_ends() -> None:
    curve: tuple[PowerPoint, ...] = (PowerPoint(700.0, 10.0, 650.0),)
    asked = []
    for _ in range(20):
        choice = choose_limit([curve], 1.5)
        if find_point(curve, choice.limit_w):
            break
        asked.append(choice.limit_w)
        clock = min(1.0, math.cbrt((choice.limit_w - 70) / 580))
        curve = add_point(curve, PowerPoint(choice.limit_w, 10 * clock, choice.limit_w))
    assert asked == sorted(set(asked), reverse=True)
    assert choice.limit_w == min(asked)
    assert slow_down(curve, choice.limit_w) <= 1.5


def test_a_bound_of_one_asks_for_nothing_that_slows() -> None:
    choice = choose_limit([FALLING], 1.0)
    assert choice.limit_w == 0
    assert "within 1.00x" in choice.why


def test_runs_under_one_limit_are_one_point() -> None:
    curve = add_point(FALLING, PowerPoint(600.4, 8.9, 500.0))
    point = find_point(curve, 600.0)
    assert point is not None
    assert (point.runs, point.power_w) == (2, 510.0)
    assert point.steps_per_s == pytest.approx(9.4)
    assert is_lowered(curve, 600.0)
    assert not is_lowered(curve, 700.0)
    assert not is_lowered(curve, None)


@pytest.mark.parametrize("goal", list(Goal))
def test_only_the_goal_of_energy_asks(goal: Goal) -> None:
    profile = dataclasses.replace(SMALL, power_curve=FALLING)
    policy = dataclasses.replace(POLICY, goal=goal)
    made = plan([build_job(1)], {0: profile}, ROOMY, policy, CALIBRATION)
    asks = goal is Goal.ENERGY
    assert bool(made.packs[0].power_limit_w) is asks
    assert bool(made.packs[0].sharing.power) is asks


def test_what_sharing_costs_is_taken_from_the_accepted_slowdown() -> None:
    profile = dataclasses.replace(SMALL, power_curve=FALLING)
    policy = dataclasses.replace(POLICY, goal=Goal.ENERGY)
    jobs = [build_job(n) for n in (1, 2)]
    made = plan(jobs, {0: profile, 1: profile}, ROOMY, policy, CALIBRATION)
    shared = next(pack for pack in made.packs if len(pack.members) == 2)
    assert shared.predicted_slowdown is not None
    room = policy.slowdown_bound / max(shared.predicted_slowdown)
    assert shared.power_limit_w == choose_limit([FALLING], max(1.0, room)).limit_w


@pytest.mark.parametrize(("time_limit_s", "asks"), [(None, True), (2000, True), (1101, False)])
def test_a_job_alone_is_not_slowed_beyond_its_own_time_limit(
    time_limit_s: int | None, asks: bool
) -> None:
    profile = dataclasses.replace(SMALL, power_curve=FALLING, run_s=1000.0)
    policy = dataclasses.replace(POLICY, goal=Goal.ENERGY)
    job = dataclasses.replace(build_job(1), time_limit_s=time_limit_s)
    (pack,) = plan([job], {0: profile}, ROOMY, policy, CALIBRATION).packs
    assert pack.request is None
    assert bool(pack.power_limit_w) is asks, pack.sharing.power


def test_of_a_job_whose_length_is_unknown_the_time_limit_is_not_risked() -> None:
    profile = dataclasses.replace(SMALL, power_curve=FALLING, run_s=None)
    policy = dataclasses.replace(POLICY, goal=Goal.ENERGY)
    job = dataclasses.replace(build_job(1), time_limit_s=3600)
    (pack,) = plan([job], {0: profile}, ROOMY, policy, CALIBRATION).packs
    assert (pack.power_limit_w, pack.sharing.power) == (
        0,
        "no power limit: its time limit may leave no time for one",
    )
