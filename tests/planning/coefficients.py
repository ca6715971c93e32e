"""A whole H200 and a contention model of it, for tests and benchmarks of the search.

The coefficients are plausible, not fitted, and no result depends on them.
"""

from __future__ import annotations

from slurm_colloc.model.usage_profile import Calibration, ModeModel
from slurm_colloc.planning.hard_limits import Limits

CALIBRATION = Calibration(
    gpu_model="H200",
    modes={
        "timeslice": ModeModel(turns=0.8, switching=0.1, copying=0.7),
        "mps": ModeModel(
            waiting=0.3,
            width=0.7,
            narrowing=0.2,
            dram=0.5,
            capacity=0.95,
            crowding=0.3,
            copying=1.1,
        ),
    },
    residual=0.05,
    idle_power_w=75.0,
    power_limit_w=700.0,
)
LIMITS = Limits(cpus=64, gpu_memory_mb=136_000, members=48)
