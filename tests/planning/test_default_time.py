"""What nobody said a time of asks for the partition's DefaultTime, and never beyond MaxTime."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.plan import Capacity, Policy, UsageProfile
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.known_packs import ask_as_pack
from slurm_colloc.planning.pack_request import build_lone_pack
from slurm_colloc.planning.plan_packs import plan
from tests.planning import known_jobs
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_job,
)

slow = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@slow
@given(
    jobs=st.lists(known_jobs.JOBS, min_size=1, max_size=8),
    profiles=st.lists(known_jobs.PROFILES | known_jobs.SOUND_PROFILES | st.none(), max_size=8),
    capacity=known_jobs.CAPACITIES,
    most_s=st.integers(60, 7200),
    over_s=st.integers(1, 100_000),
    policy=known_jobs.POLICIES,
    is_array=st.booleans(),
)
def test_no_request_goes_beyond_max_time_for_the_sake_of_default_time(
    *,
    jobs: list[Job],
    profiles: list[UsageProfile | None],
    capacity: Capacity,
    most_s: int,
    over_s: int,
    policy: Policy,
    is_array: bool,
) -> None:
    capacity = dataclasses.replace(
        capacity, time_limit_max_s=most_s, time_limit_default_s=most_s + over_s
    )
    # A job that asks for more than MaxTime asks for what Slurm will not start.
    asked = [
        dataclasses.replace(
            job,
            number=n,
            time_limit_s=None if job.time_limit_s is None else min(job.time_limit_s, most_s),
            array_task=ArrayTask(n, len(jobs), 1, len(jobs), 1) if is_array else None,
        )
        for n, job in enumerate(jobs, 1)
    ]
    known = {i: profile for i, profile in enumerate(profiles[: len(jobs)]) if profile is not None}
    made = plan(asked, known, capacity, policy, CALIBRATION)
    for pack in made.packs:
        if pack.request is not None:
            assert pack.request.time_limit_s is not None
            assert pack.request.time_limit_s <= most_s
        for member in pack.members:
            assert (
                member.wall_limit_s is None
                or member.wall_limit_s <= most_s
                or (pack.degree < len(pack.members))
            )


def test_a_task_alone_asks_as_a_pack_for_no_more_than_max_time() -> None:
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=1800, time_limit_default_s=86_400)
    jobs = [build_job(n, time_limit_s=None, array_task=ArrayTask(n, 3, 1, 3, 1)) for n in (1, 2, 3)]
    made = plan(jobs, {0: SMALL, 1: LARGE, 2: SATURATING}, capacity, POLICY, CALIBRATION)
    assert sorted(len(pack.members) for pack in made.packs) == [1, 2]
    for pack in made.packs:
        assert pack.request is not None
        assert pack.request.time_limit_s == 1800


def test_what_a_lone_task_asks_for_itself_is_kept() -> None:
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=1800, time_limit_default_s=86_400)
    for asked_s, most_s in ((600, 1800), (None, 1800), (9000, 9999)):
        job = build_job(time_limit_s=asked_s, array_task=ArrayTask(1, 3, 1, 3, 1))
        question = Question([job], {0: SMALL}, capacity, POLICY, CALIBRATION)
        request = ask_as_pack(question, build_lone_pack(0, job, "a reason")).request
        assert request is not None
        assert request.time_limit_s is not None
        assert (asked_s or 1800) <= request.time_limit_s <= most_s
