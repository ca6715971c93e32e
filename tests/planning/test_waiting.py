"""Packs with more members than places: what is predicted of those that run together in them."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Capacity, PackPlan, Plan, Policy, UsageProfile
from slurm_colloc.planning.broken_limits import predict_setting
from slurm_colloc.planning.hard_limits import Setting
from slurm_colloc.planning.job_needs import build_subject
from slurm_colloc.planning.plan_packs import ask, plan
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_call

HEAVIER = dataclasses.replace(SMALL, sm_activity=0.21, dram_activity=0.12, engine_activity=0.38)
MARGIN = CALIBRATION.residual


def make(
    profiles: Sequence[UsageProfile],
    *,
    capacity: Capacity = ROOMY,
    size: int = 24,
    bound: float = 1.5,
    degree: int | None = None,
) -> Plan:
    jobs, known = build_call(*(("small", profile) for profile in profiles))
    policy = dataclasses.replace(POLICY, pack_size=size, slowdown_bound=bound)
    if degree is not None:
        policy = dataclasses.replace(policy, degree=degree, degree_is_asked=True)
    return plan(jobs, known, capacity, policy, CALIBRATION)


def find_worst(pack: PackPlan, profiles: Sequence[UsageProfile], chance: random.Random) -> float:
    """The largest slowdown among members of a pack that may come to run at once."""
    jobs, known = build_call(*(("small", profile) for profile in profiles))
    question = ask(jobs, known, ROOMY, POLICY, CALIBRATION)
    subjects = [build_subject(question, member.job_index) for member in pack.members]
    percentages = tuple(member.thread_percentage for member in pack.members[: pack.degree])
    worst = 1.0
    for _ in range(20):
        running = chance.sample(subjects, pack.degree)
        slowdowns = predict_setting(running, Setting(pack.mode, percentages), CALIBRATION)
        assert slowdowns is not None
        worst = max(worst, *slowdowns)
    return worst


@pytest.mark.parametrize(
    "odd",
    [
        HEAVIER,
        dataclasses.replace(SMALL, sensitivity=0.6),
        dataclasses.replace(SMALL, pressure=0.6),
        dataclasses.replace(SMALL, cpu_cores=12.0),
        dataclasses.replace(SMALL, power_w=600.0),
    ],
    ids=["heavier", "sensitive", "pressing", "many cores", "much power"],
)
@pytest.mark.parametrize("odd_first", [True, False])
def test_whoever_runs_together_keeps_the_bound(odd: UsageProfile, odd_first: bool) -> None:
    bound = 1.25
    some, many = [odd] * 8, [SMALL] * 16
    profiles = [*some, *many] if odd_first else [*many, *some]
    packs = make(profiles, bound=bound).packs
    assert sum(len(pack.members) for pack in packs) == 24
    for pack in packs:
        assert pack.predicted_slowdown is not None
        assert max(pack.predicted_slowdown) * (1 + MARGIN) <= bound * (1 + 1e-4)
        if pack.degree < len(pack.members):
            worst = find_worst(pack, profiles, random.Random(1))
            assert worst * (1 + MARGIN) <= bound * (1 + 1e-4)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40, deadline=None)
@given(
    kinds=st.lists(
        st.builds(
            lambda more, sensitivity, pressure: dataclasses.replace(
                SMALL,
                sm_activity=0.08 + more,
                engine_activity=0.29 + more,
                sensitivity=sensitivity,
                pressure=pressure,
            ),
            st.floats(0.0, 0.09),
            st.sampled_from([0.0, 0.02, 0.09]),
            st.sampled_from([0.0, 0.02, 0.09]),
        ),
        min_size=1,
        max_size=4,
    ),
    bound=st.sampled_from([1.1, 1.3, 1.6, 3.0]),
    degree=st.integers(2, 6),
    chance=st.randoms(use_true_random=False),
)
def test_what_is_predicted_holds_for_any_who_run_at_once(
    kinds: list[UsageProfile], bound: float, degree: int, chance: random.Random
) -> None:
    profiles = [chance.choice(kinds) for _ in range(14)]
    for pack in make(profiles, bound=bound, degree=degree, size=8).packs:
        assert pack.predicted_slowdown is not None
        assert max(pack.predicted_slowdown) * (1 + MARGIN) <= bound * (1 + 1e-4)
        if pack.degree < len(pack.members):
            assert find_worst(pack, profiles, chance) <= max(pack.predicted_slowdown) * 1.02


def test_why_nobody_waits_is_said_with_both_numbers() -> None:
    packs = make([HEAVIER] * 8 + [SMALL] * 16, bound=1.25).packs
    assert all(len(pack.members) == pack.degree for pack in packs)
    told = [reason for pack in packs for reason in pack.reasons if "wait" in reason]
    assert told
    named = re.compile(r"no job waits in it: small \d+ would be slowed down 1\.")
    assert all(named.search(reason) for reason in told)
    assert all("--max-slowdown is 1.25" in reason for reason in told)
    unlike = make([dataclasses.replace(SMALL, sensitivity=0.2)] * 4 + [SMALL] * 20, bound=3.0)
    assert any("take each other's places" in r for pack in unlike.packs for r in pack.reasons)


@pytest.mark.parametrize("limit_s", [900, 1500, 2100, 2800, 3600])
@pytest.mark.parametrize("time_limit_s", [None, 1200])
def test_a_pack_with_waiting_members_ends_within_max_time(
    limit_s: int, time_limit_s: int | None
) -> None:
    jobs, known = build_call(*[("small", SMALL)] * 24)
    jobs = [dataclasses.replace(job, time_limit_s=time_limit_s) for job in jobs]
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=limit_s, time_limit_default_s=None)
    policy = dataclasses.replace(POLICY, degree=4, degree_is_asked=True, pack_size=24)
    packs = plan(jobs, known, capacity, policy, CALIBRATION).packs
    assert sum(len(pack.members) for pack in packs) == 24
    rounds = 1
    for pack in packs:
        assert pack.predicted_finish_s is not None
        assert pack.predicted_finish_s * (1 + MARGIN) <= limit_s - policy.start_margin_s
        rounds = max(rounds, -(-len(pack.members) // pack.degree))
    if time_limit_s is None:
        # Not one more round than would end in time, but as many as do.
        assert packs[0].predicted_slowdown is not None
        one_s = 600 * packs[0].predicted_slowdown[0] * (1 + MARGIN)
        assert rounds == max(1, min(6, int((limit_s - policy.start_margin_s) / one_s)))


def test_a_pack_that_was_cut_at_max_time_says_so() -> None:
    jobs, known = build_call(*[("small", SMALL)] * 24)
    jobs = [dataclasses.replace(job, time_limit_s=None) for job in jobs]
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=1500, time_limit_default_s=None)
    policy = dataclasses.replace(POLICY, degree=4, degree_is_asked=True, pack_size=24)
    packs = plan(jobs, known, capacity, policy, CALIBRATION).packs
    assert [len(pack.members) for pack in packs] == [8, 8, 8]
    assert packs[0].reasons[-2] == (
        "takes no more members: with more than 8 members a pack may last longer than 1440 s"
    )


def test_without_a_measured_length_the_users_words_say_how_many_wait() -> None:
    untimed = dataclasses.replace(SMALL, run_s=None)
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=1500, time_limit_default_s=None)
    packs = make([untimed] * 6, capacity=capacity, degree=2, size=6).packs
    assert {pack.predicted_finish_s for pack in packs} == {None}


def test_a_policy_without_a_pack_size_lets_nobody_wait() -> None:
    jobs, known = build_call(*[("small", SMALL)] * 9)
    policy = Policy(degree=3, degree_is_asked=True, modes=POLICY.modes)
    packs = plan(jobs, known, ROOMY, policy, CALIBRATION).packs
    assert [len(pack.members) for pack in packs] == [3, 3, 3]
    assert not any("wait" in reason for pack in packs for reason in pack.reasons)


def test_nobody_waits_where_packs_without_waiting_members_hold_the_gpu_for_less() -> None:
    # Nine by three are three packs; four in a pack of three places would take two rounds each.
    packs = make([SMALL] * 9, degree=3, size=4).packs
    assert [(len(pack.members), pack.degree) for pack in packs] == [(3, 3)] * 3
    (told,) = {reason for pack in packs for reason in pack.reasons if "no job waits" in reason}
    assert re.search(r"so they would take 30\d\d s of GPU time, 18\d\d s as they are", told)
    # Eight by two are as good in two packs as in four.
    packs = make([SMALL] * 8, degree=2, size=4).packs
    assert [(len(pack.members), pack.degree) for pack in packs] == [(4, 2)] * 2
