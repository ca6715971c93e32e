"""A job whose first seconds take more GPU memory than all that follows: both count."""

from __future__ import annotations

import dataclasses

from slurm_colloc.model.plan import KnownBy, PeakSource, UsageProfile
from slurm_colloc.planning.hard_limits import (
    compute_gpu_memory_limit_mb,
    compute_gpu_memory_need_mb,
)
from slurm_colloc.planning.plan_packs import plan
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_call

BRIEF = dataclasses.replace(
    SMALL,
    gpu_memory_peak_mb=6800,
    gpu_memory_usual_mb=1900,
    gpu_memory_by=PeakSource.ALLOCATOR,
    known_by=KnownBy.EXACT,
)


def test_partners_have_what_it_takes_later_and_its_limit_is_its_peak() -> None:
    assert compute_gpu_memory_need_mb(BRIEF) == 2280 + 1024
    assert compute_gpu_memory_limit_mb(BRIEF) == 8160 + 1024


def test_without_it_or_with_more_than_the_peak_the_limit_counts() -> None:
    for usual in (None, 0, 6800, 9000):
        profile = dataclasses.replace(BRIEF, gpu_memory_usual_mb=usual)
        assert compute_gpu_memory_need_mb(profile) == compute_gpu_memory_limit_mb(profile)
    assert compute_gpu_memory_need_mb(UsageProfile()) is None


def test_more_share_a_gpu_than_could_all_have_their_peak_at_once() -> None:
    capacity = dataclasses.replace(ROOMY, gpu_memory_mb=40_000)
    jobs, known = build_call(*[("a.sh", BRIEF)] * 8)
    (pack,) = plan(jobs, known, capacity, POLICY, CALIBRATION).packs
    assert pack.degree == 8
    assert {member.gpu_memory_limit_mb for member in pack.members} == {9184}
    always = dataclasses.replace(BRIEF, gpu_memory_usual_mb=None)
    jobs, known = build_call(*[("a.sh", always)] * 8)
    packs = plan(jobs, known, capacity, POLICY, CALIBRATION).packs
    assert max(pack.degree for pack in packs) <= 4
