from __future__ import annotations

import dataclasses
import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, PackPlan, Plan, Policy, SharingMode, UsageProfile
from slurm_colloc.planning.plan_packs import (
    GPU_MEMORY_SHARE,
    SHORT_S,
    TIME_RATIO,
    compute_reason_to_run_alone,
    plan,
)


def build_job(number: int = 1, **changes: object) -> Job:
    job = Job(
        number, f"job{number}", "job.sh", (), "/tmp", cpus=2, gpus=1, time_limit_s=600,
        came_together=True,
    )  # fmt: skip
    return dataclasses.replace(job, **changes)  # type: ignore[arg-type]


def build_jobs(count: int, **changes: object) -> list[Job]:
    return [build_job(number, **changes) for number in range(1, count + 1)]


MEMORY = st.none() | st.integers(1, 40_000)
JOBS = st.lists(
    st.builds(
        build_job,
        st.just(1),
        cpus=st.integers(1, 12),
        gpus=st.sampled_from([1, 1, 1, 1, 0, 2]),
        gpu_type=st.sampled_from([None, None, "a100"]),
        gpu_memory_mb=MEMORY,
        host_memory_mb=MEMORY,
        time_limit_s=st.none() | st.integers(1, 7200),
        group=st.sampled_from([(), (), (("partition", "gpu"),)]),
        came_together=st.sampled_from([True, True, True, False]),
        alone_because=st.sampled_from(["", "", "", "it asks for a node of its own"]),
    ),
    max_size=14,
)
LIMIT = st.none() | st.integers(1, 64)
CAPACITIES = st.builds(
    Capacity,
    cpus_per_gpu=LIMIT,
    host_memory_mb_per_gpu=st.none() | st.integers(1000, 100_000),
    gpu_memory_mb=st.none() | st.integers(8000, 80_000),
    time_limit_max_s=st.none() | st.integers(60, 20_000),
    time_limit_default_s=st.none() | st.integers(60, 7200),
)
POLICIES = st.builds(
    Policy,
    degree=st.integers(1, 6),
    pack_size=st.none() | st.integers(1, 12),
    slowdown_bound=st.floats(1.0, 4.0),
    running_limit=st.none() | st.integers(1, 12),
    start_margin_s=st.integers(0, 120),
)


def make(jobs: list[Job], capacity: Capacity = Capacity(), policy: Policy = Policy()) -> Plan:  # noqa: B008
    return plan(jobs, {}, capacity, policy)


def sum_largest(count: int, amounts: list[int | None]) -> int:
    return sum(heapq.nlargest(count, (amount or 0 for amount in amounts)))


