"""What planning is given and what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

WATCHED_FROM_MB = 1024
"""Host memory from which on a pack is watched: a smaller one would miss what the monitor takes."""


class SharingMode(enum.StrEnum):
    """How the members of a pack share the GPU."""

    EXCLUSIVE = "exclusive"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"


@dataclass(frozen=True)
class UsageProfile:
    """Measured solo use of a job on a GPU model; every figure is None where unknown."""

    gpu_memory_peak_mb: int | None = None
    host_memory_peak_mb: int | None = None
    sm_activity: float | None = None
    dram_activity: float | None = None


@dataclass(frozen=True)
class Capacity:
    """What one GPU of the partition brings with it: the smallest share over its nodes.

    Attributes:
        cpus_per_gpu: The node's CPUs over its GPUs; None where unknown.
        host_memory_mb_per_gpu: The node's memory over its GPUs; None where unknown.
        gpu_memory_mb: Memory of one GPU; None where unknown.
        time_limit_max_s: The partition's MaxTime; None where infinite or unknown.
        time_limit_default_s: The partition's DefaultTime; None where infinite or unknown.
    """

    cpus_per_gpu: int | None = None
    host_memory_mb_per_gpu: int | None = None
    gpu_memory_mb: int | None = None
    time_limit_max_s: int | None = None
    time_limit_default_s: int | None = None


@dataclass(frozen=True)
class Policy:
    """How far sharing may go.

    Attributes:
        degree: Members that run at the same time on a GPU, at most.
        pack_size: Members of a pack, at most; those above the degree wait in it. None means
            as many as the degree.
        slowdown_bound: Slowdown that is accepted; wall limits are stretched by it.
        running_limit: `%limit` of an array: members that run at the same time over all packs.
        mode: Sharing mode of packs with a degree above 1.
        share: What `--share` asked for, as text; see model.sharing.
        start_margin_s: Time that a pack asks for on top, for starting and ending.
        pack_time_max_s: The site's cap on a pack's time limit; None for no cap.
        monitor_mb: Host memory that a pack asks for on top, for what watches it.
        probe_s: Time that a pack asks for on top, because one of its members may be probed.
    """

    degree: int = 4
    pack_size: int | None = None
    slowdown_bound: float = 1.5
    running_limit: int | None = None
    mode: SharingMode = SharingMode.MPS
    share: str = "auto"
    start_margin_s: int = 60
    pack_time_max_s: int | None = None
    monitor_mb: int = 0
    probe_s: int = 0


@dataclass(frozen=True)
class MemberPlan:
    """A member's place in a pack.

    Attributes:
        job_index: Index into the jobs that were given to `plan`.
        cpus: CPUs of its own.
        host_memory_mb: Host memory limit of its step; None for no limit of its own.
        wall_limit_s: Wall-clock limit, stretched; None for none of its own.
        gpu_memory_limit_mb: Limit on GPU memory; None for none.
        thread_percentage: MPS thread limit; None for none.
    """

    job_index: int
    cpus: int
    host_memory_mb: int | None
    wall_limit_s: int | None
    gpu_memory_limit_mb: int | None = None
    thread_percentage: int | None = None


@dataclass(frozen=True)
class PackRequest:
    """What the pack asks Slurm for; None means that Slurm's default stands."""

    gpus: int
    gpu_type: str | None
    cpus: int
    host_memory_mb: int | None
    time_limit_s: int | None


@dataclass(frozen=True)
class PackPlan:
    """One pack.

    Attributes:
        members: In the order in which they start.
        degree: How many of them run at the same time.
        mode: Sharing mode.
        request: What is asked of Slurm; None for a job alone, which gets what it asked for.
        group: The options that all members share, passed to sbatch.
        predicted_slowdown: Per member, in the same order; None where there is no model yet.
        reasons: Why the pack looks like this, a sentence each.
    """

    members: tuple[MemberPlan, ...]
    degree: int
    mode: SharingMode
    request: PackRequest | None
    group: tuple[tuple[str, str], ...]
    predicted_slowdown: tuple[float, ...] | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The packs of one call.

    Attributes:
        packs: In submission order; every job is in exactly one.
        packs_at_once: How many packs may run at the same time; None for no limit.
        reasons: What holds for the whole plan, a sentence each.
    """

    packs: tuple[PackPlan, ...]
    packs_at_once: int | None
    reasons: tuple[str, ...]
