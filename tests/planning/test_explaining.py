from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    KnownBy,
    Policy,
    UsageProfile,
)
from slurm_colloc.planning.broken_limits import Weighing
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.hard_limits import Broken, Limits, Subject
from slurm_colloc.planning.job_needs import build_limits, build_subject
from slurm_colloc.planning.pack_pricing import SETUP_S, Pricing
from slurm_colloc.planning.pair_reasons import PAIRS_MOST
from slurm_colloc.planning.plan_packs import ask, plan
from slurm_colloc.planning.plan_reasons import build_explanation
from tests.planning import known_jobs
from tests.planning.explained import explain, find_pair
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    MODES,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
    build_job,
)

slow = settings(suppress_health_check=[HealthCheck.too_slow])
CALLS = st.lists(
    st.tuples(known_jobs.JOBS, st.none() | known_jobs.PROFILES | known_jobs.SOUND_PROFILES),
    min_size=2,
    max_size=7,
)
_RELAXED = {
    "cpus": "cpus",
    "host_memory": "host_memory_mb",
    "gpu_memory": "gpu_memory_mb",
    "clients": "members",
    "time": "finish_s",
}


def relax(subjects: list[Subject], limits: Limits, broken: Broken) -> tuple[list[Subject], Limits]:
    """The same with one limit raised to what the pack would come to, and a hair more."""
    assert broken.have is not None
    if broken.constraint == "slowdown":
        raised = broken.have * 1.0001
        return [dataclasses.replace(s, max_slowdown=raised) for s in subjects], limits
    name = _RELAXED[broken.constraint]
    value = broken.have * 1.0001 if name == "finish_s" else int(broken.have)
    return subjects, dataclasses.replace(limits, **{name: value})  # type: ignore[arg-type]


@pytest.mark.long
@slow
@given(call=CALLS, capacity=known_jobs.CAPACITIES, policy=known_jobs.POLICIES)
def test_every_pair_that_was_not_put_together_has_a_reason(
    call: list[tuple[Job, UsageProfile | None]], capacity: Capacity, policy: Policy
) -> None:
    jobs = [job for job, _ in call]
    profiles = {i: profile for i, (_, profile) in enumerate(call) if profile is not None}
    made = plan(jobs, profiles, capacity, policy, CALIBRATION)
    explanation = build_explanation(made, jobs, profiles, capacity, policy, CALIBRATION)
    places = {m.job_index: n for n, pack in enumerate(made.packs) for m in pack.members}
    apart = sum(places[i] != places[j] for i, j in itertools.combinations(range(len(jobs)), 2))
    assert explanation.pairs_left_out == 0
    assert sum(pair.pairs for pair in explanation.pairs) == apart
    for pair in explanation.pairs:
        assert places[pair.first_index] != places[pair.second_index]
        assert pair.broken
        assert pair.text
        assert all(broken.text for broken in pair.broken)


@slow
@given(
    profiles=st.lists(known_jobs.SOUND_PROFILES, min_size=2, max_size=5),
    capacity=known_jobs.CAPACITIES,
    bound=st.sampled_from([1.0, 1.1, 1.5, 2.0]),
    most=st.sampled_from([2, 3, 48]),
)
def test_raising_the_only_limit_that_is_named_makes_the_pack_legal(
    profiles: list[UsageProfile], capacity: Capacity, bound: float, most: int
) -> None:
    jobs = [build_job(n) for n in range(1, len(profiles) + 1)]
    policy = Policy(slowdown_bound=bound, modes=MODES, degree=most, degree_max=most)
    question = ask(jobs, dict(enumerate(profiles)), capacity, policy, CALIBRATION)
    subjects = [build_subject(question, index) for index in range(len(jobs))]
    limits = build_limits(question, subjects)
    weighing = Weighing(subjects, limits, CALIBRATION, modes=MODES)
    names = [job.name for job in jobs]
    everybody = range(len(jobs))
    broken = weighing.find_broken(everybody, names)
    legal = weighing.pricing.price(everybody) is not None
    assert legal == (not broken)
    if len(broken) == 1 and broken[0].constraint in {*_RELAXED, "slowdown"}:
        assert broken[0].limit is not None
        assert broken[0].have is not None
        assert broken[0].have > broken[0].limit
        relaxed, roomier = relax(subjects, limits, broken[0])
        pricing = Pricing(relaxed, roomier, CALIBRATION, modes=MODES)
        assert pricing.price(everybody) is not None


@pytest.mark.parametrize(
    ("constraint", "capacity", "changes"),
    [
        ("gpu_memory", dataclasses.replace(ROOMY, gpu_memory_mb=16_000), {}),
        ("cpus", dataclasses.replace(ROOMY, cpus_per_gpu=3), {}),
        ("host_memory", dataclasses.replace(ROOMY, host_memory_mb_per_gpu=5000), {}),
        ("slowdown", ROOMY, {"slowdown_bound": 1.0}),
    ],
)
def test_the_limit_in_the_way_is_named_with_both_numbers(
    constraint: str, capacity: Capacity, changes: dict[str, float]
) -> None:
    policy = dataclasses.replace(POLICY, **changes)  # type: ignore[arg-type]
    explanation = explain(("a", SMALL), ("b", SMALL), policy=policy, capacity=capacity)
    (pair,) = explanation.pairs
    (broken,) = pair.broken
    assert broken.constraint == constraint
    assert broken.have is not None
    assert broken.limit is not None
    assert broken.have > broken.limit
    assert pair.packs == ()


