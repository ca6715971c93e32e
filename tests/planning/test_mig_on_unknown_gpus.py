"""MIG where Slurm does not tell the GPU's memory: limits are those of the GPU that is assumed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Plan, Policy, SharingMode, UsageProfile
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from slurm_colloc.planning.planned_gpu import choose_planned_gpu

from .known_jobs import CALIBRATION, ROOMY, SMALL, build_call, build_job, build_profile

NOWHERE = dataclasses.replace(ROOMY, gpu_memory_mb=None)
MODELS = ["NVIDIA A30", "NVIDIA H200", "NVIDIA B200", "NVIDIA A100-SXM4-80GB", ""]
SHARES = st.floats(0.01, 1.0)
PROFILES = st.builds(
    build_profile,
    SHARES,
    SHARES,
    SHARES,
    gpu_memory_peak_mb=st.integers(500, 200_000),
    run_s=st.none() | st.sampled_from([300.0, 600.0, 5000.0]),
    gpu_model=st.sampled_from(MODELS),
)
JOBS = st.builds(
    build_job,
    st.just(1),
    gpu_memory_mb=st.none() | st.integers(500, 200_000),
    gpu_type=st.sampled_from([None, None, "a30", "h200"]),
    max_slowdown=st.sampled_from([None, 9.0]),
)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    call=st.lists(st.tuples(JOBS, st.none() | PROFILES), min_size=2, max_size=8),
    gpu_memory_mb=st.none() | st.none() | st.sampled_from([24_576, 81_559, 143_771, 183_359]),
    degree=st.integers(1, 7),
    pack_size=st.none() | st.integers(2, 9),
    may_cut=st.booleans(),
    has_calibration=st.booleans(),
)
def test_whatever_the_gpu_each_member_has_an_instance_that_holds_it(
    *,
    call: list[tuple[Job, UsageProfile | None]],
    gpu_memory_mb: int | None,
    degree: int,
    pack_size: int | None,
    may_cut: bool,
    has_calibration: bool,
) -> None:
    jobs = [dataclasses.replace(job, number=n) for n, (job, _) in enumerate(call, 1)]
    profiles = {index: profile for index, (_, profile) in enumerate(call) if profile is not None}
    mode = SharingMode.MPS if may_cut else SharingMode.MIG
    policy = Policy(
        mode=mode,
        modes=(mode,),
        degree=degree,
        degree_max=7,
        pack_size=pack_size,
        slowdown_bound=9.0,
        may_cut=may_cut,
    )
    capacity = dataclasses.replace(ROOMY, gpu_memory_mb=gpu_memory_mb)
    calibration = CALIBRATION if has_calibration else None
    made = plan(jobs, profiles, capacity, policy, calibration)
    build_explanation(made, jobs, profiles, capacity, policy, calibration)
    for pack in made.packs:
        if pack.mode is not SharingMode.MIG:
            continue
        rooms_mb = {one.word: one.memory_mb for one in pack.layout}
        for member in pack.members:
            room_mb = rooms_mb[member.instance]
            assert room_mb is None or (member.gpu_memory_limit_mb or 0) <= room_mb


def make(
    jobs: list[Job],
    known: dict[int, UsageProfile],
    capacity: Capacity = NOWHERE,
    pack_size: int | None = None,
) -> Plan:
    policy = Policy(
        mode=SharingMode.MIG,
        modes=(SharingMode.MIG,),
        degree_max=7,
        pack_size=pack_size,
        slowdown_bound=9.0,
    )
    return plan(jobs, known, capacity, policy, CALIBRATION)


def test_a_job_that_no_instance_of_the_assumed_gpu_holds_runs_alone() -> None:
    huge = dataclasses.replace(SMALL, gpu_memory_peak_mb=150_000)
    jobs, known = build_call(("huge", huge), ("a", SMALL), ("b", SMALL))
    lone, shared = make(jobs, known).packs
    assert [member.job_index for member in lone.members] == [0]
    assert lone.mode is SharingMode.EXCLUSIVE
    assert not lone.layout
    assert len(shared.members) == 2
    assert shared.mode is SharingMode.MIG


@pytest.mark.parametrize("pack_size", [None, 3])
def test_a_job_that_no_instance_holds_is_told_what_the_largest_has(pack_size: int | None) -> None:
    jobs = [build_job(n, gpu_memory_mb=mb, gpu_type="h200") for n, mb in ((1, 140_000), (2, 9000))]
    lone, _ = make(jobs, {}, pack_size=pack_size).packs
    told = " ".join(lone.reasons)
    assert "140000 MB of GPU memory, which no MIG instance of h200 holds: the largest has room" in (
        told
    )
    assert "136192 MB" in told


def test_a_gpu_with_four_slices_has_four_instances() -> None:
    tiny = dataclasses.replace(SMALL, gpu_memory_peak_mb=1000, gpu_model="NVIDIA A30")
    jobs, known = build_call(*[("tiny", tiny)] * 7)
    for capacity in (NOWHERE, dataclasses.replace(ROOMY, gpu_memory_mb=24_576)):
        made = make(jobs, known, capacity)
        assert max(len(pack.members) for pack in made.packs) == 4


def test_equal_instances_have_the_room_of_the_largest_profile_that_fits_so_often() -> None:
    rooms = choose_planned_gpu(None, ("NVIDIA H200",)).equal_rooms_mb
    assert [None if mb is None else round(mb / 950) for mb in rooms[1:]] == [
        143, 71, 33, 33, 16, 16, 16,
    ]  # fmt: skip
    assert choose_planned_gpu(None).equal_rooms_mb == (0, *[None] * 7)