def jobs_of(pack: PackPlan, jobs: list[Job]) -> list[Job]:
    return [jobs[member.job_index] for member in pack.members]


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_every_job_is_in_exactly_one_pack_and_the_users_order_holds(
    jobs: list[Job], capacity: Capacity, policy: Policy
) -> None:
    packs = make(jobs, capacity, policy).packs
    assert sorted(m.job_index for pack in packs for m in pack.members) == list(range(len(jobs)))
    firsts = [pack.members[0].job_index for pack in packs]
    assert firsts == sorted(firsts)
    for pack in packs:
        order = [member.job_index for member in pack.members]
        assert order == sorted(order)


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_a_plan_depends_only_on_what_it_was_given(
    jobs: list[Job], capacity: Capacity, policy: Policy
) -> None:
    known = {index: UsageProfile() for index in range(len(jobs))}
    assert plan(jobs, {}, capacity, policy) == plan(list(jobs), known, capacity, policy)


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_members_of_a_pack_agree_and_may_share(
    jobs: list[Job], capacity: Capacity, policy: Policy
) -> None:
    for pack in make(jobs, capacity, policy).packs:
        members = jobs_of(pack, jobs)
        assert pack.group == members[0].group
        assert len({(job.group, job.gpu_type) for job in members}) == 1
        if pack.request is None:
            assert len(members) == 1
            assert pack.mode is SharingMode.EXCLUSIVE
        else:
            assert all(job.came_together and job.gpus == 1 for job in members)
            assert not any(job.alone_because for job in members)
            assert pack.request.gpu_type == members[0].gpu_type


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_no_limit_is_broken(jobs: list[Job], capacity: Capacity, policy: Policy) -> None:
    for pack in make(jobs, capacity, policy).packs:
        members = jobs_of(pack, jobs)
        assert 1 <= pack.degree <= min(policy.degree, len(members))
        assert len(members) <= (policy.pack_size or policy.degree)
        if pack.request is None:
            continue
        cpus = sum_largest(pack.degree, [job.cpus for job in members])
        assert pack.request.cpus == cpus
        assert [member.cpus for member in pack.members] == [job.cpus for job in members]
        for member, job in zip(pack.members, members, strict=True):
            assert job.host_memory_mb is None or member.host_memory_mb == job.host_memory_mb
        host_memory = sum_largest(pack.degree, [m.host_memory_mb for m in pack.members])
        if pack.request.host_memory_mb is not None:
            assert pack.request.host_memory_mb >= host_memory
        if pack.degree > 1:
            # A single job may ask for more than there is; that is Slurm's to refuse.
            share = capacity.host_memory_mb_per_gpu
            assert capacity.cpus_per_gpu is None or cpus <= capacity.cpus_per_gpu
            assert share is None or (pack.request.host_memory_mb or 0) <= share
            assert share is None or host_memory <= share
            gpu_memory = sum_largest(pack.degree, [job.gpu_memory_mb for job in members])
            total = capacity.gpu_memory_mb
            assert total is None or gpu_memory <= total * GPU_MEMORY_SHARE


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_never_more_members_run_than_the_user_allowed(
    jobs: list[Job], capacity: Capacity, policy: Policy
) -> None:
    made = make(jobs, capacity, policy)
    if policy.running_limit is None:
        assert made.packs_at_once is None
        return
    assert made.packs_at_once is not None
    widest = max((pack.degree for pack in made.packs), default=1)
    assert 1 <= made.packs_at_once * widest <= policy.running_limit
    noun = "member" if policy.running_limit == 1 else "members"
    assert any(f"at most {policy.running_limit} {noun} at" in text for text in made.reasons)


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_every_pack_says_why(jobs: list[Job], capacity: Capacity, policy: Policy) -> None:
    made = make(jobs, capacity, policy)
    for pack in made.packs:
        assert pack.reasons
        assert all(pack.reasons)
        first = jobs[pack.members[0].job_index]
        if pack.request is None:
            degree = min(policy.degree, policy.running_limit or policy.degree)
            why = compute_reason_to_run_alone(first, dataclasses.replace(policy, degree=degree))
            why = why or "no job that could share its GPU was submitted with it"
            assert pack.reasons == (f"{first.name} runs alone: {why}",)


@given(jobs=JOBS, capacity=CAPACITIES, policy=POLICIES)
def test_the_pack_lives_as_long_as_its_members_may(
    jobs: list[Job], capacity: Capacity, policy: Policy
) -> None:
    for pack in make(jobs, capacity, policy).packs:
        if pack.request is None or pack.request.time_limit_s is None:
            continue
        ends = [0] * pack.degree
        for member in pack.members:
            assert member.wall_limit_s is not None
            heapq.heapreplace(ends, ends[0] + member.wall_limit_s)
        limit = capacity.time_limit_max_s
        asked = [jobs[m.job_index].time_limit_s or capacity.time_limit_default_s
                 for m in pack.members]  # fmt: skip
        if limit is not None and max(time or 0 for time in asked) <= limit:
            assert pack.request.time_limit_s <= limit
        if limit is None or pack.request.time_limit_s != limit or len(pack.members) > pack.degree:
            assert max(ends) + policy.start_margin_s <= pack.request.time_limit_s


