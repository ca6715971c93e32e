"""What a member that starts is given of a shared GPU, as far as that is not planned; a value."""

from __future__ import annotations

from dataclasses import dataclass

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
