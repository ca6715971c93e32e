"""What a member under MPS may use of the GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.host.mps.mps_control import CONTEXT_MB
from slurm_colloc.runtime.member_limits import SharedGpu, place_under_mps

UUID = "GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"
H200_MB = 143771


def build_shared(degree: int, total_mb: int | None = H200_MB) -> SharedGpu:
    return SharedGpu((UUID,), total_mb, degree, "/tmp/csubm-1/p")


@pytest.mark.parametrize(
    ("total_mb", "given_mb", "limit_mb"),
    [
        (H200_MB, None, None),
        (H200_MB, 10240, 10240),
        # A limit that is no less than the GPU is none.
        (H200_MB, H200_MB, None),
        # Below a context nothing starts.
        (H200_MB, 100, CONTEXT_MB),
        # An unknown GPU.
        (None, None, None),
        (None, 10240, 10240),
    ],
)
def test_the_limit_on_gpu_memory(
    total_mb: int | None, given_mb: int | None, limit_mb: int | None
) -> None:
    use, _ = place_under_mps(build_shared(4, total_mb), thread_percentage=None, limit_mb=given_mb)
    assert use.gpu_memory_limit_mb == limit_mb


# min(100, 200 / n), where its plan does not say.
@pytest.mark.parametrize(
    ("degree", "planned", "percentage"),
    [
        (1, None, 100), (2, None, 100), (3, None, 66), (4, None, 50), (7, None, 28),
        (12, None, 16), (48, None, 4), (7, 40, 40), (1, 25, 25),
    ],
)  # fmt: skip
def test_the_share_of_the_multiprocessors(
    degree: int, planned: int | None, percentage: int
) -> None:
    use, environment = place_under_mps(
        build_shared(degree), thread_percentage=planned, limit_mb=None
    )
    assert use.thread_percentage == percentage
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percentage)


def test_what_a_member_gets_to_know() -> None:
    use, environment = place_under_mps(build_shared(3), thread_percentage=66, limit_mb=10240)
    assert environment == {
        "CUDA_VISIBLE_DEVICES": UUID,
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/csubm-1/p",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "66",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=10240M",
    }
    assert (use.mode, use.uuids, use.is_mps_client) == ("mps", (UUID,), None)
    # No limit is no variable: an entry that CUDA ignores would take the others with it.
    _, environment = place_under_mps(build_shared(3, None), thread_percentage=66, limit_mb=None)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in environment


@pytest.mark.parametrize(("priority", "percentage"), [(0, 100), (1, 28), (None, 28)])
def test_one_that_is_to_stay_fast_has_all_threads_and_its_neighbours_stand_back(
    priority: int | None, percentage: int
) -> None:
    use, environment = place_under_mps(
        build_shared(7), thread_percentage=None, limit_mb=None, client_priority=priority
    )
    assert use.thread_percentage == percentage
    wanted = None if priority is None else str(priority)
    assert environment.get("CUDA_MPS_CLIENT_PRIORITY") == wanted


@given(
    degree=st.integers(1, 60),
    total_mb=st.none() | st.integers(1000, 300_000),
    given_mb=st.none() | st.integers(1, 400_000),
    planned=st.none() | st.integers(1, 100),
)
def test_no_plan_gives_a_limit_that_mps_does_not_take(
    degree: int, total_mb: int | None, given_mb: int | None, planned: int | None
) -> None:
    use, _ = place_under_mps(
        build_shared(degree, total_mb), thread_percentage=planned, limit_mb=given_mb
    )
    assert use.thread_percentage is not None
    assert 1 <= use.thread_percentage <= 100
    if use.gpu_memory_limit_mb is not None:
        assert use.gpu_memory_limit_mb >= CONTEXT_MB
        assert total_mb is None or use.gpu_memory_limit_mb < total_mb
