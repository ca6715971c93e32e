from __future__ import annotations

import dataclasses

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import (
    Capacity,
    MemberPlan,
    PackPlan,
    PackRequest,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.planning.joining import (
    RunningPack,
    merge_policies,
    plan_pending_join,
    plan_running_join,
)
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
) -> PackPlan | str:
    jobs, known = build_call(*kinds)
    return plan_pending_join(
        jobs[:-1], jobs[-1], ROOMY, policy, profiles=known, calibration=calibration
    )


def join_running(
    *kinds: tuple[str, UsageProfile | None],
    percentage: int | None = 50,
    bound: float | None = None,
    places: int = 8,
    capacity: Capacity = ROOMY,
) -> MemberPlan | str:
    jobs, known = build_call(*kinds)
    plans = tuple(
        MemberPlan(index, 2, 2000, 1800, None, percentage, max_slowdown=bound)
        for index in range(len(jobs) - 1)
    )
    pack = RunningPack(
        request=PackRequest(1, None, 40, 100_000, 36_000),
        degree=places,
        time_left_s=30_000,
        plans=plans,
        jobs=tuple(jobs[:-1]),
        place_cpus=2,
    )
    policy = dataclasses.replace(POLICY, mode=SharingMode.MPS)
    return plan_running_join(
        pack, jobs[-1], capacity, policy, profiles=known, calibration=CALIBRATION
    )


def test_a_small_job_joins_a_waiting_pack_beyond_the_usual_degree() -> None:
    planned = join_waiting(*[("small", SMALL)] * 6)
    assert isinstance(planned, PackPlan)
    assert (planned.degree, planned.known) == (6, True)
    assert [member.job_index for member in planned.members] == list(range(6))
    assert planned.predicted_slowdown is not None


def test_a_job_that_would_slow_a_waiting_pack_down_too_much_is_refused_with_numbers() -> None:
    refusal = join_waiting(("large", LARGE), ("large", LARGE), ("heavy", SATURATING))
    assert isinstance(refusal, str)
    assert "would be slowed down" in refusal
    assert "--max-slowdown is 1.5" in refusal


def test_an_unknown_job_joins_no_known_one_and_an_unknown_one_by_its_users_words() -> None:
    refusal = "what new takes of a GPU is not known yet, so it shares with no job that is known"
    assert join_waiting(("small", SMALL), ("new", None)) == refusal
    assert join_running(("small", SMALL), ("new", None)) == refusal
    planned = join_waiting(("old", None), ("new", None))
    assert isinstance(planned, PackPlan)
    assert (planned.known, planned.start_degree) == (False, 1)
    assert join_waiting(*[("old", None)] * 4, ("new", None)) == "all 4 places are taken"


def test_without_a_calibration_the_degree_counts() -> None:
    assert join_waiting(*[("small", SMALL)] * 5, calibration=None) == "all 4 places are taken"


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
    assert member.gpu_memory_limit_mb == 7849


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
    assert refusal == "2 at once need 15698 MB of GPU memory, 15200 MB are usable"


def test_a_running_pack_gives_no_more_places_than_it_has() -> None:
    assert join_running(*[("small", SMALL)] * 4, places=3) == "all 3 places are taken"
