"""`--goal=energy`: what a GPU draws by itself is saved; no other goal's plan takes less."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Capacity, Goal, Plan, UsageProfile
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.pack_pricing import Pricing
from slurm_colloc.planning.pack_search import SUBJECTS_MAX, partition
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from tests.planning import coefficients, known_jobs
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_job
from tests.planning.subjects import make_pricing, make_subjects

slow = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
LACK = "GPU time counts in place of energy"


def plan_for(
    goal: Goal, profiles: list[UsageProfile], capacity: Capacity = ROOMY, **changes: object
) -> tuple[Plan, PlanExplanation]:
    policy = dataclasses.replace(POLICY, goal=goal, **changes)  # type: ignore[arg-type]
    jobs = [build_job(n) for n in range(1, len(profiles) + 1)]
    known = dict(enumerate(profiles))
    made = plan(jobs, known, capacity, policy, CALIBRATION)
    return made, build_explanation(made, jobs, known, capacity, policy, CALIBRATION)


def sum_energy_wh(explanation: PlanExplanation) -> float:
    energies = [pack.energy_wh for pack in explanation.packs]
    assert None not in energies
    return sum(energy for energy in energies if energy is not None)


@pytest.mark.long
@slow
@given(
    profiles=st.lists(known_jobs.SOUND_PROFILES, min_size=2, max_size=6),
    powers=st.lists(st.floats(80, 500), min_size=6, max_size=6),
    capacity=known_jobs.CAPACITIES,
    other=st.sampled_from([Goal.THROUGHPUT, Goal.LATENCY]),
)
def test_no_other_goal_s_plan_takes_less_energy(
    profiles: list[UsageProfile], powers: list[float], capacity: Capacity, other: Goal
) -> None:
    known = [
        dataclasses.replace(
            profile,
            power_w=power_w,
            idle_power_w=75.0,
            run_s=profile.run_s or 600.0,
            sm_activity=max(0.01, profile.sm_activity or 0.0),
        )
        for profile, power_w in zip(profiles, powers, strict=False)
    ]
    energy = sum_energy_wh(plan_for(Goal.ENERGY, known, capacity)[1])
    assert energy <= sum_energy_wh(plan_for(other, known, capacity)[1]) * (1 + 1e-4)


def test_energy_is_saved_where_throughput_would_not() -> None:
    hardly = {"sm_activity": 0.02, "engine_activity": 0.2, "power_w": 80.0}
    busy = {"sm_activity": 0.1, "engine_activity": 0.5}
    profiles = [
        dataclasses.replace(SMALL, **kind, run_s=run_s)  # type: ignore[arg-type]
        for kind, run_s in (
            (hardly, 1200.0),
            (hardly, 300.0),
            (busy, 1200.0),
            ({**busy, "power_w": 80.0}, 1200.0),
        )
    ]
    bounds: dict[str, Any] = {"degree": 2, "degree_max": 2, "slowdown_bound": 3.0}
    _, saving = plan_for(Goal.ENERGY, profiles, **bounds)
    _, fast = plan_for(Goal.THROUGHPUT, profiles, **bounds)
    assert sum_energy_wh(saving) < 0.96 * sum_energy_wh(fast)
    # Those of little power for a long time are together, not each with one of much.
    assert [{m.job_index for m in pack.members} for pack in saving.packs] != [
        {m.job_index for m in pack.members} for pack in fast.packs
    ]
    alone = sum_energy_wh(plan_for(Goal.ENERGY, profiles, degree=1, degree_max=1)[1])
    assert sum_energy_wh(saving) < 0.8 * alone


def divide_by(goal: Goal, of: Sequence[Subject]) -> float:
    """The energy in joules of the packs that a goal's search finds."""
    pricing = make_pricing(of, goal=goal)
    priced = [pricing.price(pack) for pack in partition(pricing)]
    return sum(one.energy_j for one in priced if one and one.energy_j is not None)


@pytest.mark.long
@pytest.mark.parametrize(("count", "seed"), [(30, 1), (100, 0)])
@pytest.mark.parametrize("powers_w", [(100.0, 300.0), (3.0, 10.0, 40.0, 300.0)])
def test_among_many_no_other_goal_s_packs_take_clearly_less_energy(
    count: int, seed: int, powers_w: Sequence[float]
) -> None:
    chance = random.Random(seed)
    many = [
        dataclasses.replace(
            subject,
            load=dataclasses.replace(subject.load, power_w=chance.choice(powers_w)),  # type: ignore[type-var]
        )
        for subject in make_subjects(count, seed)
    ]
    saving = divide_by(Goal.ENERGY, many)
    assert saving <= divide_by(Goal.THROUGHPUT, many) * 1.01
    alone = [make_pricing([subject], goal=Goal.ENERGY).price([0]) for subject in many]
    assert saving < 0.9 * sum(one.cost for one in alone if one)


def test_jobs_that_take_no_energy_at_all_are_divided() -> None:
    # More than the exact search takes.
    count = SUBJECTS_MAX + 1
    calibration = dataclasses.replace(coefficients.CALIBRATION, idle_power_w=0.0)
    many = [
        dataclasses.replace(
            subject,
            load=dataclasses.replace(subject.load, power_w=0.0),  # type: ignore[type-var]
        )
        for subject in make_subjects(count)
    ]
    parts = partition(Pricing(many, coefficients.LIMITS, calibration, goal=Goal.ENERGY))
    assert sorted(i for pack in parts for i in pack) == list(range(count))


@pytest.mark.parametrize("lacking", [None, float("nan")])
def test_where_a_power_is_unknown_gpu_time_counts_and_the_plan_says_so(
    lacking: float | None,
) -> None:
    unknown = dataclasses.replace(SMALL, power_w=lacking)
    made, explanation = plan_for(Goal.ENERGY, [SMALL, unknown, unknown])
    by_time, _ = plan_for(Goal.THROUGHPUT, [SMALL, unknown, unknown])
    told = f"what power job2 and 1 more would draw is not known: {LACK}"
    assert all(pack.reasons[-2] == told for pack in made.packs)
    assert [pack.members for pack in made.packs] == [pack.members for pack in by_time.packs]
    assert [pack.energy_wh for pack in explanation.packs] == [None]
    plain, _ = plan_for(Goal.ENERGY, [SMALL] * 3)
    assert not any(LACK in reason for pack in plain.packs for reason in pack.reasons)


def test_where_the_idle_power_is_unknown_gpu_time_counts_and_the_plan_says_so() -> None:
    calibration = dataclasses.replace(CALIBRATION, idle_power_w=None)
    policy = dataclasses.replace(POLICY, goal=Goal.ENERGY)
    jobs = [build_job(1), build_job(2)]
    made = plan(jobs, {0: SMALL, 1: SMALL}, ROOMY, policy, calibration)
    assert made.packs[0].reasons[-2] == f"the power of the idle GPU is not known: {LACK}"
