"""Unknown jobs are cut into packs by the degree; each asks for what one GPU has room for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Goal, PackPlan, Policy, SharingMode
from slurm_colloc.planning.plan_packs import plan

from .known_jobs import build_job

CAPACITY = Capacity(cpus_per_gpu=16, host_memory_mb_per_gpu=128_000, gpu_memory_mb=80_000)


def make(
    count: int,
    *,
    capacity: Capacity = CAPACITY,
    policy: Policy = Policy(),  # noqa: B008
    **changes: object,
) -> tuple[PackPlan, ...]:
    jobs: list[Job] = [
        dataclasses.replace(build_job(n), **{"gpu_memory_mb": None, **changes})  # type: ignore[arg-type]
        for n in range(1, count + 1)
    ]
    return plan(jobs, {}, capacity, policy).packs


def test_twelve_unknown_jobs_are_three_packs_each_with_room_for_all() -> None:
    packs = make(12, cpus=1, host_memory_mb=None)
    assert [len(pack.members) for pack in packs] == [4, 4, 4]
    for pack in packs:
        assert pack.degree == 12
        assert pack.request is not None
        assert pack.request.cpus == 12
        assert pack.request.host_memory_mb == 128_000
        assert {member.host_memory_mb for member in pack.members} == {128_000 // 12}
        # How much of the GPU each gets is settled on the node, when more is known.
        assert {member.thread_percentage for member in pack.members} == {None}


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"cpus": 2, "host_memory_mb": 1000}, 8),
        ({"cpus": 1, "host_memory_mb": 20_000}, 6),
        ({"cpus": 1, "host_memory_mb": None}, 15),
        ({"cpus": 1, "host_memory_mb": 1000, "gpu_memory_mb": 8000}, 9),
        ({"cpus": 4, "host_memory_mb": 1000}, 4),
        ({"cpus": 8, "host_memory_mb": 1000}, 2),
    ],
)
def test_there_is_room_for_as_many_as_the_scarcest_of_the_share_allows(
    changes: dict[str, object], places: int
) -> None:
    packs = make(20, **changes)  # type: ignore[arg-type]
    assert {pack.degree for pack in packs} == {places}
    assert {len(pack.members) for pack in packs} == {min(4, places)}
    for pack in packs:
        assert pack.request is not None
        assert pack.request.cpus == places * int(str(changes["cpus"]))
        assert pack.request.host_memory_mb is not None
        assert pack.request.host_memory_mb <= 128_000


@pytest.mark.parametrize(
    "policy",
    [
        Policy(degree_is_asked=True),
        Policy(pack_size=4),
        Policy(running_limit=8),
        Policy(goal=Goal.ENERGY),
        Policy(mode=SharingMode.MIG),
    ],
)
def test_who_says_how_many_gets_no_more(policy: Policy) -> None:
    packs = make(12, policy=policy, cpus=1, host_memory_mb=1000)
    assert {(len(pack.members), pack.degree) for pack in packs} == {(4, 4)}


@pytest.mark.parametrize(
    "capacity",
    [
        dataclasses.replace(CAPACITY, cpus_per_gpu=None),
        dataclasses.replace(CAPACITY, host_memory_mb_per_gpu=None),
    ],
)
def test_where_the_share_is_unknown_the_degree_counts(capacity: Capacity) -> None:
    packs = make(12, capacity=capacity, cpus=1, host_memory_mb=1000)
    assert {(len(pack.members), pack.degree) for pack in packs} == {(4, 4)}


def test_a_site_that_allows_few_members_a_pack_is_heeded() -> None:
    packs = make(12, policy=Policy(degree_max=6), cpus=1, host_memory_mb=1000)
    assert {pack.degree for pack in packs} == {6}


def test_one_pack_alone_has_no_more_places_than_members() -> None:
    (pack,) = make(3, cpus=1, host_memory_mb=1000)
    assert pack.degree == 3
    assert {member.thread_percentage for member in pack.members} == {66}


def test_for_latency_each_unknown_job_has_a_gpu_of_its_own() -> None:
    packs = make(3, policy=Policy(goal=Goal.LATENCY), cpus=1, host_memory_mb=1000)
    assert [(len(pack.members), pack.request) for pack in packs] == [(1, None)] * 3
    assert "goal latency" in packs[0].reasons[0]
    asked = Policy(goal=Goal.LATENCY, degree_is_asked=True)
    (pack,) = make(3, policy=asked, cpus=1, host_memory_mb=1000)
    assert len(pack.members) == 3


def test_members_that_take_turns_share_whatever_they_need_of_the_gpus_memory() -> None:
    policy = Policy(mode=SharingMode.TIMESLICE)
    asked: dict[str, Any] = {
        "cpus": 1, "host_memory_mb": 1000, "gpu_memory_mb": 50_000, "time_limit_s": 600,
    }  # fmt: skip
    assert [pack.degree for pack in make(2, policy=policy, **asked)] == [1, 1]
    large = dataclasses.replace(CAPACITY, host_memory_mb_per_gpu=512_000)
    (pack,) = make(2, policy=policy, capacity=large, turn_s=120.0, **asked)
    assert pack.degree == 2
    assert pack.request is not None
    # While others have their turn it is in host memory, and one runs after the other.
    assert pack.request.host_memory_mb is not None
    assert pack.request.host_memory_mb >= 2 * (1000 + 50_000)
    assert pack.request.time_limit_s is not None
    assert pack.request.time_limit_s >= 2 * 600
    assert {member.gpu_memory_limit_mb for member in pack.members} == {50_000}
    unknown = dataclasses.replace(large, gpu_memory_mb=None)
    (pack,) = make(2, policy=policy, capacity=unknown, turn_s=120.0, **asked)
    assert pack.request is not None
    assert pack.request.time_limit_s is not None
    assert pack.request.time_limit_s >= 2 * 600
