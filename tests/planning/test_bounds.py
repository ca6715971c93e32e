"""How much slower each job may get: its own words, else the policy's."""

from __future__ import annotations

import dataclasses

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import MemberPlan, PackPlan, PackRequest, SharingMode, UsageProfile
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.join_fit import (
    RunningPack,
    merge_policies,
    plan_pending_join,
    plan_running_join,
    settle_bound,
)
from slurm_colloc.planning.plan_packs import plan

from .known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_job


def build_jobs(*bounds: float | None) -> list[Job]:
    return [build_job(number, max_slowdown=bound) for number, bound in enumerate(bounds, 1)]


def know(jobs: list[Job]) -> dict[int, UsageProfile]:
    return dict.fromkeys(range(len(jobs)), SMALL)


def test_one_that_accepts_nothing_runs_alone_and_the_others_share() -> None:
    jobs = build_jobs(None, 1.0, None, 2.0)
    made = plan(jobs, know(jobs), ROOMY, POLICY, CALIBRATION)
    members = {tuple(sorted(m.job_index for m in pack.members)) for pack in made.packs}
    assert members == {(1,), (0, 2, 3)}
    bounds = {m.job_index: m.max_slowdown for pack in made.packs for m in pack.members}
    assert bounds == {0: 1.5, 1: 1.0, 2: 1.5, 3: 2.0}
    shared = next(pack for pack in made.packs if len(pack.members) == 3)
    assert any("(bounds 1.5 to 2)" in reason for reason in shared.reasons)


def test_one_that_accepts_more_is_not_held_back_by_the_default() -> None:
    strict = dataclasses.replace(POLICY, slowdown_bound=1.0)
    said_nothing, generous = build_jobs(None, None), build_jobs(3.0, 3.0)
    assert len(plan(said_nothing, know(said_nothing), ROOMY, strict, CALIBRATION).packs) == 2
    assert len(plan(generous, know(generous), ROOMY, strict, CALIBRATION).packs) == 1


def test_the_time_of_an_unknown_member_is_stretched_by_its_own_bound() -> None:
    jobs = build_jobs(None, 1.2, 3.0)
    (pack,) = plan(jobs, {}, ROOMY, POLICY).packs
    assert [member.wall_limit_s for member in pack.members] == [1800, 1440, 3600]
    assert [member.max_slowdown for member in pack.members] == [None, 1.2, 3.0]
    assert pack.request is not None
    assert pack.request.time_limit_s == 3600 + POLICY.start_margin_s
    short = dataclasses.replace(ROOMY, time_limit_max_s=1300)
    (pack,) = plan(jobs, {}, short, POLICY).packs
    assert any(reason.endswith("stretched by 1.2 to 3") for reason in pack.reasons)


def join_waiting(present: list[Job], new: Job, pack_bound: float, call_bound: float) -> object:
    pack = dataclasses.replace(POLICY, slowdown_bound=pack_bound)
    call = dataclasses.replace(POLICY, slowdown_bound=call_bound)
    jobs = [*present, settle_bound(new, pack, call)]
    return plan_pending_join(
        Question(jobs, know(jobs), ROOMY, merge_policies(pack, call), CALIBRATION)
    )


def test_who_joins_a_waiting_pack_brings_its_own_bound_and_changes_nobody_elses() -> None:
    joined = join_waiting(build_jobs(2.0, None), build_job(9), 1.5, 1.3)
    assert isinstance(joined, PackPlan)
    assert [member.max_slowdown for member in joined.members] == [2.0, 1.5, 1.3]
    joined = join_waiting(build_jobs(2.0, None), build_job(9, max_slowdown=4.0), 1.5, 1.3)
    assert isinstance(joined, PackPlan)
    assert [member.max_slowdown for member in joined.members] == [2.0, 1.5, 4.0]


def test_nobody_joins_whom_its_own_bound_or_that_of_one_present_forbids() -> None:
    for theirs, own in ((1.01, None), (None, 1.01)):
        refusal = join_waiting(build_jobs(theirs), build_job(9, max_slowdown=own), 1.5, 1.5)
        assert isinstance(refusal, str)
        assert "--max-slowdown is 1.01" in refusal


def test_a_place_of_a_running_pack_is_had_by_both_sides_own_bounds() -> None:
    def join(present: float | None, new: float | None) -> MemberPlan | str:
        jobs = build_jobs(present, new)
        pack = RunningPack(
            request=PackRequest(1, None, 40, 100_000, 36_000),
            degree=8,
            time_left_s=30_000,
            plans=(MemberPlan(0, 2, 2000, 1800, None, 50, max_slowdown=present),),
            mode=SharingMode.MPS,
        )
        return plan_running_join(pack, Question(jobs, know(jobs), ROOMY, POLICY, CALIBRATION))

    joined = join(None, 2.0)
    assert isinstance(joined, MemberPlan)
    assert joined.max_slowdown == 2.0
    assert "--max-slowdown is 1.01" in str(join(1.01, None))
    assert "--max-slowdown is 1.02" in str(join(None, 1.02))
