"""What a job takes of a GPU while it is alone there, and how sure that is.

From its usage profile, for the model of contention.
"""

from __future__ import annotations

import math

from slurm_colloc.model.calibration import Calibration, Load
from slurm_colloc.model.plan import KnownBy, UsageProfile
from slurm_colloc.planning.limits.hard_limits import is_borrowed

_RELATIVE_SPREAD = 0.05
"""By how much a relative may differ: those that differ by 10 % (model.usage.profile) tell
nothing, so this is a standard deviation of what is left."""
_BORROWED_MARGIN = 2.0
"""How much wider the margin is with another GPU's figures."""

_ENGINE_EXPONENT = 0.55
"""The share of the time in which the GPU works, where only SM activity was measured: on an H200
three trainings with SM activities of 0.12, 0.30 and 0.43 filled it by time slicing at 3.5, 1.95
and 1.59 times one alone (docs/benchmarks.md), which this power of the activity gives within 8 %.
"""


def build_load(profile: UsageProfile | None, calibration: Calibration | None = None) -> Load | None:
    """What a job takes alone; None where its SM or DRAM activity is unknown or no number.

    Args:
        profile: Its usage profile.
        calibration: For the power of the idle GPU, where the profile does not tell it.
    """
    if profile is None:
        return None
    sm, dram = _share(profile.sm_activity), _share(profile.dram_activity)
    if sm is None or dram is None or sm == 0.0:
        # One that used no SM while it was watched had not begun with what it is for.
        return None
    engine = _share(profile.engine_activity)
    if engine is None:
        engine = sm**_ENGINE_EXPONENT
    idle_w, power_w = profile.idle_power_w, profile.power_w
    if idle_w is None:
        idle_w = (calibration and calibration.idle_power_w) or 0.0
    cores = profile.cpu_cores
    return Load(
        engine=engine,
        sm=sm,
        dram=dram,
        tensor=_share(profile.tensor_activity) or 0.0,
        # What GPUs exchange goes over NVLink where they have it, and else over PCIe.
        pcie=max(_share(profile.pcie_share) or 0.0, _share(profile.nvlink_share) or 0.0),
        cpu_cores=cores if cores is not None and is_amount(cores) else 1.0,
        power_w=max(0.0, power_w - idle_w) if power_w is not None and is_amount(power_w) else 0.0,
        sensitivity=_finite(profile.sensitivity),
        pressure=_finite(profile.pressure),
    )


def has_only_rate(profile: UsageProfile | None) -> bool:
    """Whether GPU memory and rate of a job were measured, but not its activity.

    So it is on GPUs without GPM (Ampere and before), and of jobs that have only run in company:
    nothing can be predicted of them, but they may share, and the node measures how fast they are.
    """
    if profile is None or not profile.gpu_memory_peak_mb or not profile.steps_per_s:
        return False
    return profile.sm_activity is None or profile.dram_activity is None


def _share(value: float | None) -> float | None:
    if value is None or not is_amount(value):
        return None
    return min(1.0, value)


def is_amount(value: float) -> bool:
    """Whether a measured figure says anything: finite and not below 0."""
    return math.isfinite(value) and value >= 0.0


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def compute_margin(profile: UsageProfile, calibration: Calibration) -> float:
    """Relative uncertainty of a job's predicted slowdown."""
    margin = calibration.residual
    if profile.known_by is not KnownBy.EXACT:
        margin = math.hypot(margin, _RELATIVE_SPREAD)
    if is_borrowed(profile, calibration):
        margin *= _BORROWED_MARGIN
    return margin
