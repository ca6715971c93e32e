"""What a member under MPS may use of the GPU; pure."""

from __future__ import annotations

from slurm_colloc.host.mps.mps_control import (
    CONTEXT_MB,
    build_member_environment,
    compute_default_thread_percentage,
)
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.place_member import NORMAL
from slurm_colloc.store.member_states import GpuUse


@dataclass(frozen=True)
class SharedGpu:
    """The GPUs of a pack under MPS, as one member has them.

    Attributes:
        gpus: UUIDs of those that it sees.
        gpu_memory_mb: Memory of one; None where unknown.
        degree: Members that may meet on one of them.
        pipe_directory: The daemon's.
    """

    gpus: tuple[str, ...]
    gpu_memory_mb: int | None
    degree: int
    pipe_directory: str


def place_under_mps(
    shared: SharedGpu,
    *,
    thread_percentage: int | None,
    limit_mb: int | None,
    client_priority: int | None = None,
) -> tuple[GpuUse, dict[str, str]]:
    """How a member is put on the GPU, and the environment that does it.

    Args:
        shared: The GPU.
        thread_percentage: The part of the GPU's threads by its plan; None for what suits the
            degree.
        limit_mb: What its process may take of the GPU's memory; None for no limit.
        client_priority: CUDA_MPS_CLIENT_PRIORITY; None for the daemon's own. One of NORMAL, where
            others stand back, has all threads.
    """
    percentage = thread_percentage or compute_default_thread_percentage(max(1, shared.degree))
    if client_priority == NORMAL:
        percentage = 100
    if limit_mb is not None:
        limit_mb = max(CONTEXT_MB, limit_mb)
        # A limit above the device is ignored silently (measured on 580).
        if shared.gpu_memory_mb is not None and limit_mb >= shared.gpu_memory_mb:
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
