"""Rules of others: no rule breaks a hard limit, and what each goes by stands in its packs."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Capacity, Policy, Rule, SharingMode, UsageProfile
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.hard_limits import (
    MIG_MEMBERS_MAX,
    compute_gpu_memory_limit_mb,
    compute_usable_gpu_memory_mb,
)
from slurm_colloc.planning.job_needs import build_subject
from slurm_colloc.planning.known_packs import weigh
from slurm_colloc.planning.plan_packs import ask, plan
from slurm_colloc.planning.plan_reasons import build_explanation
from slurm_colloc.report.plan_view import compute_plan_figures
from tests.planning import known_jobs
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    POLICY,
    ROOMY,
    SMALL,
    build_call,
    build_job,
)

slow = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
RIVALS = [rule for rule in Rule if rule is not Rule.CSUB]


@pytest.mark.long
@slow
@given(
    profiles=st.lists(known_jobs.SOUND_PROFILES, min_size=2, max_size=10),
    capacity=known_jobs.CAPACITIES
    | known_jobs.CAPACITIES.filter(lambda capacity: capacity.gpu_memory_mb is not None),
    rule=st.sampled_from(Rule),
    mode=st.sampled_from([SharingMode.MPS, SharingMode.TIMESLICE, SharingMode.MIG]),
    pack_size=st.none() | st.integers(2, 10),
)
def test_what_was_measured_of_gpu_memory_fits_under_every_rule(
    profiles: list[UsageProfile],
    capacity: Capacity,
    rule: Rule,
    mode: SharingMode,
    pack_size: int | None,
) -> None:
    jobs = [build_job(n) for n in range(1, len(profiles) + 1)]
    policy = Policy(rule=rule, mode=mode, modes=(mode,), pack_size=pack_size, slowdown_bound=9.0)
    made = plan(jobs, dict(enumerate(profiles)), capacity, policy, CALIBRATION)
    usable_mb = compute_usable_gpu_memory_mb(capacity.gpu_memory_mb)
    shared = [pack for pack in made.packs if pack.degree > 1]
    # Where everybody runs alone there is nothing to look at.
    assume(shared)
    for pack in shared:
        if mode is SharingMode.MIG:
            assert pack.degree <= MIG_MEMBERS_MAX
        needs = [compute_gpu_memory_limit_mb(profiles[m.job_index]) for m in pack.members]
        largest = sorted((need or 0 for need in needs), reverse=True)[: pack.degree]
        if usable_mb is not None:
            assert sum(largest) <= usable_mb
            if pack.mode is SharingMode.MIG:
                assert len(pack.layout) == pack.degree
                by_word = {one.word: one.memory_mb or 0 for one in pack.layout}
                for need, member in zip(needs, pack.members, strict=True):
                    assert (need or 0) <= by_word[member.instance]


def test_first_fit_looks_at_measured_memory_and_at_no_load() -> None:
    policy = dataclasses.replace(POLICY, rule=Rule.FIRST_FIT)
    huge = dataclasses.replace(SMALL, gpu_memory_peak_mb=50_000)
    jobs, known = build_call(*[("huge", huge)] * 4)
    made = plan(jobs, known, ROOMY, policy, CALIBRATION)
    assert [len(pack.members) for pack in made.packs] == [2, 2]
    saturating = dataclasses.replace(LARGE, sm_activity=0.95, engine_activity=1.0)
    jobs, known = build_call(*[("busy", saturating)] * 4)
    made = plan(jobs, known, ROOMY, policy, CALIBRATION)
    assert [len(pack.members) for pack in made.packs] == [4]


@pytest.mark.parametrize("rule", [Rule.CARMA, Rule.ADDITIVE, Rule.FIRST_FIT])
def test_no_more_than_seven_share_by_mig(rule: Rule) -> None:
    policy = dataclasses.replace(
        POLICY, rule=rule, mode=SharingMode.MIG, modes=(), degree=48, slowdown_bound=9.0
    )
    tiny = dataclasses.replace(
        SMALL, sm_activity=0.02, engine_activity=0.03, dram_activity=0.01, gpu_memory_peak_mb=500
    )
    jobs, known = build_call(*[("tiny", tiny)] * 16)
    capacity = dataclasses.replace(ROOMY, cpus_per_gpu=None, host_memory_mb_per_gpu=None)
    made = plan(jobs, known, capacity, policy, CALIBRATION)
    assert max(len(pack.members) for pack in made.packs) == MIG_MEMBERS_MAX


def test_a_rule_s_packs_say_what_it_went_by() -> None:
    for rule, told in (
        (Rule.ADDITIVE, "engine 0.87 and SM 0.36 of 1, DRAM 0.09 of 0.8"),
        (Rule.CARMA, "SM 0.36 of 0.8, DRAM 0.09 of 0.4"),
    ):
        policy = dataclasses.replace(POLICY, rule=rule)
        jobs, known = build_call(*[("small", SMALL)] * 3)
        (pack,) = plan(jobs, known, ROOMY, policy, CALIBRATION).packs
        text = " ".join(pack.reasons)
        assert f"the rule {rule} put them together" in text
        assert told in text, text


@pytest.mark.long
@slow
@given(
    profiles=st.lists(known_jobs.SOUND_PROFILES, min_size=2, max_size=8),
    rule=st.sampled_from(RIVALS),
    mode=st.sampled_from([SharingMode.MPS, SharingMode.TIMESLICE]),
    capacity=known_jobs.CAPACITIES,
)
def test_csub_takes_no_more_gpu_time_than_a_rule_whose_packs_it_may_make(
    profiles: list[UsageProfile], rule: Rule, mode: SharingMode, capacity: Capacity
) -> None:
    known = {
        index: dataclasses.replace(
            profile, run_s=profile.run_s or 900.0, sm_activity=max(0.01, profile.sm_activity or 0)
        )
        for index, profile in enumerate(profiles)
    }
    jobs = [build_job(n) for n in range(1, len(profiles) + 1)]
    policy = Policy(rule=rule, mode=mode, modes=known_jobs.MODES, slowdown_bound=9.0)

    def spend(policy: Policy) -> tuple[PlanExplanation, float | None]:
        made = plan(jobs, known, capacity, policy, CALIBRATION)
        explanation = build_explanation(made, jobs, known, capacity, policy, CALIBRATION)
        return explanation, compute_plan_figures(explanation).gpu_hours

    others, hours = spend(policy)
    own = dataclasses.replace(policy, rule=Rule.CSUB)
    question = ask(jobs, known, capacity, own, CALIBRATION)
    pricing = weigh(question, [build_subject(question, i) for i in range(len(jobs))]).pricing
    # Rules of others know no bound on slowdowns, and no least saving. What they put together
    # beyond that csub may not, even where it takes less GPU time: there is nothing to compare.
    assume(
        all(pricing.price([m.job_index for m in pack.members]) is not None for pack in others.packs)
    )
    _, own_hours = spend(own)
    assert hours is not None
    assert own_hours is not None
    assert own_hours <= hours * (1 + 1e-4)


def test_csub_takes_no_more_gpu_time_than_a_rule_that_keeps_to_its_bounds() -> None:
    # First fit knows no bound, and beyond it packs may be shorter: only where it keeps to that one.
    kinds = [("small", SMALL)] * 6 + [("large", LARGE)] * 3

    def spend(rule: Rule) -> tuple[float, float]:
        policy = dataclasses.replace(POLICY, rule=rule, slowdown_bound=9.0)
        jobs, known = build_call(*kinds)
        made = plan(jobs, known, ROOMY, policy, CALIBRATION)
        explanation = build_explanation(made, jobs, known, ROOMY, policy, CALIBRATION)
        figures = compute_plan_figures(explanation)
        assert figures.gpu_hours is not None
        assert figures.worst_slowdown is not None
        return figures.gpu_hours, figures.worst_slowdown

    own_hours, _ = spend(Rule.CSUB)
    for rule in RIVALS:
        hours, worst = spend(rule)
        assert worst < 9.0
        assert own_hours <= hours
