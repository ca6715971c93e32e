"""Whether MPS can be used, and what a member gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.host.mps.mps_control import (
    MpsPrograms,
    build_member_environment,
    choose_client_cap,
    compute_default_thread_percentage,
    judge_support,
)
from slurm_colloc.host.mps.mps_state import MpsOptions, choose_passed_environment
from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer

FIRST = "GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"
SECOND = "GPU-c353c96e-d4ed-2971-32b3-1c6d5aca27c9"
H200 = Gpu(
    nvml_index=0,
    uuid=FIRST,
    name="NVIDIA H200",
    compute_mode="DEFAULT",
    compute_capability=(9, 0),
    mig_enabled=False,
)
ANSWER = NvmlAnswer(cuda_version="13.0", gpus=(H200,))
PROGRAMS = MpsPrograms("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server")


def answer(**changes: object) -> NvmlAnswer:
    return replace(ANSWER, gpus=(replace(H200, **changes),))  # type: ignore[arg-type]


def test_a_current_gpu_takes_48_clients_and_60_from_cuda_13_1_on() -> None:
    support = judge_support(PROGRAMS, ANSWER, [FIRST])
    assert (support.is_possible, support.client_cap, support.notes) == (True, 48, ())
    newer = replace(ANSWER, cuda_version="13.1")
    assert judge_support(PROGRAMS, newer, [FIRST]).client_cap == 60


@pytest.mark.parametrize(
    ("capability", "version", "cap"),
    [
        ((6, 1), "13.1", 16),
        ((7, 0), "12.4", 48),
        ((9, 0), "13.0", 48),
        ((9, 0), "13.1", 60),
        ((10, 0), "14.0", 60),
        ((9, 0), None, 48),
        (None, "13.4", 60),
        (None, None, 48),
    ],
)
def test_the_number_of_clients_depends_on_gpu_and_driver(
    capability: tuple[int, int] | None, version: str | None, cap: int
) -> None:
    assert choose_client_cap(capability, version) == cap


@pytest.mark.parametrize(
    ("found", "uuids", "reason"),
    [
        (answer(mig_enabled=True), [FIRST], "has MIG on"),
        (answer(compute_mode="PROHIBITED"), [FIRST], "PROHIBITED"),
        (answer(compute_capability=(3, 0)), [FIRST], "compute capability 3.0"),
        (ANSWER, [], "not known which GPUs"),
        (ANSWER, [FIRST, FIRST], "named twice"),
        (ANSWER, ["MIG-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"], "part of a GPU"),
    ],
)
def test_where_mps_cannot_be_used_the_reason_is_told(
    found: NvmlAnswer, uuids: list[str], reason: str
) -> None:
    support = judge_support(PROGRAMS, found, uuids)
    assert not support.is_possible
    assert support.client_cap is None
    assert reason in support.reason


def test_without_the_programs_there_is_no_mps() -> None:
    support = judge_support(None, ANSWER, [FIRST])
    assert (support.is_possible, support.client_cap) == (False, None)


def test_what_nvml_does_not_say_speaks_against_nothing() -> None:
    silent = NvmlAnswer(problem="nvidia-ml-py is not installed")
    support = judge_support(PROGRAMS, silent, [FIRST])
    assert (support.is_possible, support.client_cap) == (True, 48)
    assert "nvidia-ml-py is not installed" in support.notes[0]
    unknown = answer(mig_enabled=None, compute_mode=None, compute_capability=None)
    assert judge_support(PROGRAMS, unknown, [FIRST]).is_possible


def test_an_old_gpu_is_possible_and_its_drawbacks_are_told() -> None:
    support = judge_support(PROGRAMS, answer(compute_capability=(6, 0)), [FIRST])
    assert (support.is_possible, support.client_cap) == (True, 16)
    assert "older than Volta" in support.notes[0]


@pytest.mark.parametrize(("degree", "percent"), [(1, 100), (2, 100), (3, 66), (7, 28), (500, 1)])
def test_members_get_twice_their_fair_share_of_the_sms(degree: int, percent: int) -> None:
    assert compute_default_thread_percentage(degree) == percent


def test_a_member_names_its_gpus_by_uuid_on_every_side() -> None:
    built = build_member_environment(
        gpus=[FIRST],
        pipe_directory="/tmp/m/p",
        thread_percentage=28,
        gpu_memory_limits_mb={FIRST: 20000},
    )
    assert built == {
        "CUDA_VISIBLE_DEVICES": FIRST,
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/m/p",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "28",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{FIRST}=20000M",
    }


def test_no_limit_names_a_gpu_that_the_member_does_not_see() -> None:
    built = build_member_environment(
        gpus=[FIRST],
        pipe_directory="/tmp/m/p",
        gpu_memory_limits_mb={FIRST: 20000, SECOND: 20000},
    )
    assert built["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{FIRST}=20000M"


@pytest.mark.parametrize("percentage", [0, -1, 100.5, 150])
def test_a_percentage_that_cuda_would_ignore_is_refused(percentage: float) -> None:
    with pytest.raises(UsageProblem, match="thread percentage"):
        build_member_environment(
            gpus=[FIRST], pipe_directory="/tmp/m/p", thread_percentage=percentage
        )


def test_a_limit_without_room_for_the_context_is_refused() -> None:
    with pytest.raises(UsageProblem, match="100 MiB leaves no room"):
        build_member_environment(
            gpus=[FIRST], pipe_directory="/tmp/m/p", gpu_memory_limits_mb={FIRST: 100}
        )


@pytest.mark.parametrize("gpus", [(), ("0",), (f"{FIRST},{SECOND}",)])
def test_a_daemon_is_for_named_gpus_only(gpus: tuple[str, ...]) -> None:
    with pytest.raises(UsageProblem):
        MpsOptions(gpus=gpus)


def test_a_daemon_is_told_its_node_and_no_more() -> None:
    user = {"LD_PRELOAD": "x.so", "LD_LIBRARY_PATH": "/s", "SLURM_COLLOC_DRIVER": "/s"}
    assert choose_passed_environment(user) == {}
    assert choose_passed_environment({**user, "SLURMD_NODENAME": "n1"}) == {"SLURMD_NODENAME": "n1"}
