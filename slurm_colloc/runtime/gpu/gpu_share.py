"""What a member that starts is given of a shared GPU, as far as that is not planned; a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuShare:
    """A member's share.

    Attributes:
        likely_degree: As many as may run at once in the end; None for as many as planned.
        gpu_memory_mb: What it may take of the GPU's memory, as measured; None where its share by
            the plan stands.
    """

    likely_degree: int | None = None
    gpu_memory_mb: int | None = None


AS_PLANNED = GpuShare()