@pytest.mark.parametrize(
    ("members", "degree", "size", "waves"),
    [(2, 4, None, 1), (4, 4, None, 1), (4, 2, 4, 2), (8, 4, 8, 2), (7, 3, 9, 3), (5, 1, 5, 5)],
)
def test_the_time_asked_for_is_the_waves_times_the_bound(
    members: int, degree: int, size: int | None, waves: int
) -> None:
    policy = Policy(degree=degree, pack_size=size, slowdown_bound=1.5, start_margin_s=60)
    (pack,) = make(build_jobs(members), policy=policy).packs
    bound = 1.5 if min(members, degree) > 1 else 1.0
    assert pack.request is not None
    assert waves == math.ceil(members / degree)
    assert pack.request.time_limit_s == waves * int(600 * bound) + 60
    assert {member.wall_limit_s for member in pack.members} == {int(600 * bound)}


def test_a_stretched_time_is_capped_by_the_partitions_limit_and_says_so() -> None:
    (pack,) = make(build_jobs(4), Capacity(time_limit_max_s=800)).packs
    assert pack.request is not None
    assert pack.request.time_limit_s == 800
    assert {member.wall_limit_s for member in pack.members} == {740}
    assert pack.reasons[-1] == (
        "the pack asks for 800 s, which is MaxTime here; 960 s would allow every member "
        "its time stretched by 1.5"
    )


def test_waves_that_would_not_fit_into_the_partitions_limit_become_several_packs() -> None:
    policy = Policy(degree=2, pack_size=8)
    packs = make(build_jobs(8), Capacity(time_limit_max_s=2000), policy).packs
    assert [len(pack.members) for pack in packs] == [4, 4]
    assert packs[0].reasons[1] == (
        "takes no more members: 5 members need 2700 s one after the other, MaxTime is 2000 s"
    )


def test_a_time_beyond_the_partitions_limit_is_left_for_slurm_to_refuse() -> None:
    (pack,) = make(build_jobs(2, time_limit_s=5000), Capacity(time_limit_max_s=800)).packs
    assert pack.request is not None
    assert pack.request.time_limit_s == 7560


@pytest.mark.parametrize("time_limit_s", [2000, None])
def test_a_job_that_slurm_will_not_start_keeps_no_other_waiting(time_limit_s: int | None) -> None:
    over = dataclasses.replace(
        build_jobs(1, time_limit_s=time_limit_s)[0], shape=(("time", "2000"),)
    )
    jobs = [over, *build_jobs(2)]
    plan = make(jobs, Capacity(time_limit_max_s=800))
    assert [[m.job_index for m in pack.members] for pack in plan.packs] == [[0], [1, 2]]
    asked = "no time limit is" if time_limit_s is None else "2000 s is"
    assert f"job1: {asked} asked for, MaxTime here is 800 s" in plan.reasons[0]
    assert "none asks for more than MaxTime or all do" in plan.reasons[1]
    assert len(make(jobs, Capacity()).packs) == (2 if time_limit_s is None else 1)


@given(
    limits_s=st.lists(st.none() | st.sampled_from([60, 600, 2400, 2401, 3600, 86_400]), min_size=2),
    order=st.randoms(use_true_random=False),
)
def test_jobs_share_with_those_of_about_their_time_limit(
    limits_s: list[int | None], order: random.Random
) -> None:
    jobs = [build_job(n, time_limit_s=limit_s) for n, limit_s in enumerate(limits_s, start=1)]
    policy = Policy(degree=48)

    def list_packs(jobs: list[Job]) -> list[list[int]]:
        packs = make(jobs, policy=policy).packs
        return sorted(sorted(jobs[m.job_index].number for m in pack.members) for pack in packs)

    packs = list_packs(jobs)
    for numbers in packs:
        limits = [limits_s[number - 1] for number in numbers]
        known = [limit for limit in limits if limit is not None]
        assert len(known) in (0, len(limits))
        assert not known or max(known) <= TIME_RATIO * max(SHORT_S, min(known))
    if len(limits_s) <= 48:
        # Who is in no pack with another could not have come on top of it.
        longest = [limits_s[numbers[0] - 1] and max(limits_s[n - 1] or 0 for n in numbers)
                   for numbers in packs]  # fmt: skip
        assert len(set(longest)) == len(longest)
    shuffled = list(jobs)
    order.shuffle(shuffled)
    assert list_packs(shuffled) == packs or len(limits_s) > 48


