"""Packs over several GPUs: how jobs are spread over GPU sets, and those over Slurm jobs."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    KnownBy,
    PackPlan,
    Policy,
    SharingMode,
    UsageProfile,
    UserLimits,
)
from slurm_colloc.planning.gpu_set_packs import (
    Demand,
    choose_gpus_per_pack,
    choose_spread,
    deal,
    group_by_slurm_job,
    place_sets,
    widen_for_limit,
)
from slurm_colloc.planning.plan_packs import plan

from .coefficients import CALIBRATION as H200
from .test_grouping import build_job, build_jobs, make

NODE = Capacity(16, 64_000, 80_000, 86_400, 3600, 8, gives_whole_nodes=True)
ON_NODE = Policy(gpus_per_pack=8, measures=True)


def count_gpus(pack: PackPlan) -> int:
    return 1 if pack.request is None else pack.request.gpus


def list_sets(packs: tuple[PackPlan, ...]) -> list[list[int]]:
    """How many members each GPU set of each Slurm job has."""
    return [[len(pack.members) for pack in job] for job in group_by_slurm_job(packs)]


def test_forty_jobs_on_eight_gpus_are_one_slurm_job_in_which_eight_wait() -> None:
    made = make(build_jobs(40), NODE, ON_NODE)
    assert list_sets(made.packs) == [[5] * 8]
    # In the user's order: those of low numbers start first, wherever they are.
    assert [m.job_index for m in made.packs[0].members] == [0, 8, 16, 24, 32]
    for pack in made.packs:
        assert pack.request is not None
        # Four run at once for sure, so one may wait for another.
        assert pack.request.time_limit_s == 2 * 900 + 60
    assert sum(pack.request.cpus for pack in made.packs if pack.request) <= 8 * 16


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (2, [[1, 1]]),
        (5, [[1] * 5]),
        (9, [[2] + [1] * 7]),
        (47, [[6] * 7 + [5]]),
        # As near to two nodes as to one.
        (48, [[3] * 8, [3] * 8]),
        (70, [[5] * 6 + [4] * 2, [4] * 8]),
    ],
)
def test_places_come_nearest_to_the_jobs(count: int, expected: list[list[int]]) -> None:
    found = list_sets(make(build_jobs(count), NODE, ON_NODE).packs)
    assert [sorted(sets, reverse=True) for sets in found] == expected


def test_members_do_not_wait_for_longer_than_slurm_lets_a_job_run() -> None:
    jobs = build_jobs(40, time_limit_s=3000)
    short = dataclasses.replace(NODE, time_limit_max_s=5000)
    assert list_sets(make(jobs, short, ON_NODE).packs) == [[3] * 8, [2] * 8]


def test_a_limit_of_an_array_counts_over_all_gpus() -> None:
    for limit, sets, degree in ((3, 3, 1), (8, 8, 1), (20, 8, 2), (100, 8, 4)):
        policy = dataclasses.replace(ON_NODE, running_limit=limit, degree_is_asked=True)
        made = make(build_jobs(30), NODE, policy)
        (packs,) = group_by_slurm_job(made.packs)
        assert (len(packs), max(pack.degree for pack in packs)) == (sets, degree)
        assert sum(pack.degree for pack in packs) <= limit
        assert made.packs_at_once is not None


def test_members_wait_in_the_slurm_jobs_that_may_run() -> None:
    limited = dataclasses.replace(NODE, limits=UserLimits(1))
    assert list_sets(make(build_jobs(70), limited, ON_NODE).packs) == [[9] * 6 + [8] * 2]
    # Not for longer than Slurm lets a job run.
    short = dataclasses.replace(limited, time_limit_max_s=2000)
    assert len(list_sets(make(build_jobs(70), short, ON_NODE).packs)) == 2


def test_one_gpu_each_is_a_gpu_set_with_one_place() -> None:
    policy = Policy(1, mode=SharingMode.EXCLUSIVE, share="exclusive", gpus_per_pack=8)
    made = make(build_jobs(11), NODE, policy)
    assert [len(job) for job in group_by_slurm_job(made.packs)] == [8]
    assert {(pack.degree, pack.mode) for pack in made.packs} == {(1, SharingMode.EXCLUSIVE)}


def test_no_job_waits_where_the_goal_is_an_early_end() -> None:
    made = make(build_jobs(9), NODE, dataclasses.replace(ON_NODE, goal=Goal.LATENCY))
    assert list_sets(made.packs) == [[1] * 5, [1] * 4]


def test_jobs_of_several_gpus_share_sets_of_as_many() -> None:
    made = make(build_jobs(6, gpus=2), NODE, Policy(measures=True))
    assert [(count_gpus(pack), len(pack.members), pack.degree) for pack in made.packs] == [
        (2, 2, 2)
    ] * 3
    for pack in made.packs:
        assert pack.slurm_job is None
        assert pack.request is not None
        assert (pack.request.cpus, pack.request.host_memory_mb) == (4, 128_000)
        assert [member.gpus for member in pack.members] == [2, 2]


def test_jobs_of_two_gpus_run_alone_where_nothing_would_measure_that_sharing_pays() -> None:
    for policy in (Policy(), Policy(mode=SharingMode.MIG, measures=True)):
        packs = make(build_jobs(4, gpus=2), NODE, policy).packs
        assert [pack.request for pack in packs] == [None] * 4
    assert "nothing measures here" in make(build_jobs(2, gpus=2), NODE).packs[0].reasons[0]
    asked = make(build_jobs(4, gpus=2), NODE, Policy(degree_is_asked=True)).packs
    assert [pack.degree for pack in asked] == [4]


def test_a_lone_job_of_two_gpus_among_others_gets_what_it_asked_for() -> None:
    jobs = [build_job(1, gpus=2), *(build_job(number) for number in range(2, 6))]
    packs = make(jobs, NODE, Policy(measures=True)).packs
    assert [(len(pack.members), pack.request is None) for pack in packs] == [(1, True), (4, False)]


def test_smaller_jobs_lie_in_a_larger_set_where_their_user_put_them_together() -> None:
    jobs = [build_job(1, gpus=2), *(build_job(number) for number in range(2, 8))]
    policy = Policy(measures=True, mixes_gpus=True)
    (pack,) = make(jobs, NODE, policy).packs
    assert pack.request is not None
    # Four places on each of both GPUs: one of each for the pair, three for single jobs.
    assert (pack.request.gpus, pack.degree) == (2, 7)
    assert [member.gpus for member in pack.members] == [2, 1, 1, 1, 1, 1, 1]
    assert (pack.request.cpus, pack.request.host_memory_mb) == (14, 128_000)
    # Where there are GPUs for all of them each has its own.
    apart = make(jobs, NODE, dataclasses.replace(policy, gpus_per_pack=8)).packs
    assert [(count_gpus(pack), len(pack.members)) for pack in apart] == [(2, 1), *[(1, 1)] * 6]
    assert len(group_by_slurm_job(apart)) == 1


def test_gpu_memory_counts_for_each_gpu_of_a_set() -> None:
    for gpus in (1, 2):
        jobs = build_jobs(4, gpus=gpus, gpu_memory_mb=30_000)
        policy = Policy(measures=True, degree_is_asked=True)
        packs = make(jobs, NODE, policy).packs
        assert [len(pack.members) for pack in packs] == ([2, 2] if gpus == 1 else [4])
        assert {pack.degree for pack in packs} == {2}


@given(
    sizes=st.lists(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8]), min_size=1, max_size=60),
    gpus=st.integers(8, 16),
    jobs=st.integers(1, 5),
)
def test_no_slurm_job_has_more_gpu_sets_than_gpus(sizes: list[int], gpus: int, jobs: int) -> None:
    numbers = place_sets(sizes, gpus, jobs)
    taken: Counter[int] = Counter()
    for size, number in zip(sizes, numbers, strict=True):
        taken[number] += size
    assert len(numbers) == len(sizes)
    assert max(taken.values()) <= gpus
    assert sorted(taken) == list(range(len(taken))) or len(taken) < jobs


@given(
    counts=st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 300), min_size=1),
    degree=st.integers(1, 8),
    gpus=st.integers(8, 16),
    waits=st.booleans(),
)
def test_every_kind_of_job_has_a_gpu_set_and_none_is_without_a_member(
    counts: dict[int, int], degree: int, gpus: int, waits: bool
) -> None:
    demands = {size: Demand(count, degree) for size, count in counts.items()}
    spread = choose_spread(demands, gpus, waits=waits)
    assert set(spread.sets) == set(counts)
    assert all(1 <= spread.sets[size] <= counts[size] for size in counts)
    assert sum(size * count for size, count in spread.sets.items()) <= gpus * spread.nodes


@given(loads=st.lists(st.integers(1, 4), min_size=1, max_size=80), data=st.data())
def test_every_job_is_dealt_once_and_evenly(loads: list[int], data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        loads = [1] * len(loads)
    sets = data.draw(st.integers(1, len(loads)))
    jobs = data.draw(st.integers(1, sets))
    hands = deal(loads, sets, jobs)
    assert sorted(at for hand in hands for at in hand) == list(range(len(loads)))
    assert len(hands) == sets
    sums = [sum(loads[at] for at in hand) for hand in hands]
    assert max(sums) - min(sums) <= max(loads)
    if set(loads) == {1}:
        # Those of the first Slurm job begin first.
        own = -(-sets // jobs)
        first = [at for hand in hands[:own] for at in hand]
        assert max(first) == len(first) - 1


MEMORY = st.none() | st.integers(1, 60_000)
GPU_JOBS = st.lists(
    st.builds(
        build_job,
        st.just(1),
        cpus=st.integers(1, 12),
        gpus=st.sampled_from([1, 1, 1, 2, 4]),
        gpu_memory_mb=MEMORY,
        host_memory_mb=MEMORY,
        time_limit_s=st.none() | st.integers(1, 7200),
        group=st.sampled_from([(), (), (("partition", "gpu"),)]),
    ),
    min_size=1,
    max_size=200,
)


@settings(max_examples=60)
@given(
    jobs=GPU_JOBS,
    gpus_per_pack=st.sampled_from([1, 2, 4, 8]),
    degree=st.integers(1, 6),
    mixes=st.booleans(),
    is_asked=st.booleans(),
    is_whole=st.booleans(),
)
def test_every_job_is_planned_once_and_no_gpu_set_is_over_its_limits(
    jobs: list[Job],
    *,
    gpus_per_pack: int,
    degree: int,
    mixes: bool,
    is_asked: bool,
    is_whole: bool,
) -> None:
    capacity = dataclasses.replace(NODE, gives_whole_nodes=is_whole)
    policy = Policy(
        degree=degree,
        measures=True,
        degree_is_asked=is_asked,
        mixes_gpus=mixes,
        gpus_per_pack=max(gpus_per_pack, *(job.gpus for job in jobs)),
    )
    made = make(jobs, capacity, policy)
    found = sorted(member.job_index for pack in made.packs for member in pack.members)
    assert found == list(range(len(jobs)))
    for packs in group_by_slurm_job(made.packs):
        assert sum(map(count_gpus, packs)) <= policy.gpus_per_pack
        assert len({jobs[pack.members[0].job_index].group for pack in packs}) == 1
    for pack in made.packs:
        if pack.request is None:
            continue
        gpus = pack.request.gpus
        members = [jobs[member.job_index] for member in pack.members]
        assert [member.gpus for member in pack.members] == [job.gpus for job in members]
        assert all(job.gpus <= gpus for job in members)
        if not mixes:
            assert {job.gpus for job in members} == {gpus}
        at_once = sorted((job.gpus for job in members), reverse=True)[: pack.degree]
        if is_asked:
            assert sum(at_once) <= degree * gpus
        if pack.degree == 1:
            # One alone may ask for more than there is; that is Slurm's to refuse.
            continue
        assert pack.request.cpus <= gpus * 16
        assert (pack.request.host_memory_mb or 0) <= gpus * 64_000
        largest = sorted(((job.gpu_memory_mb or 0) * job.gpus for job in members), reverse=True)
        assert sum(largest[: pack.degree]) <= gpus * 80_000


def build_profile(**changes: object) -> UsageProfile:
    known = UsageProfile(
        4000, 2000, 0.2, 0.1, 0.1, 0.4, 0.02, 1.0, 200.0, 120.0, 10.0, 600.0, KnownBy.EXACT,
        H200.gpu_model,
    )  # fmt: skip
    return dataclasses.replace(known, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "expected"), [(5, [5]), (16, [8]), (40, [8])])
def test_known_jobs_fill_all_gpus_of_a_node(count: int, expected: list[int]) -> None:
    jobs = build_jobs(count)
    profiles = {index: build_profile() for index in range(count)}
    policy = dataclasses.replace(ON_NODE, modes=(SharingMode.MPS,), slowdown_bound=2.0)
    made = plan(jobs, profiles, NODE, policy, H200)
    assert [len(packs) for packs in group_by_slurm_job(made.packs)] == expected
    sizes = [len(pack.members) for pack in made.packs]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == count


def test_like_known_jobs_wait_rather_than_that_a_second_node_is_half_empty() -> None:
    jobs = build_jobs(40)
    # Four of them fill a GPU's memory.
    profiles = {index: build_profile(gpu_memory_peak_mb=12_500) for index in range(40)}
    policy = dataclasses.replace(ON_NODE, modes=(SharingMode.MPS,), slowdown_bound=2.0)
    made = plan(jobs, profiles, NODE, policy, H200)
    assert list_sets(made.packs) == [[5] * 8]
    assert {pack.degree for pack in made.packs} == {4}


def test_known_jobs_of_which_each_fills_a_gpu_wait_for_each_other_or_get_more_nodes() -> None:
    rng = random.Random(1)
    jobs = build_jobs(20)
    profiles = {
        index: build_profile(sm_activity=0.95, engine_activity=1.0, run_s=rng.uniform(100, 500))
        for index in range(20)
    }
    policy = dataclasses.replace(ON_NODE, modes=(SharingMode.MPS,))
    made = plan(jobs, profiles, NODE, policy, H200)
    groups = group_by_slurm_job(made.packs)
    assert sorted(len(packs) for packs in groups) == [6, 7, 7]
    assert all(pack.request is not None for pack in made.packs)


@pytest.mark.parametrize(("exchange", "sizes"), [(0.05, [3, 3]), (0.95, [1] * 6)])
def test_known_jobs_of_two_gpus_share_them_where_what_they_exchange_leaves_room(
    exchange: float, sizes: list[int]
) -> None:
    jobs = build_jobs(6, gpus=2)
    profile = build_profile(nvlink_share=exchange, sm_activity=0.35, engine_activity=0.6)
    policy = Policy(measures=True, modes=(SharingMode.MPS,), slowdown_bound=1.8)
    made = plan(jobs, dict.fromkeys(range(6), profile), NODE, policy, H200)
    assert [len(pack.members) for pack in made.packs] == sizes
    assert all(pack.known for pack in made.packs if len(pack.members) > 1)
    for pack in made.packs:
        assert pack.request is None or pack.request.gpus == 2
        assert [member.gpus for member in pack.members] == [2] * len(pack.members)


def test_what_is_not_known_to_be_exchanged_is_measured() -> None:
    jobs = build_jobs(4, gpus=2)
    profiles = {i: build_profile(pcie_share=None, sm_activity=0.9) for i in range(4)}
    made = plan(jobs, profiles, NODE, Policy(measures=True), H200)
    assert [(len(pack.members), pack.known) for pack in made.packs] == [(2, False)] * 2


def test_how_many_gpus_a_pack_has() -> None:
    jobs = build_jobs(3)
    shared = dataclasses.replace(NODE, gives_whole_nodes=False)
    exclusive = build_jobs(3, group=(("exclusive", ""),))

    def choose(asked: str, capacity: Capacity, chosen: list[Job] = jobs) -> tuple[int, str]:
        choice = choose_gpus_per_pack(chosen, capacity, Policy(gpus_asked=asked))
        return choice.gpus, choice.reason

    assert choose("auto", shared) == (1, "")
    assert choose("auto", NODE) == (8, "a pack has 8 GPUs: whole nodes are given there")
    assert choose("auto", shared, exclusive) == (8, "a pack has 8 GPUs: --exclusive")
    assert choose("node", shared) == (8, "a pack has 8 GPUs: --gpus-per-pack=node")
    assert choose("3", shared) == (3, "a pack has 3 GPUs: --gpus-per-pack")
    assert choose("1", NODE) == (1, "")
    assert choose("node", Capacity())[0] == 1
    assert "not known here" in choose("node", Capacity())[1]
    with pytest.raises(NoPackPossible, match="it asks for 4 GPUs, and a pack is to have 2"):
        choose("2", shared, [build_job(gpus=4)])


def test_packs_get_more_gpus_where_fewer_slurm_jobs_may_run() -> None:
    made = make(build_jobs(40), dataclasses.replace(NODE, gives_whole_nodes=False))
    assert len(made.packs) == 10

    def widen(*limits: int | None, node: int | None = 8) -> int | None:
        capacity = dataclasses.replace(NODE, gpus_per_node=node, limits=UserLimits(*limits))
        choice = widen_for_limit(made, capacity)
        assert choice is None or "and there is work for 10 GPUs" in choice.reason
        return None if choice is None else choice.gpus

    assert widen() is None
    assert widen(10) is None
    assert widen(4) == 3
    # No more than a node has, or than one job may have.
    assert widen(1) == 8
    assert widen(1, None, 4) == 4
    assert widen(1, node=None) is None
    # A job that asks for more GPUs than its user may have would never start.
    assert widen(2, 6) == 3
    assert widen(2, 3) is None
