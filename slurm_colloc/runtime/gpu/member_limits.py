"""What a member under MPS may use of the GPU; pure.

Also: what a member that starts is given of a shared GPU, as far as that is not planned; a value;
how a member that starts is put on the GPUs of its pack.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.host.mps.mps_control import (
    CONTEXT_MB,
    build_member_environment,
    compute_default_thread_percentage,
)
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_states import GpuUse
from slurm_colloc.store.pack.pack_directory import PackRecord, Setup

# ----
# What a member that starts is given of a shared GPU, as far as that is not planned; a value.

NORMAL, BELOW_NORMAL = 0, 1
"""Priorities of MPS clients (NVIDIA, Multi-Process Service, section 4.2.6); hints, not bounds."""


@dataclass(frozen=True)
class GpuShare:
    """A member's share.

    Attributes:
        likely_degree: As many as may run at once in the end; None for as many as planned.
        gpu_memory_mb: What it may take of the GPU's memory; None for no limit.
        client_priority: CUDA_MPS_CLIENT_PRIORITY: 0 for a member that is to stay fast, 1 for those
            that share with one; None where the pack has none, and all are alike.
        gpus: Which of the pack's GPUs it gets, by UUID; none for all of them.
        widest: The most GPUs that a member of the pack has: by such ones each is given its share.
    """

    likely_degree: int | None = None
    gpu_memory_mb: int | None = None
    client_priority: int | None = None
    gpus: tuple[str, ...] = ()
    widest: int = 1


AS_PLANNED = GpuShare()


# ---- What a member under MPS may use of the GPU; pure --------------------------------------------


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


# ---- How a member that starts is put on the GPUs of its pack; pure -------------------------------


def place_on_shared_gpu(
    member: Member, share: GpuShare, record: PackRecord, setup: Setup, pipe_directory: str
) -> tuple[GpuUse, dict[str, str]]:
    """Put a member under the pack's MPS daemon, with its limits.

    Args:
        member: The member.
        share: What it is given.
        record: The pack's pack.json.
        setup: How the pack's GPUs are prepared.
        pipe_directory: The daemon's.
    """
    plan, retries = member.spec.plan, member.record.retries
    gpus = share.gpus or setup.gpus
    degree = count_on_one_gpu(share.likely_degree or record.degree, share.widest, len(setup.gpus))
    shared = SharedGpu(gpus, setup.gpu_memory_mb, 1 if retries.alone else degree, pipe_directory)
    is_settled_here = retries.alone or share.likely_degree is not None
    return place_under_mps(
        shared,
        thread_percentage=None if is_settled_here else plan.thread_percentage,
        limit_mb=share.gpu_memory_mb,
        client_priority=share.client_priority,
    )


def count_on_one_gpu(members: int, gpus: int, of_gpus: int) -> int:
    """How many of so many members meet on one GPU, if they are spread over all.

    Args:
        members: How many there are.
        gpus: How many GPUs each has at most.
        of_gpus: How many there are.
    """
    return -(-members * min(gpus, of_gpus) // max(1, of_gpus))


def place_without_mps(
    mode: SharingMode | None, share: GpuShare, setup: Setup
) -> tuple[GpuUse | None, dict[str, str]]:
    """Let a member use its GPUs as they are.

    Args:
        mode: How the pack shares them; None where that is not known.
        share: What it is given.
        setup: How the pack's GPUs are prepared.
    """
    if not setup.gpus:
        return None, {}
    mode = mode or SharingMode.TIMESLICE
    apart = SharingMode.TIMESLICE if mode is SharingMode.MPS else mode
    gpus = share.gpus or setup.gpus
    uuids = tuple(gpu for gpu in gpus if gpu.startswith(("GPU-", "MIG-")))
    is_instance = any(uuid.startswith("MIG-") for uuid in uuids)
    # Slurm's numbers are not CUDA's: without UUIDs it sees all of them.
    is_part = len(uuids) < len(setup.gpus) and len(uuids) == len(gpus)
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if is_instance or is_part else {}
    return GpuUse(apart.value, uuids=uuids), environment
