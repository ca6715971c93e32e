"""How patient a runner is with the GPU, its driver and its MPS daemon."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class GpuPatience:
    """Times in seconds, all at once, so that a test can shorten them.

    Attributes:
        nvml_s: How long NVML may take at the start: a GPU without persistence mode takes seconds.
        fault_grace_s: How long members that a fault has hit may take to end by themselves: their
            contexts are dead, and until they are gone the server takes no new client (CUDA MPS
            manual, "Error containment").
        mend_s: How long a server may take to mend once they are gone; about 1 s on an H200.
        stop_s: How long the end of the daemon is waited for.
        status_s: How long the daemon's answer is waited for, when a member has ended.
        gpu_looks_s: When NVML is asked for a member that is not known to be a client, after its
            start: it may use the GPU without MPS.
        gpu_look_every_s: How often NVML is asked at most.
        bases: Where the daemon's directory may lie; empty for the usual places.
    """

    nvml_s: float = 20.0
    fault_grace_s: float = 60.0
    mend_s: float = 5.0
    stop_s: float = 20.0
    status_s: float = 1.0
    gpu_looks_s: tuple[float, ...] = (15.0, 60.0)
    gpu_look_every_s: float = 60.0
    bases: tuple[str, ...] = ()