def test_a_slurm_default_is_cut_to_what_may_be_asked_for() -> None:
    capacity = Capacity(time_limit_max_s=1800, time_limit_default_s=3600)
    plan = make(build_jobs(4, time_limit_s=None), capacity, Policy(start_margin_s=60))
    (pack,) = plan.packs
    assert pack.request is not None
    assert pack.request.time_limit_s == 1800
    assert {member.wall_limit_s for member in pack.members} == {1740}
    assert not any("Slurm will not start it" in reason for reason in plan.reasons)


def test_members_that_get_less_than_they_asked_for_are_told() -> None:
    (pack,) = make(build_jobs(2, time_limit_s=1800), Capacity(time_limit_max_s=1800)).packs
    cap_s = pack.members[0].wall_limit_s
    assert cap_s is not None
    assert cap_s < 1800
    assert any(
        f"a member that asks for 1800 s alone gets {cap_s} s" in reason for reason in pack.reasons
    )


@pytest.mark.parametrize(("mode", "most"), [(SharingMode.MPS, 48), (SharingMode.MIG, 7)])
def test_a_sharing_mode_has_no_more_places_than_it_can(mode: SharingMode, most: int) -> None:
    first, *_ = make(build_jobs(60), policy=Policy(degree=60, mode=mode)).packs
    assert (len(first.members), first.degree) == (most, most)
    assert (
        f"takes no more members: it is full with {most} members, no more can share by {mode}"
        in (first.reasons)
    )
    sliced = Policy(degree=60, mode=SharingMode.TIMESLICE)
    assert make(build_jobs(60), policy=sliced).packs[0].degree == 60


def test_without_a_time_slurms_default_stands() -> None:
    (pack,) = make(build_jobs(2, time_limit_s=None)).packs
    assert pack.request is not None
    assert pack.request.time_limit_s is None
    assert [member.wall_limit_s for member in pack.members] == [None, None]
    assert "no --time was given: Slurm's default limits the whole pack" in pack.reasons


@pytest.mark.parametrize(
    ("changes", "capacity", "reason"),
    [
        ({"cpus": 3}, Capacity(cpus_per_gpu=8), "3 at once need 9 CPUs, the GPU's share is 8"),
        (
            {"host_memory_mb": 3000},
            Capacity(host_memory_mb_per_gpu=8000),
            "3 at once need 9000 MB of host memory, the GPU's share is 8000 MB",
        ),
        (
            {"gpu_memory_mb": 30_000},
            Capacity(gpu_memory_mb=80_000),
            "3 at once need 90000 MB of GPU memory, 76000 MB are usable",
        ),
        ({}, Capacity(), "it is full with 4 members"),
    ],
)
def test_a_closed_pack_names_the_limit_with_both_numbers(
    changes: dict[str, int], capacity: Capacity, reason: str
) -> None:
    first = make(build_jobs(5, **changes), capacity).packs[0]
    assert f"takes no more members: {reason}" in first.reasons


def test_one_is_not_told_as_several() -> None:
    whole, rest = make(build_jobs(5, cpus=1)).packs
    assert (whole.reasons[0], rest.reasons[0]) == (
        "4 members, 4 at once, 4 CPUs",
        "1 member, 1 at once, 1 CPU",
    )
    made = make(build_jobs(2), policy=Policy(degree=4, pack_size=1))
    assert "takes no more members: it is full with 1 member" in made.packs[0].reasons
    made = make(build_jobs(2), policy=Policy(running_limit=1, pack_size=2))
    assert made.reasons[0] == "at most 1 member at the same time: 1 pack of degree 1"