def test_a_job_over_max_time_is_told_with_both_numbers_and_shares_where_more_is_allowed() -> None:
    jobs, known = build_call(("a", SMALL), ("b", SMALL), ("longer", SMALL), ("endless", SMALL))
    jobs[0] = dataclasses.replace(jobs[0], time_limit_s=9000)
    jobs[1] = dataclasses.replace(jobs[1], time_limit_s=3000)
    jobs[2] = dataclasses.replace(jobs[2], time_limit_s=9600)
    jobs[3] = dataclasses.replace(jobs[3], time_limit_s=None, shape=(("time", "0"),))

    def explain_with(limit_s: int | None) -> PlanExplanation:
        capacity = dataclasses.replace(ROOMY, time_limit_max_s=limit_s)
        made = plan(jobs, known, capacity, POLICY, CALIBRATION)
        return build_explanation(made, jobs, known, capacity, POLICY, CALIBRATION)

    explanation = explain_with(8000)
    for name, asked_s, asked in (("a", 9000, "9000 s"), ("longer", 9600, "9600 s"),
                                 ("endless", None, "no time limit")):  # fmt: skip
        pair = find_pair(explanation, name, "b")
        assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("time", asked_s, 8000)]
        assert (
            f"{name} asks for {asked}, MaxTime here is 8000 s: Slurm will not start it" in pair.text
        )
    with pytest.raises(StopIteration):
        find_pair(explain_with(9000), "a", "b")
    assert {(p.first, p.second) for p in explain_with(None).pairs} == {
        ("a", "endless"),
        ("b", "endless"),
        ("longer", "endless"),
    }


def test_all_limits_that_are_broken_are_named() -> None:
    capacity = dataclasses.replace(ROOMY, gpu_memory_mb=60_000, cpus_per_gpu=3)
    pair = find_pair(explain(("a", SATURATING), ("b", SATURATING), capacity=capacity), "a", "b")
    assert {broken.constraint for broken in pair.broken} == {
        "gpu_memory",
        "cpus",
        "slowdown",
        "cost",
    }


def test_a_pair_that_could_share_is_shown_with_the_pack_that_is_full() -> None:
    policy = dataclasses.replace(POLICY, degree=3, degree_is_asked=True)
    (pair,) = explain(*[("small", SMALL)] * 6, policy=policy).pairs
    assert pair.packs == ("small",) * 3
    assert pair.pairs == 9
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("clients", 4, 3)]


def test_reasons_beside_loads_are_named_too() -> None:
    jobs, known = build_call(("a", SMALL), ("b", SMALL), ("new", None), ("two", SMALL))
    jobs[3] = dataclasses.replace(jobs[3], gpus=2)
    jobs.append(build_job(5, name="far", group=(("partition", "far"),)))
    jobs.append(build_job(6, name="far2", group=(("partition", "far"),)))
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    explanation = build_explanation(made, jobs, known, ROOMY, POLICY, CALIBRATION)
    assert find_pair(explanation, "a", "new").broken[0].constraint == "unknown"
    assert find_pair(explanation, "a", "two").broken[0].constraint == "alone"
    assert find_pair(explanation, "a", "far").broken[0].constraint == "group"


def test_unknown_jobs_are_kept_apart_by_what_their_users_said() -> None:
    (pair,) = explain(*[("new", None)] * 5).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [
        ("clients", 5, 4),
        ("host_memory", 500_000, 400_000),
    ]


def test_a_pack_is_explained_in_figures() -> None:
    explanation = explain(*[("small", SMALL)] * 4)
    (pack,) = explanation.packs
    assert pack.known
    assert pack.gpu_memory_mb == 4 * 8824
    assert pack.gpu_memory_usable_mb == int(143_771 * 0.95)
    assert pack.normalised_progress is not None
    assert 3 < pack.normalised_progress <= 4
    assert pack.sm_activity == pytest.approx(0.12 * pack.normalised_progress)
    for member in pack.members:
        assert member.known_by is KnownBy.EXACT
        assert member.slowdown is not None
        assert member.predicted_steps_per_s == pytest.approx(10.0 / member.slowdown)
        assert member.run_s == 600.0
    assert explanation.pairs == ()


def test_what_is_unknown_is_not_made_up() -> None:
    (pack,) = explain(*[("new", None)] * 2).packs
    assert pack.normalised_progress is None
    assert pack.sm_activity is None
    assert pack.gpu_memory_mb is None
    assert pack.members[0].predicted_steps_per_s is None


