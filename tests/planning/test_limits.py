from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given

from slurm_colloc.model.plan import KnownBy, PeakSource, UsageProfile
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.hard_limits import (
    Limits,
    Subject,
    compute_gpu_memory_limit_mb,
    compute_host_memory_limit_mb,
    find_broken,
)
from slurm_colloc.planning.job_needs import build_load, compute_run_s
from tests.planning import known_jobs
from tests.planning.known_jobs import ROOMY, SMALL, build_job, build_profile


def build_subject(index: int = 0, **changes: object) -> Subject:
    load = Load(engine=0.3, sm=0.2, dram=0.1)
    subject = Subject(index, 2, 1000, 5000, 600.0, load, 1.5)
    return dataclasses.replace(subject, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, math.ceil(6500 * 1.2) + 1024),
        ({"known_by": KnownBy.FAMILY}, math.ceil(6500 * 1.2) + 1024),
        ({"gpu_memory_by": PeakSource.ALLOCATOR}, math.ceil(6500 * 1.2) + 1024),
        ({"gpu_memory_peak_mb": None}, None),
        ({"gpu_memory_peak_mb": 0}, None),
    ],
)
def test_gpu_memory_is_the_peak_with_room(changes: dict[str, object], expected: int | None) -> None:
    profile = dataclasses.replace(SMALL, **changes)  # type: ignore[arg-type]
    assert compute_gpu_memory_limit_mb(profile) == expected


def test_host_memory_is_the_peak_with_more_room() -> None:
    assert compute_host_memory_limit_mb(SMALL) == 2000 * 1.25 + 256
    assert compute_host_memory_limit_mb(UsageProfile()) is None


def test_each_limit_is_named_with_both_numbers() -> None:
    pair = [build_subject(0), build_subject(1)]
    limits = Limits(cpus=3, host_memory_mb=1999, gpu_memory_mb=9999, members=1, finish_s=599.0)
    found = {b.constraint: (b.have, b.limit) for b in find_broken(pair, limits)}
    assert found == {
        "clients": (2, 1),
        "cpus": (4, 3),
        "host_memory": (2000, 1999),
        "gpu_memory": (10_000, 9999),
        "time": (600.0, 599.0),
    }
    exact = Limits(cpus=4, host_memory_mb=2000, gpu_memory_mb=10_000, members=2, finish_s=600.0)
    assert find_broken(pair, exact) == ()
    assert find_broken(pair[:1], limits) == ()


@given(profile=known_jobs.PROFILES)
def test_a_load_is_made_of_shares_whatever_the_profile_says(profile: UsageProfile) -> None:
    load = build_load(profile)
    # One that used no SM had not begun with what it is for.
    is_known = bool(profile.sm_activity) and profile.dram_activity is not None
    assert (load is not None) is is_known
    if load is not None:
        resources = (load.engine, load.sm, load.dram, load.tensor, load.pcie)
        assert all(0.0 <= used <= 1.0 for used in resources)
        assert load.power_w >= 0.0


def test_engine_activity_is_estimated_where_it_was_not_measured() -> None:
    # Activities and the gain of time slicing over one alone, as measured on an H200.
    for sm, gain in ((0.118, 3.5), (0.301, 1.95), (0.432, 1.59)):
        load = build_load(UsageProfile(sm_activity=sm, dram_activity=0.1))
        assert load is not None
        assert load.engine == pytest.approx(1 / gain, rel=0.1)
    measured = build_load(UsageProfile(sm_activity=0.3, dram_activity=0.1, engine_activity=0.9))
    assert measured is not None
    assert measured.engine == 0.9


def test_a_run_lasts_as_earlier_ones_did_but_no_longer_than_it_may() -> None:
    job = build_job(time_limit_s=1000)
    assert compute_run_s(job, build_profile(0.1, 0.1, 0.1, run_s=600.0), ROOMY) == 600.0
    assert compute_run_s(job, build_profile(0.1, 0.1, 0.1, run_s=2000.0), ROOMY) == 1000.0
    assert compute_run_s(job, build_profile(0.1, 0.1, 0.1, run_s=0.0), ROOMY) == 1000.0
    assert compute_run_s(job, None, ROOMY) == 1000.0
    open_end = dataclasses.replace(job, time_limit_s=None)
    assert compute_run_s(open_end, None, ROOMY) == 3600.0