@pytest.mark.parametrize(
    ("changes", "policy", "reason"),
    [
        ({"came_together": False}, Policy(),
         "a single script runs alone unless another joins it, or it joins one (--join)"),
        ({"gpus": 0}, Policy(), "it asks for no GPU"),
        ({"gpus": 2}, Policy(),
         "it asks for 2 GPUs, and nothing measures here whether sharing them pays"),
        ({"alone_because": "it asks for --nodes=2"}, Policy(), "it asks for --nodes=2"),
        ({}, Policy(degree=1), "the degree is 1"),
        ({}, Policy(degree=1, mode=SharingMode.EXCLUSIVE),
         "each job gets a GPU of its own (share=exclusive)"),
        ({}, Policy(running_limit=1), "the degree is 1"),
        ({}, Policy(), "no job that could share its GPU was submitted with it"),
    ],
)  # fmt: skip
def test_a_job_that_runs_alone_gets_what_it_asked_for_and_says_why(
    changes: dict[str, object], policy: Policy, reason: str
) -> None:
    (pack,) = make([build_job(**changes)], policy=policy).packs  # type: ignore[arg-type]
    assert pack.reasons == (f"job1 runs alone: {reason}",)
    assert pack.request is None
    assert pack.members[0].wall_limit_s == 600


def test_a_queue_of_degree_one_shares_an_allocation() -> None:
    (pack,) = make(build_jobs(2), policy=Policy(degree=1, pack_size=2)).packs
    assert (pack.degree, pack.mode) == (1, SharingMode.EXCLUSIVE)
    assert pack.request is not None


def test_jobs_of_two_partitions_never_share() -> None:
    jobs = [build_job(n, group=(("partition", "ab"[n % 2]),)) for n in range(1, 5)]
    made = make(jobs)
    assert [[m.job_index for m in pack.members] for pack in made.packs] == [[0, 2], [1, 3]]
    assert made.reasons[0].startswith("2 groups: jobs share a pack only if partition")


def test_a_pack_asks_for_what_its_largest_members_need_at_once() -> None:
    jobs = [build_job(n, cpus=n, host_memory_mb=100 * n) for n in range(1, 6)]
    (pack,) = make(jobs, policy=Policy(degree=2, pack_size=5)).packs
    assert pack.request is not None
    assert pack.request.cpus == 5 + 4
    assert pack.request.host_memory_mb == 500 + 400 + 64 + 2 * 16


@pytest.mark.parametrize(("each", "wanted"), [(400, 800 + 96), (500, 1000 + 96 + 90)])
def test_what_watches_a_pack_is_asked_for_where_it_is_watched(each: int, wanted: int) -> None:
    jobs = [build_job(n, host_memory_mb=each) for n in (1, 2)]
    (pack,) = make(jobs, policy=Policy(monitor_mb=90)).packs
    assert pack.request is not None
    assert pack.request.host_memory_mb == wanted


@pytest.mark.parametrize(
    ("each", "degree", "wanted"),
    [(600, 2, 150 + 60 + 200), (400, 2, 150 + 60), (2000, 1, 200 + 60)],
)
def test_time_to_measure_is_asked_for_where_it_is_measured_how_many_run(
    each: int, degree: int, wanted: int
) -> None:
    jobs = [build_job(n, host_memory_mb=each, time_limit_s=100) for n in (1, 2)]
    policy = Policy(degree=degree, pack_size=2, slowdown_bound=1.5, measure_s=200)
    (pack,) = make(jobs, policy=policy).packs
    assert pack.request is not None
    assert pack.request.time_limit_s == wanted


def test_members_that_ask_for_no_host_memory_get_their_share_of_the_node() -> None:
    (pack,) = make(build_jobs(4), Capacity(host_memory_mb_per_gpu=8000)).packs
    assert [member.host_memory_mb for member in pack.members] == [2000] * 4
    assert pack.request is not None
    assert pack.request.host_memory_mb == 8000


def test_nothing_gives_no_pack() -> None:
    assert make([]) == Plan((), None, ())


def test_short_time_limits_make_no_difference() -> None:
    jobs = [build_job(n, time_limit_s=limit_s) for n, limit_s in enumerate((2, 60, 2400), 1)]
    assert len(plan(jobs, {}, Capacity(), Policy()).packs) == 1
    jobs.append(build_job(4, time_limit_s=2401))
    assert [
        sorted(member.job_index for member in pack.members)
        for pack in plan(jobs, {}, Capacity(), Policy()).packs
    ] == [[0, 1], [2, 3]]
