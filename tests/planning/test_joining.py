from __future__ import annotations

import dataclasses

import pytest

from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    KnownBy,
    MemberPlan,
    PackPlan,
    PackRequest,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.join_fit import (
    RunningPack,
    merge_policies,
    plan_pending_join,
    plan_running_join,
)
from slurm_colloc.planning.same_kind import compute_contradiction
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
)


def join_waiting(
    *kinds: tuple[str, UsageProfile | None],
    policy: Policy = POLICY,
    calibration: Calibration | None = CALIBRATION,
    capacity: Capacity = ROOMY,
) -> PackPlan | str:
    jobs, known = build_call(*kinds)
    return plan_pending_join(Question(jobs, known, capacity, policy, calibration))


def join_running(
    *kinds: tuple[str, UsageProfile | None],
    percentage: int | None = 50,
    bound: float | None = None,
    places: int = 8,
    capacity: Capacity = ROOMY,
    gpu_memory_limit_mb: int | None = None,
    mode: SharingMode = SharingMode.MPS,
) -> MemberPlan | str:
    jobs, known = build_call(*kinds)
    plans = tuple(
        MemberPlan(index, 2, 2000, 1800, gpu_memory_limit_mb, percentage, max_slowdown=bound)
        for index in range(len(jobs) - 1)
    )
    pack = RunningPack(
        request=PackRequest(1, None, 40, 100_000, 36_000),
        degree=places,
        time_left_s=30_000,
        plans=plans,
        mode=mode,
    )
    return plan_running_join(pack, Question(jobs, known, capacity, POLICY, CALIBRATION))


def test_a_small_job_joins_a_waiting_pack_beyond_the_usual_degree() -> None:
    planned = join_waiting(*[("small", SMALL)] * 6)
    assert isinstance(planned, PackPlan)
    assert (planned.degree, planned.known) == (6, True)
    assert [member.job_index for member in planned.members] == list(range(6))
    assert planned.predicted_slowdown is not None


def test_a_running_pack_is_predicted_in_the_mode_that_holds_in_it() -> None:
    by_mps = join_running(*[("small", SMALL)] * 6)
    assert isinstance(by_mps, MemberPlan)
    assert by_mps.thread_percentage == 25
    by_turns = join_running(*[("small", SMALL)] * 3, mode=SharingMode.TIMESLICE)
    assert isinstance(by_turns, MemberPlan)
    assert by_turns.thread_percentage is None
    refusal = join_running(*[("small", SMALL)] * 6, mode=SharingMode.TIMESLICE)
    assert "would be slowed down" in str(refusal)


def test_a_job_that_would_slow_a_waiting_pack_down_too_much_is_refused_with_numbers() -> None:
    refusal = join_waiting(("large", LARGE), ("large", LARGE), ("heavy", SATURATING))
    assert isinstance(refusal, str)
    assert "would be slowed down" in refusal
    assert "--max-slowdown is 1.5" in refusal


def test_known_and_unknown_jobs_share_as_far_as_there_is_room() -> None:
    planned = join_waiting(("small", SMALL), ("new", None))
    assert isinstance(planned, PackPlan)
    assert not planned.known
    member = join_running(("small", SMALL), ("new", None))
    assert isinstance(member, MemberPlan)
    # How many run at once, and with which part of the threads, is measured and not known before.
    assert member.thread_percentage is None
    assert member.max_slowdown == 1.5
    planned = join_waiting(*[("old", None)] * 4, ("new", None))
    assert isinstance(planned, PackPlan)
    assert (planned.degree, planned.request and planned.request.cpus) == (5, 10)
    small = dataclasses.replace(ROOMY, cpus_per_gpu=13)
    assert join_waiting(*[("old", None)] * 6, ("new", None), capacity=small) == (
        "all 6 places are taken"
    )


def test_without_a_calibration_room_counts() -> None:
    planned = join_waiting(*[("small", SMALL)] * 5, calibration=None)
    assert isinstance(planned, PackPlan)
    assert (planned.degree, planned.known) == (5, False)
    one = dataclasses.replace(POLICY, degree=4, degree_is_asked=True)
    refusal = join_waiting(*[("small", SMALL)] * 5, calibration=None, policy=one)
    assert refusal == "all 4 places are taken"


def test_a_degree_that_either_side_asked_for_counts_in_both() -> None:
    asked = dataclasses.replace(POLICY, degree=4, degree_is_asked=True)
    merged = merge_policies(POLICY, asked)
    assert merged.degree_is_asked
    assert merged.degree == 4
    refusal = join_waiting(*[("small", SMALL)] * 5, policy=merged)
    assert isinstance(refusal, str)
    assert refusal.startswith("5 would run at once, 4 may")


