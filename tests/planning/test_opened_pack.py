"""The pack of a single job that asks for more than it needs, so that others can join it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, PackPlan, Policy, SharingMode
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.unknown_packs import keep_open, plan_opened

JOB = Job(1, "train", "train.sh", (), "/", cpus=2, host_memory_mb=4096, gpus=1, time_limit_s=3600)
NODE = Capacity(cpus_per_gpu=16, host_memory_mb_per_gpu=64 << 10, gpu_memory_mb=80_000)


def plan(
    job: Job = JOB,
    capacity: Capacity = NODE,
    policy: Policy | None = None,
    asked: int | None = None,
) -> PackPlan | str:
    """Plan it."""
    return plan_opened(Question([job], {}, capacity, policy or Policy()), asked)


def opened(*args: object, **kwargs: object) -> PackPlan:
    """A plan that is one."""
    found = plan(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(found, PackPlan), found
    return found


def test_it_has_as_many_places_as_the_share_has_room_for() -> None:
    pack = opened()
    assert (pack.degree, pack.open_for, pack.mode) == (8, 7, SharingMode.MPS)
    assert pack.request is not None
    assert pack.request.cpus == 16
    assert 8 * 4096 <= (pack.request.host_memory_mb or 0) <= 64 << 10
    # 1.5 times its time and a minute; and the same again.
    assert pack.request.time_limit_s == 2 * (5400 + 60)
    (member,) = pack.members
    assert (member.cpus, member.host_memory_mb, member.wall_limit_s) == (2, 4096, 5400)


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"host_memory_mb": 20 << 10}, 3),
        # Eight GB at least for one that does not say.
        ({"host_memory_mb": None, "cpus": 1}, 8),
        # Others may need less of the GPU's memory.
        ({"gpu_memory_mb": 30_000}, 8),
        ({"cpus": 5}, 3),
    ],
)
def test_the_scarcest_resource_says_how_many(changes: dict[str, int | None], places: int) -> None:
    assert opened(dataclasses.replace(JOB, **changes)).degree == places  # type: ignore[arg-type]


def test_a_number_is_an_upper_bound_and_so_is_the_degree_that_was_asked_for() -> None:
    assert opened(asked=3).degree == 3
    pack = opened(asked=20)
    assert pack.degree == 8
    assert any(text.startswith("--open=20: there is room for 8") for text in pack.reasons)
    assert opened(policy=Policy(degree=2, degree_is_asked=True)).degree == 2
    assert opened(policy=Policy(degree_max=5)).degree == 5


@pytest.mark.parametrize(
    ("job", "capacity", "policy", "told"),
    [
        (dataclasses.replace(JOB, cpus=9), NODE, Policy(), "has room for one such job"),
        (JOB, Capacity(), Policy(), "is not known"),
        (JOB, dataclasses.replace(NODE, gives_whole_nodes=True), Policy(), "whole nodes"),
        (JOB, NODE, Policy(mode=SharingMode.MIG), "MIG instances"),
        (
            JOB,
            dataclasses.replace(NODE, time_limit_max_s=5000),
            Policy(),
            "in company it may take 5460 s, and MaxTime here is 5000 s",
        ),
    ],
)
def test_what_is_in_the_way_is_said(
    job: Job, capacity: Capacity, policy: Policy, told: str
) -> None:
    found = plan(job, capacity, policy)
    assert isinstance(found, str)
    assert told in found


def test_it_asks_for_no_more_than_max_time_and_for_none_where_there_is_none() -> None:
    pack = opened(capacity=dataclasses.replace(NODE, time_limit_max_s=6000))
    assert pack.request is not None
    assert pack.request.time_limit_s == 6000
    pack = opened(dataclasses.replace(JOB, time_limit_s=None))
    assert pack.request is not None
    assert pack.request.time_limit_s is None


@given(
    cpus=st.integers(1, 40),
    memory_mb=st.none() | st.integers(1, 100_000),
    time_s=st.none() | st.integers(1, 10**6),
    share=st.tuples(st.integers(1, 64), st.integers(1, 200_000)),
    asked=st.none() | st.integers(2, 48),
    most_s=st.none() | st.integers(60, 10**6),
)
def test_it_never_asks_for_more_than_the_share_and_its_member_gets_what_it_asked_for(
    *,
    cpus: int,
    memory_mb: int | None,
    time_s: int | None,
    share: tuple[int, int],
    asked: int | None,
    most_s: int | None,
) -> None:
    job = dataclasses.replace(JOB, cpus=cpus, host_memory_mb=memory_mb, time_limit_s=time_s)
    capacity = Capacity(share[0], share[1], time_limit_max_s=most_s)
    pack = plan(job, capacity, asked=asked)
    if isinstance(pack, str):
        return
    request, (member,) = pack.request, pack.members
    assert request is not None
    assert request.cpus == pack.degree * cpus <= share[0]
    assert (request.host_memory_mb or 0) <= share[1]
    assert 2 <= pack.degree <= (asked or 48)
    assert member.host_memory_mb is not None
    assert member.host_memory_mb >= (memory_mb or 1)
    if time_s is not None:
        assert member.wall_limit_s is not None
        assert time_s <= member.wall_limit_s < (request.time_limit_s or 0) <= (most_s or 10**9)


def test_it_stays_open_when_it_is_joined_while_it_waits() -> None:
    pack = opened()
    smaller = opened(asked=2)
    kept = keep_open(smaller, pack.request, pack.degree)
    assert (kept.request, kept.degree) == (pack.request, 8)
    assert keep_open(pack, smaller.request, 2) == pack
