"""What keeps two jobs apart that share with nobody, or that a rule of others divides."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Capacity, Policy, Rule, UsageProfile
from slurm_colloc.planning.plan_packs import plan
from tests.planning import known_jobs
from tests.planning.explained import explain_jobs
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
    build_job,
)

slow = settings(suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.long
@slow
@given(
    profiles=st.lists(known_jobs.SOUND_PROFILES, min_size=2, max_size=8),
    rule=st.sampled_from([Rule.ADDITIVE, Rule.CARMA]),
    capacity=known_jobs.CAPACITIES,
)
def test_a_rule_divides_those_of_whom_a_limit_is_told_and_no_others(
    profiles: list[UsageProfile], rule: Rule, capacity: Capacity
) -> None:
    jobs = [build_job(number) for number in range(1, len(profiles) + 1)]
    known = dict(enumerate(profiles))
    policy = dataclasses.replace(POLICY, rule=rule)
    for pair in explain_jobs(jobs, known, policy, capacity).pairs:
        members = sorted({pair.first_index, pair.second_index, *pair.pack_indices})
        if {broken.constraint for broken in pair.broken} == {"unknown"}:
            continue
        # The rule again, with nobody else in the call.
        again = plan(
            [jobs[index] for index in members],
            {place: profiles[index] for place, index in enumerate(members)},
            capacity,
            policy,
            CALIBRATION,
        )
        constraints = {broken.constraint for broken in pair.broken}
        assert (len(again.packs) == 1) == (constraints == {"order"}), pair.text
        for broken in pair.broken:
            if broken.constraint == "order" or capacity.gpu_memory_mb is None:
                continue
            assert broken.have is not None
            assert broken.limit is not None


def test_the_sums_of_the_additive_rule_are_told() -> None:
    policy = dataclasses.replace(POLICY, rule=Rule.ADDITIVE)
    (pair,) = explain_jobs(*build_call(("a", LARGE), ("b", LARGE)), policy).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("rule", 1.26, 1.0)]
    assert pair.text == "engine activities add up to 1.26, the rule additive allows 1"


def test_what_carma_looks_at_is_told() -> None:
    policy = dataclasses.replace(POLICY, rule=Rule.CARMA)
    (pair,) = explain_jobs(*build_call(("a", SATURATING), ("b", SMALL)), policy).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("rule", 0.95, 0.8)]
    assert "SM activities add up to 0.95 and those of DRAM to 0.50" in pair.text
    capacity = dataclasses.replace(ROOMY, gpu_memory_mb=19_000)
    (pair,) = explain_jobs(*build_call(("a", SMALL), ("b", SMALL)), policy, capacity).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [
        ("rule", 8824 + 2048, 19_000 - 8824)
    ]


def test_a_rule_cannot_tell_of_a_job_that_nobody_measured() -> None:
    policy = dataclasses.replace(POLICY, rule=Rule.CARMA)
    (pair,) = explain_jobs(*build_call(("a", SMALL), ("new", None)), policy).pairs
    assert [b.constraint for b in pair.broken] == ["unknown"]
    assert "what new uses of a GPU is not known: the rule carma cannot tell" in pair.text


@pytest.mark.parametrize(
    ("changes", "policy", "numbers"),
    [
        ({"gpus": 2}, POLICY, (2, 1)),
        ({}, dataclasses.replace(POLICY, degree=1), (2, 1)),
        ({}, dataclasses.replace(POLICY, pack_time_max_s=600), (1200, 600)),
        ({"came_together": False}, POLICY, (None, None)),
    ],
)
def test_who_shares_with_nobody_is_told_with_both_numbers(
    changes: dict[str, object], policy: Policy, numbers: tuple[float | None, float | None]
) -> None:
    jobs, known = build_call(("a", SMALL), ("b", SMALL))
    jobs = [dataclasses.replace(job, **changes) for job in jobs]  # type: ignore[arg-type]
    (pair,) = explain_jobs(jobs, known, policy).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("alone", *numbers)]
    assert pair.text.startswith("each runs alone: ")


def test_each_of_two_that_share_with_nobody_has_its_own_reason() -> None:
    jobs, known = build_call(("a", SMALL), ("b", SMALL))
    jobs[0] = dataclasses.replace(jobs[0], gpus=2)
    jobs[1] = dataclasses.replace(jobs[1], time_limit_s=7200)
    (pair,) = explain_jobs(jobs, known, dataclasses.replace(POLICY, pack_time_max_s=3600)).pairs
    assert [(b.have, b.limit) for b in pair.broken] == [(2, 1), (7200, 3600)]
    assert pair.text.startswith("a runs alone: it asks for 2 GPUs")
    assert "; b runs alone: it asks for 7200 s, packs get 3600 s here" in pair.text