def test_of_very_many_kinds_a_few_pairs_are_shown_and_the_others_counted() -> None:
    kinds = [
        (f"j{n}", dataclasses.replace(LARGE, run_s=70.0 * n, gpu_memory_peak_mb=80_000))
        for n in range(1, 17)
    ]
    explanation = explain(*kinds)
    assert len(explanation.pairs) == PAIRS_MOST
    assert explanation.pairs_left_out == 16 * 15 // 2 - PAIRS_MOST


def test_pairs_of_the_same_names_with_the_same_reason_are_told_once() -> None:
    # Of three lengths, and so three kinds.
    heavy = dataclasses.replace(SMALL, gpu_memory_peak_mb=80_000)
    kinds = [("big", dataclasses.replace(heavy, run_s=600.0 + n)) for n in range(3)]
    (pair,) = explain(*kinds).pairs
    assert pair.pairs == 3
    assert (pair.first, pair.second) == ("big", "big")
    assert (pair.first_number, pair.second_number) == (1, 2)
    kinds[2] = ("big", dataclasses.replace(kinds[2][1], gpu_memory_peak_mb=90_000))
    assert sorted(pair.pairs for pair in explain(*kinds).pairs) == [1, 2], "not the same number"


def test_alike_pairs_make_room_for_others() -> None:
    heavy = dataclasses.replace(SMALL, gpu_memory_peak_mb=80_000)
    kinds = [("big", dataclasses.replace(heavy, run_s=600.0 + n)) for n in range(15)]
    explanation = explain(*kinds, ("other", dataclasses.replace(heavy, run_s=590.0)))
    assert {(p.first, p.second): p.pairs for p in explanation.pairs} == {
        ("big", "big"): 105,
        ("big", "other"): 15,
    }
    assert explanation.pairs_left_out == 0


def test_jobs_of_one_name_are_told_apart_in_reasons() -> None:
    (pair,) = explain(("big", SATURATING), ("big", SATURATING)).pairs
    assert "big 2 would be slowed down" in pair.text
    (pair,) = explain(("big", SATURATING), ("large", SATURATING)).pairs
    assert "large would be slowed down" in pair.text


def test_energy_is_what_the_goal_energy_counts() -> None:
    policy = dataclasses.replace(POLICY, goal=Goal.ENERGY)
    kinds = [("small", SMALL), ("large", LARGE), ("small", SMALL)]
    jobs, known = build_call(*kinds)
    (pack,) = explain(*kinds, policy=policy).packs
    question = ask(jobs, known, ROOMY, policy, CALIBRATION)
    subjects = [build_subject(question, index) for index in range(3)]
    limits = build_limits(question, subjects)
    pricing = Pricing(subjects, limits, CALIBRATION, goal=Goal.ENERGY, modes=MODES)
    priced = pricing.price(range(3))
    assert priced is not None
    assert priced.energy_j is not None
    assert pack.energy_wh == pytest.approx(priced.energy_j / 3600)
    # Idle power while it is held, that of a GPU at work, and what the work takes above both.
    finish_s = pack.predicted_finish_s
    assert finish_s is not None
    work_j = 600 * (39 + 229 + 39)
    working_s = finish_s - SETUP_S[pack.mode]
    assert pack.energy_wh == pytest.approx((75 * finish_s + 46 * working_s + work_j) / 3600)


def test_energy_of_jobs_alone_is_their_mean_power() -> None:
    policy = dataclasses.replace(POLICY, degree=1, degree_max=1)
    packs = explain(("small", SMALL), ("large", LARGE), policy=policy).packs
    energies = [pack.energy_wh for pack in packs]
    assert energies == [pytest.approx(160 * 600 / 3600), pytest.approx(350 * 600 / 3600)]


@pytest.mark.parametrize("name", ["power_w", "run_s", "sm_activity"])
def test_energy_is_unknown_where_a_figure_is(name: str) -> None:
    lacking = dataclasses.replace(SMALL, **{name: None})  # type: ignore[arg-type]
    for degree in (1, 4):
        policy = dataclasses.replace(POLICY, degree=degree, degree_max=degree)
        packs = explain(("a", lacking), ("b", lacking), policy=policy).packs
        assert {pack.energy_wh for pack in packs} == {None}


def test_the_idle_gpu_s_power_is_the_calibration_s_where_the_profile_has_none() -> None:
    lacking = dataclasses.replace(SMALL, idle_power_w=None)
    (told,) = explain(("a", SMALL), ("b", SMALL)).packs
    (untold,) = explain(("a", lacking), ("b", lacking)).packs
    assert told.energy_wh is not None
    assert untold.energy_wh == pytest.approx(told.energy_wh)


def test_energy_is_unknown_where_the_idle_power_of_the_gpu_is() -> None:
    jobs, known = build_call(("a", SMALL), ("b", SMALL))
    calibration = dataclasses.replace(CALIBRATION, idle_power_w=None)
    made = plan(jobs, known, ROOMY, POLICY, calibration)
    (pack,) = build_explanation(made, jobs, known, ROOMY, POLICY, calibration).packs
    assert pack.energy_wh is None
