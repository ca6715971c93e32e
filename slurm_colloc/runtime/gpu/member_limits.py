"""What a member under MPS may use of the GPU; pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.host.mps.mps_support import (
    CONTEXT_MB,
    build_member_environment,
    compute_default_thread_percentage,
    compute_fair_gpu_memory_mb,
)
from slurm_colloc.model.plan import MemberPlan, SharingMode
from slurm_colloc.runtime.gpu.gpu_share import NORMAL
from slurm_colloc.store.pack.member_states import GpuUse


@dataclass(frozen=True)
class SharedGpu:
    """The GPUs of a pack under MPS, as one member has them.

    Attributes:
        gpus: UUIDs of those that it sees.
        gpu_memory_mb: Memory of one; None where unknown.
        degree: Members at the same time on one of them by the plan.
        likely_degree: As many of them as may run at once in the end, by what is measured.
        pipe_directory: The daemon's.
    """

    gpus: tuple[str, ...]
    gpu_memory_mb: int | None
    degree: int
    likely_degree: int
    pipe_directory: str


def choose_gpu_memory_limit_mb(shared: SharedGpu, given_mb: int | None, places: int) -> int | None:
    """A member's limit in MiB: as given, else the fair share; None for the whole GPU.

    Args:
        shared: The GPU.
        given_mb: What the member asked for; None where it did not say.
        places: How many places it takes, because its share was not enough.
    """
    total_mb = shared.gpu_memory_mb
    if given_mb is None and total_mb is None:
        return None
    if places >= shared.degree > 1:
        return None
    if given_mb is None:
        assert total_mb is not None
        given_mb = compute_fair_gpu_memory_mb(total_mb, shared.degree)
    limit_mb = max(CONTEXT_MB, given_mb * places)
    # A limit above the device is ignored silently (measured on 580).
    return limit_mb if total_mb is None or limit_mb < total_mb else None


def place_under_mps(
    shared: SharedGpu,
    plan: MemberPlan,
    places: int,
    *,
    is_wide: bool = False,
    client_priority: int | None = None,
) -> tuple[GpuUse, dict[str, str]]:
    """How a member is put on the GPU, and the environment that does it.

    Args:
        shared: The GPU.
        plan: The member's plan.
        places: How many places it takes.
        is_wide: It is to show what it does without limits: one holds as long as its process lives.
        client_priority: CUDA_MPS_CLIENT_PRIORITY; None for the daemon's own. One of NORMAL, where
            others stand back, has all threads.
    """
    degree = max(1, shared.degree)
    places = min(degree, places)
    percentage = plan.thread_percentage or compute_default_thread_percentage(degree)
    if plan.predicted_slowdown is None:
        # It was not known how many would be good, and each was planned to have its share.
        likely = max(1, min(degree, shared.likely_degree))
        percentage = max(percentage, compute_default_thread_percentage(likely))
    percentage = 100 if is_wide or client_priority == NORMAL else min(100, percentage * places)
    limit_mb = choose_gpu_memory_limit_mb(shared, plan.gpu_memory_limit_mb, places)
    if is_wide and plan.gpu_memory_limit_mb is None:
        limit_mb = None
    environment = build_member_environment(
        gpus=shared.gpus,
        pipe_directory=shared.pipe_directory,
        thread_percentage=percentage,
        gpu_memory_limits_mb={} if limit_mb is None else dict.fromkeys(shared.gpus, limit_mb),
    )
    if client_priority is not None:
        environment["CUDA_MPS_CLIENT_PRIORITY"] = str(client_priority)
    use = GpuUse(SharingMode.MPS.value, percentage, limit_mb, uuids=shared.gpus)
    return use, environment
