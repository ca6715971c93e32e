"""How a member that starts is put on the GPUs of its pack; pure.

Also: what a member that starts is given of a shared GPU, as far as that is not planned; a value.
"""

from __future__ import annotations

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.members import Member
from slurm_colloc.store.member_states import GpuUse
from slurm_colloc.store.pack_directory import PackRecord, Setup

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
    from slurm_colloc.runtime.member_limits import SharedGpu, place_under_mps

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


def name_by_index(use: GpuUse, setup: Setup, names: str, sees_no_others: bool) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of a member under MPS by indexes; nothing where it stays by UUIDs.

    An index counts among the GPUs that the daemon was given. Without the daemon, or by NVML, it
    would count among those that the job sees: it says the same where those are all the member's.

    Args:
        use: How the member is put on them.
        setup: How the pack's GPUs are prepared, in the daemon's order.
        names: The setting.
        sees_no_others: The job sees no other GPUs than the pack's.
    """
    is_clear = sees_no_others and set(use.uuids) == set(setup.gpus)
    if names == "uuid" or not (is_clear or names == "index"):
        return {}
    indexes = sorted(setup.gpus.index(uuid) for uuid in use.uuids)
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, indexes))}


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