def test_a_small_job_takes_a_free_place_of_a_running_pack() -> None:
    member = join_running(*[("small", SMALL)] * 6)
    assert isinstance(member, MemberPlan)
    assert member.predicted_slowdown is not None
    assert 1.0 <= member.predicted_slowdown <= 1.5
    # Another mode than the one that this was predicted for may have to do.
    assert member.wall_limit_s == 1800
    assert member.solo_steps_per_s == 10.0
    assert member.gpu_memory_limit_mb == 8824


def test_a_running_pack_refuses_who_would_break_a_bound_with_both_numbers() -> None:
    refusal = join_running(("large", LARGE), ("large", LARGE), ("heavy", SATURATING))
    assert isinstance(refusal, str)
    assert "would be slowed down" in refusal
    assert "--max-slowdown is 1.5" in refusal


def test_the_bound_of_a_member_that_runs_counts() -> None:
    assert isinstance(join_running(("small", SMALL), ("small", SMALL), bound=1.5), MemberPlan)
    refusal = join_running(("small", SMALL), ("small", SMALL), bound=1.01)
    assert isinstance(refusal, str)
    assert "--max-slowdown is 1.01" in refusal


def test_measured_memory_counts_in_a_running_pack() -> None:
    capacity = dataclasses.replace(ROOMY, gpu_memory_mb=16_000)
    refusal = join_running(("small", SMALL), ("small", SMALL), capacity=capacity)
    assert refusal == "2 at once need 17648 MB of GPU memory, 15200 MB are usable"


def test_a_running_pack_gives_no_more_places_than_it_has() -> None:
    assert join_running(*[("small", SMALL)] * 4, places=3) == "all 3 places are taken"


UNWATCHED = UsageProfile(gpu_memory_peak_mb=60_000, known_by=KnownBy.EXACT, steps_per_s=5.0)
"""Of a GPU that tells its memory and no activity, such as an A100."""
A100 = dataclasses.replace(ROOMY, gpu_memory_mb=81_920, host_memory_mb_per_gpu=100_000)


@pytest.mark.parametrize("calibration", [CALIBRATION, None])
def test_a_measured_peak_counts_in_a_waiting_pack_where_no_load_is_known(
    calibration: Calibration | None,
) -> None:
    jobs, known = build_call(("big", UNWATCHED), ("big", UNWATCHED))
    refusal = plan_pending_join(Question(jobs, known, A100, POLICY, calibration))
    assert refusal == "2 at once need 146048 MB of GPU memory, 77824 MB are usable"
    half = dataclasses.replace(UNWATCHED, gpu_memory_peak_mb=30_000)
    jobs, known = build_call(("half", half), ("half", half))
    planned = plan_pending_join(Question(jobs, known, A100, POLICY, calibration))
    assert isinstance(planned, PackPlan)
    assert [member.gpu_memory_limit_mb for member in planned.members] == [37_024, 37_024]


def test_a_measured_peak_counts_in_a_running_pack_where_no_load_is_known() -> None:
    two = (("big", UNWATCHED), ("big", UNWATCHED))
    words = "of GPU memory, 77824 MB are usable"
    # As it was measured, whatever limit it was started with.
    for limit in (50_000, 4_800, None):
        refusal = join_running(*two, capacity=A100, gpu_memory_limit_mb=limit)
        assert refusal == f"2 at once need 146048 MB {words}"
    # Of which little is known counts as it was planned.
    member = join_running(
        ("new", None), ("big", UNWATCHED), capacity=A100, gpu_memory_limit_mb=4_800
    )
    assert isinstance(member, MemberPlan)
    assert member.gpu_memory_limit_mb == 73_024
    # What is known of one of them alone counts, too.
    refusal = join_running(
        ("new", None), ("big", UNWATCHED), capacity=A100, gpu_memory_limit_mb=20_000
    )
    assert refusal == f"2 at once need 93024 MB {words}"


@pytest.mark.parametrize(
    ("pack", "words"),
    [
        (POLICY, ""),
        (dataclasses.replace(POLICY, degree=2, slowdown_bound=3.0), ""),
        (dataclasses.replace(POLICY, goal=Goal.ENERGY), "its --goal is energy, not throughput"),
        (dataclasses.replace(POLICY, share="mps"), "its --share is mps, not auto"),
    ],
)
def test_pack_and_joiner_want_the_same(pack: Policy, words: str) -> None:
    assert compute_contradiction(pack, POLICY) == words
