from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.plan import (
    Capacity,
    KnownBy,
    PackPlan,
    Plan,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.planning.pack_pricing import SETUP_S
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.submission.jobs.call_jobs import Candidate
from slurm_colloc.submission.packs.build_packs import build_request_options
from slurm_colloc.submission.packs.call_batches import group_into_batches
from slurm_colloc.submission.plan.plan_call import add_candidates
from tests.planning import known_jobs
from tests.planning.known_jobs import (
    CALIBRATION,
    H100,
    LARGE,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
    build_job,
)

CALLS = st.lists(
    st.tuples(known_jobs.JOBS, st.none() | known_jobs.PROFILES | known_jobs.SOUND_PROFILES),
    max_size=9,
)
SURE = dataclasses.replace(CALIBRATION, residual=0.0)
slow = settings(suppress_health_check=[HealthCheck.too_slow])


def make(
    *kinds: tuple[str, UsageProfile | None],
    policy: Policy = POLICY,
    capacity: Capacity = ROOMY,
    calibration: Calibration | None = CALIBRATION,
) -> Plan:
    jobs, known = build_call(*kinds)
    return plan(jobs, known, capacity, policy, calibration)


def list_names(jobs: list[Job], pack: PackPlan) -> list[str]:
    return [jobs[member.job_index].name for member in pack.members]


@slow
@given(
    call=CALLS,
    capacity=known_jobs.CAPACITIES,
    policy=known_jobs.POLICIES,
    calibration=st.none() | st.just(CALIBRATION),
)
def test_every_job_is_in_one_pack_and_no_hard_limit_is_broken(
    call: list[tuple[Job, UsageProfile | None]],
    capacity: Capacity,
    policy: Policy,
    calibration: Calibration | None,
) -> None:
    jobs = [job for job, _ in call]
    profiles = {i: profile for i, (_, profile) in enumerate(call) if profile is not None}
    made = plan(jobs, profiles, capacity, policy, calibration)
    indices = [member.job_index for pack in made.packs for member in pack.members]
    assert sorted(indices) == list(range(len(jobs)))
    firsts = [min(member.job_index for member in pack.members) for pack in made.packs]
    assert firsts == sorted(firsts)
    for pack in made.packs:
        assert pack.reasons
        assert all(pack.reasons)
        assert "nan" not in " ".join(pack.reasons)
        if policy.pack_size is not None:
            assert len(pack.members) <= max(policy.pack_size, 1)
        if pack.request is None or pack.degree == 1:
            continue
        running = sorted((m.cpus for m in pack.members), reverse=True)[: pack.degree]
        assert capacity.cpus_per_gpu is None or sum(running) <= capacity.cpus_per_gpu
        for share, amounts in (
            (capacity.host_memory_mb_per_gpu, [m.host_memory_mb for m in pack.members]),
            (
                compute_usable_gpu_memory_mb(capacity.gpu_memory_mb),
                [m.gpu_memory_limit_mb for m in pack.members],
            ),
        ):
            largest = sorted((a or 0 for a in amounts), reverse=True)[: pack.degree]
            assert share is None or sum(largest) <= share
        most = policy.degree if policy.degree_is_asked or not pack.known else policy.degree_max
        assert pack.degree <= min(most, policy.running_limit or most)
        for member in pack.members:
            limit_s = jobs[member.job_index].time_limit_s or capacity.time_limit_default_s
            assert (member.wall_limit_s is None) == (limit_s is None)
            if pack.request.time_limit_s is not None and member.wall_limit_s is not None:
                assert member.wall_limit_s <= pack.request.time_limit_s
        if pack.known:
            assert pack.predicted_slowdown is not None
            for member, slowdown in zip(pack.members, pack.predicted_slowdown, strict=True):
                bound = jobs[member.job_index].max_slowdown or policy.slowdown_bound
                assert 1.0 - 1e-9 <= slowdown <= bound * (1 + 1e-4)
            finish_s = pack.predicted_finish_s
            measured = [profiles[member.job_index].run_s for member in pack.members]
            if finish_s is None or not all(measured):
                assert finish_s is None
                assert not all(measured)
            elif pack.degree > 1 and capacity.time_limit_max_s is not None:
                assert finish_s <= max(1, capacity.time_limit_max_s - policy.start_margin_s) * 1.001
        assert not pack.known or all(math.isfinite(s) for s in pack.predicted_slowdown or ())


@pytest.mark.long
@slow
@given(
    kinds=st.lists(st.sampled_from(["small", "large", "saturating"]), min_size=2, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_the_jobs_does_not_change_who_shares(kinds: list[str], order) -> None:  # type: ignore[no-untyped-def]
    profiles = {"small": SMALL, "large": LARGE, "saturating": SATURATING}

    def find(names: list[str]) -> Counter[tuple[str, ...]]:
        jobs, known = build_call(*((name, profiles[name]) for name in names))
        made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
        return Counter(tuple(sorted(list_names(jobs, pack))) for pack in made.packs)

    shuffled = list(kinds)
    order.shuffle(shuffled)
    assert find(kinds) == find(shuffled)


@slow
@given(call=st.lists(st.tuples(known_jobs.JOBS, known_jobs.SOUND_PROFILES), max_size=7))
def test_known_jobs_without_a_calibration_are_packed_by_their_users_words(
    call: list[tuple[Job, UsageProfile]],
) -> None:
    jobs = [job for job, _ in call]
    # A peak of GPU memory counts without one, too.
    profiles = {
        i: dataclasses.replace(profile, gpu_memory_peak_mb=None)
        for i, (_, profile) in enumerate(call)
    }
    assert plan(jobs, profiles, ROOMY, POLICY) == plan(jobs, {}, ROOMY, POLICY)


def test_jobs_that_are_known_to_be_small_share_by_more_than_the_degree() -> None:
    (pack,) = make(*[("small", SMALL)] * 8).packs
    assert (pack.degree, pack.known, pack.mode) == (8, True, SharingMode.MPS)
    assert pack.predicted_slowdown is not None
    progress = sum(1 / slowdown for slowdown in pack.predicted_slowdown)
    assert progress > 6
    assert pack.predicted_finish_s is not None
    assert 600 <= pack.predicted_finish_s <= 600 * 1.5
    assert pack.reasons[1].startswith("8 members at once ")
    assert pack.reasons[1].endswith(f"(bound 1.5), {progress:.1f} times one alone")
    for member in pack.members:
        assert member.gpu_memory_limit_mb == math.ceil(6500 * 1.2) + 1024
        assert member.thread_percentage is not None
        assert member.solo_steps_per_s == 10.0
        assert member.max_slowdown == 1.5


def test_the_wall_limit_is_stretched_by_what_is_predicted_and_the_pack_asks_for_less() -> None:
    certain = dataclasses.replace(POLICY, share="mps!")
    (known,) = make(*[("small", SMALL)] * 2, policy=certain).packs
    (unknown,) = make(*[("small", None)] * 2, policy=certain).packs
    (other,) = make(*[("small", SMALL)] * 2).packs
    # By turns, which the node may choose, they would be slower than was predicted.
    assert {member.wall_limit_s for member in other.members} == {1800}
    assert known.request is not None
    assert unknown.request is not None
    assert known.predicted_slowdown is not None
    for member, slowdown in zip(known.members, known.predicted_slowdown, strict=True):
        assert member.wall_limit_s == round(1200 * min(1.5, slowdown * 1.2))
        assert member.wall_limit_s >= 1200
    assert known.request.time_limit_s is not None
    assert unknown.request.time_limit_s is not None
    assert known.request.time_limit_s < unknown.request.time_limit_s


def test_a_pack_that_would_end_in_time_only_without_its_margin_is_not_made() -> None:
    free = make(*[("small", SMALL)] * 4).packs[0].predicted_finish_s
    assert free is not None
    setup_s = 2 + math.ceil(SETUP_S[SharingMode.MPS] * (1 + CALIBRATION.residual))
    latest_s = math.floor(free * (1 + CALIBRATION.residual)) + POLICY.start_margin_s
    for limit_s, most in ((latest_s + setup_s, 4), (latest_s - 1, 3)):
        capacity = dataclasses.replace(ROOMY, time_limit_max_s=limit_s)
        packs = make(*[("small", SMALL)] * 4, capacity=capacity).packs
        assert max(len(pack.members) for pack in packs) == most
        for pack in packs:
            assert pack.predicted_finish_s is not None
            finish_s = pack.predicted_finish_s * (1 + CALIBRATION.residual)
            assert finish_s <= limit_s - POLICY.start_margin_s


@pytest.mark.parametrize("time_limit_s", [None, 1200])
def test_a_length_that_nobody_measured_is_no_prediction(time_limit_s: int | None) -> None:
    untimed = dataclasses.replace(SMALL, run_s=None)
    saturating = dataclasses.replace(SATURATING, run_s=None)
    jobs, known = build_call(
        ("small", SMALL), ("small", untimed), ("small", untimed), ("heavy", saturating)
    )
    jobs = [dataclasses.replace(job, time_limit_s=time_limit_s) for job in jobs]
    capacity = dataclasses.replace(ROOMY, time_limit_default_s=None)
    (pack, lone) = plan(jobs, known, capacity, POLICY, CALIBRATION).packs
    assert (pack.predicted_finish_s, lone.predicted_finish_s) == (None, None)
    assert pack.predicted_slowdown is not None
    assert pack.reasons[2] == (
        "how long 2 of 3 members run alone has not been measured: the time limit, or an hour, "
        "stands for it in the choice"
    )


def test_a_saturating_job_runs_alone_and_is_told_why_with_both_numbers() -> None:
    policy = dataclasses.replace(POLICY, slowdown_bound=1.05)
    kinds = [("small", SMALL), ("small", SMALL), ("heavy", SATURATING)]
    packs = make(*kinds, policy=policy, calibration=SURE).packs
    assert [len(pack.members) for pack in packs] == [2, 1]
    (reason,) = packs[1].reasons
    assert reason.startswith("heavy runs alone: with its best partner small 1 ")
    assert re.search(r"would be slowed down 1\.\d\d times, --max-slowdown is 1\.05", reason)
    assert packs[1].request is None
    assert packs[1].predicted_slowdown == (1.0,)


def test_two_saturating_jobs_are_told_of_the_bound_and_the_time() -> None:
    packs = make(("heavy", SATURATING), ("heavy", SATURATING)).packs
    assert len(packs) == 2
    for pack in packs:
        assert pack.reasons[0].startswith(
            "heavy runs alone: with its best partner heavy it would be slowed down 2."
        )
        assert "--max-slowdown is 1.5" in pack.reasons[0]


def test_unknown_jobs_do_not_share_with_known_ones() -> None:
    jobs, known = build_call(("a", SMALL), ("new", None), ("b", SMALL), ("new2", None))
    packs = plan(jobs, known, ROOMY, POLICY, CALIBRATION).packs
    assert [list_names(jobs, pack) for pack in packs] == [["a", "b"], ["new", "new2"]]
    (_, lone) = make(("a", SMALL), ("new", None), ("b", SMALL)).packs
    assert lone.reasons[0] == (
        "new runs alone: what it uses of a GPU is not known yet, and no other such job was "
        "submitted with it"
    )


def test_the_longest_member_starts_first_and_keeps_its_number() -> None:
    long = dataclasses.replace(SMALL, run_s=900.0)
    jobs, known = build_call(("a", SMALL), ("b", long), ("c", SMALL))
    (pack,) = plan(jobs, known, ROOMY, POLICY, CALIBRATION).packs
    assert [member.job_index for member in pack.members] == [1, 0, 2]


def test_a_degree_that_was_asked_for_is_not_exceeded() -> None:
    policy = dataclasses.replace(POLICY, degree=3, degree_is_asked=True)
    packs = make(*[("small", SMALL)] * 6, policy=policy).packs
    assert [pack.degree for pack in packs] == [3, 3]
    assert "takes no more members: it is full with 3 members" in packs[0].reasons


def test_where_the_gpus_memory_is_unknown_no_more_than_the_degree_share() -> None:
    capacity = dataclasses.replace(ROOMY, gpu_memory_mb=None)
    packs = make(*[("small", SMALL)] * 6, capacity=capacity).packs
    assert max(pack.degree for pack in packs) <= POLICY.degree


def test_like_jobs_queue_in_packs_of_the_size_that_was_asked_for() -> None:
    policy = dataclasses.replace(POLICY, degree=2, degree_is_asked=True, pack_size=6)
    packs = make(*[("small", SMALL)] * 6, policy=policy).packs
    assert [(len(pack.members), pack.degree, pack.known) for pack in packs] == [(6, 2, True)]
    assert packs[0].predicted_finish_s is not None
    assert packs[0].predicted_finish_s >= 1800


def test_a_family_and_a_borrowed_calibration_make_the_margin_wider_and_say_so() -> None:
    family = dataclasses.replace(SMALL, known_by=KnownBy.FAMILY)
    (pack,) = make(("a", family), ("b", SMALL)).packs
    assert pack.reasons[-1] == (
        "1 of 2 members are known by another job's runs: the margin is wider"
    )
    borrowed = dataclasses.replace(CALIBRATION, gpu_model=H100)
    (pack,) = make(("a", SMALL), ("b", SMALL), calibration=borrowed).packs
    assert pack.reasons[-1] == (
        f"how jobs slow each other down was measured on {H100}, what they take on NVIDIA H200: "
        "the margin is doubled"
    )
    relative = dataclasses.replace(LARGE, known_by=KnownBy.FAMILY)
    policy = dataclasses.replace(POLICY, slowdown_bound=1.35)
    both = make(*[("large", relative)] * 6, calibration=borrowed, policy=policy).packs
    own = make(*[("large", LARGE)] * 6, policy=policy).packs
    assert len(both) > len(own)


def test_memory_that_was_measured_is_a_hard_limit_without_any_words() -> None:
    hog = dataclasses.replace(SMALL, gpu_memory_peak_mb=70_000)
    packs = make(("hog", hog), ("hog", hog)).packs
    assert [pack.degree for pack in packs] == [1, 1]
    assert "170048 MB of GPU memory, 136582 MB are usable" in packs[0].reasons[0]


def test_every_job_has_a_place() -> None:
    jobs, known = build_call(
        *[("small", SMALL)] * 5, ("large", LARGE), ("heavy", SATURATING), ("new", None)
    )
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    indices = sorted(member.job_index for pack in made.packs for member in pack.members)
    assert indices == list(range(8))


def test_what_earlier_packs_showed_is_added_and_the_model_alone_stands_beside_it() -> None:
    policy = dataclasses.replace(POLICY, slowdown_bound=3.0)
    (plain,) = make(*[("small", SMALL)] * 3, policy=policy).packs
    assert {member.model_slowdown for member in plain.members} == {None}
    learnt = dataclasses.replace(SMALL, sensitivity=0.2, pressure=0.1)
    (pack,) = make(*[("small", learnt)] * 3, policy=policy).packs
    if [m.thread_percentage for m in pack.members] == [m.thread_percentage for m in plain.members]:
        assert [member.model_slowdown for member in pack.members] == pytest.approx(
            list(plain.predicted_slowdown or ())
        )
    for member in pack.members:
        assert member.predicted_slowdown is not None
        assert member.model_slowdown is not None
        assert member.predicted_slowdown == pytest.approx(member.model_slowdown + 0.3, abs=0.02)
    made = make(*[("small", dataclasses.replace(SMALL, sensitivity=0.9))] * 3)
    assert [pack.degree for pack in made.packs] == [1, 1, 1], "nobody is to suffer twice"


def test_one_job_is_planned_without_any_search() -> None:
    made = plan([build_job()], {0: SMALL}, ROOMY, POLICY, CALIBRATION)
    assert made.packs[0].reasons == (
        "job1 runs alone: no job that could share its GPU was submitted with it",
    )


def test_a_task_left_alone_asks_as_the_packs_of_its_array_do() -> None:
    jobs = [build_job(task, array_task=ArrayTask(task, 5, 1, 5, 1)) for task in range(1, 6)]
    policy = dataclasses.replace(POLICY, degree=2, degree_is_asked=True)
    made = plan(jobs, dict.fromkeys(range(5), SMALL), ROOMY, policy, CALIBRATION)
    lone, *others = sorted(made.packs, key=lambda pack: len(pack.members))
    assert [len(pack.members) for pack in (lone, *others)] == [1, 2, 2]
    assert lone.request is not None
    assert lone.mode is SharingMode.EXCLUSIVE
    assert (lone.request.cpus, lone.request.time_limit_s) == (2, 1200 + policy.start_margin_s)
    # Nobody is ended for what was left free.
    (member,) = lone.members
    assert member.host_memory_mb == ROOMY.host_memory_mb_per_gpu
    assert (member.predicted_slowdown, member.wall_limit_s) == (1.0, 1200)
    candidates = [Candidate(job, b"", {}) for job in jobs]
    assert len(group_into_batches(add_candidates(made.packs, candidates), None)) == 1
    alone = [dataclasses.replace(job, array_task=None) for job in jobs]
    made = plan(alone, dict.fromkeys(range(5), SMALL), ROOMY, policy, CALIBRATION)
    assert [pack.request for pack in made.packs if len(pack.members) == 1] == [None]


def test_jobs_without_a_time_limit_share_a_pack_that_asks_for_none() -> None:
    endless = dataclasses.replace(ROOMY, time_limit_max_s=None)
    jobs = [build_job(n, time_limit_s=None, shape=(("time", "0"),)) for n in (1, 2)]
    known = {0: SMALL, 1: SMALL}
    (pack,) = plan(jobs, known, endless, POLICY, CALIBRATION).packs
    assert pack.request is not None
    assert (pack.request.time_limit_s, pack.request.is_unlimited) == (None, True)
    assert "--time=UNLIMITED" in build_request_options(pack.request)
    assert {member.wall_limit_s for member in pack.members} == {None}
    # One that ends is not to wait for the node that never does.
    jobs = [build_job(1), jobs[1]]
    assert len(plan(jobs, known, endless, POLICY, CALIBRATION).packs) == 2
    # Where there is a MaxTime, Slurm will not start it: nobody waits with it.
    assert len(plan(jobs, known, ROOMY, POLICY, CALIBRATION).packs) == 2
    capped = dataclasses.replace(POLICY, pack_time_max_s=86_400)
    made = plan([*jobs, build_job(3)], {}, ROOMY, capped, CALIBRATION)
    (lone,) = [pack for pack in made.packs if pack.members[0].job_index == 1]
    assert "asks for no time limit" in lone.reasons[0]
