"""What a member under MPS may use of the GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.host.mps.mps_support import CONTEXT_MB
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime.gpu.member_limits import (
    SharedGpu,
    choose_gpu_memory_limit_mb,
    place_under_mps,
)

UUID = "GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"
H200_MB = 143771


def build_shared(degree: int, total_mb: int | None = H200_MB) -> SharedGpu:
    return SharedGpu((UUID,), total_mb, degree, degree, "/tmp/csubm-1/p")


@pytest.mark.parametrize(
    ("degree", "total_mb", "given_mb", "places", "limit_mb"),
    [
        (4, H200_MB, None, 1, H200_MB // 4),
        (3, H200_MB, 10240, 1, 10240),
        # Not enough: twice as much, and the whole GPU where it has all places.
        (4, H200_MB, None, 2, H200_MB // 4 * 2),
        (4, H200_MB, 10240, 2, 20480),
        (4, H200_MB, 10240, 4, None),
        (4, H200_MB, None, 4, None),
        # A limit that is no less than the GPU is none.
        (2, H200_MB, 100_000, 2, None),
        (3, H200_MB, 100_000, 2, None),
        (2, H200_MB, H200_MB, 1, None),
        # Below a context nothing starts.
        (2, H200_MB, 100, 1, CONTEXT_MB),
        (48, 16_000, None, 1, CONTEXT_MB),
        # An unknown GPU.
        (4, None, None, 1, None),
        (4, None, 10240, 1, 10240),
        (4, None, 10240, 2, 20480),
        # Its partners were never there.
        (1, H200_MB, None, 1, None),
        (1, H200_MB, 10240, 1, 10240),
    ],
)
def test_the_limit_on_gpu_memory(
    degree: int, total_mb: int | None, given_mb: int | None, places: int, limit_mb: int | None
) -> None:
    shared = build_shared(degree, total_mb)
    assert choose_gpu_memory_limit_mb(shared, given_mb, places) == limit_mb


# min(100, 200 / n), multiplied with the places it takes.
@pytest.mark.parametrize(
    ("degree", "planned", "places", "percentage"),
    [
        (1, None, 1, 100), (2, None, 1, 100), (3, None, 1, 66), (4, None, 1, 50),
        (7, None, 1, 28), (12, None, 1, 16), (48, None, 1, 4), (4, None, 2, 100),
        (7, None, 3, 84), (7, 40, 1, 40), (7, 40, 2, 80), (7, 40, 99, 100),
    ],
)  # fmt: skip
def test_the_share_of_the_multiprocessors(
    degree: int, planned: int | None, places: int, percentage: int
) -> None:
    plan = MemberPlan(0, 1, None, None, None, planned)
    use, environment = place_under_mps(build_shared(degree), plan, places)
    assert use.thread_percentage == percentage
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percentage)


def test_what_a_member_gets_to_know() -> None:
    plan = MemberPlan(0, 1, None, None, 10240, 66)
    use, environment = place_under_mps(build_shared(3), plan, 1)
    assert environment == {
        "CUDA_VISIBLE_DEVICES": UUID,
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/csubm-1/p",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "66",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=10240M",
    }
    assert (use.mode, use.uuids, use.is_mps_client) == ("mps", (UUID,), None)
    # No limit is no variable: an entry that CUDA ignores would take the others with it.
    plan = MemberPlan(0, 1, None, None, None, 66)
    _, environment = place_under_mps(build_shared(3, None), plan, 1)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in environment


@pytest.mark.parametrize(("priority", "percentage"), [(0, 100), (1, 28), (None, 28)])
def test_one_that_is_to_stay_fast_has_all_threads_and_its_neighbours_stand_back(
    priority: int | None, percentage: int
) -> None:
    plan = MemberPlan(0, 1, None, None, None, None)
    use, environment = place_under_mps(build_shared(7), plan, 1, client_priority=priority)
    assert use.thread_percentage == percentage
    wanted = None if priority is None else str(priority)
    assert environment.get("CUDA_MPS_CLIENT_PRIORITY") == wanted


@given(
    degree=st.integers(1, 60),
    total_mb=st.none() | st.integers(1000, 300_000),
    given_mb=st.none() | st.integers(1, 400_000),
    planned=st.none() | st.integers(1, 100),
    places=st.integers(1, 64),
)
def test_no_plan_gives_a_limit_that_mps_does_not_take(
    degree: int, total_mb: int | None, given_mb: int | None, planned: int | None, places: int
) -> None:
    plan = MemberPlan(0, 1, None, None, given_mb, planned)
    use, _ = place_under_mps(build_shared(degree, total_mb), plan, places)
    assert use.thread_percentage is not None
    assert 1 <= use.thread_percentage <= 100
    if use.gpu_memory_limit_mb is not None:
        assert use.gpu_memory_limit_mb >= CONTEXT_MB
        assert total_mb is None or use.gpu_memory_limit_mb < total_mb


@pytest.mark.parametrize(
    ("likely", "planned", "predicted", "percentage"),
    [
        (8, 25, None, 25), (6, 25, None, 33), (2, 25, None, 100), (1, 25, None, 100),
        (99, 25, None, 25), (6, None, None, 33), (6, 25, 1.2, 25), (6, None, 1.2, 25),
    ],
)  # fmt: skip
def test_threads_are_shared_among_as_many_as_are_likely_to_run(
    likely: int, planned: int | None, predicted: float | None, percentage: int
) -> None:
    shared = SharedGpu((UUID,), H200_MB, 8, likely, "/tmp/csubm-1/p")
    plan = MemberPlan(0, 1, None, None, thread_percentage=planned, predicted_slowdown=predicted)
    use, environment = place_under_mps(shared, plan, 1)
    assert use.thread_percentage == percentage
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percentage)
    # More may be added: of the memory each has the share that was planned.
    assert use.gpu_memory_limit_mb == H200_MB // 8
