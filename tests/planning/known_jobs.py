"""Jobs whose loads are known, as they were measured on an H200, and strategies for any."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    KnownBy,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.model.usage_profile import Calibration, ModeModel

H200 = "NVIDIA H200"
H100 = "NVIDIA H100 80GB HBM3"
MODES = (SharingMode.MPS, SharingMode.TIMESLICE)

CALIBRATION = Calibration(
    gpu_model=H200,
    modes={
        "timeslice": ModeModel(turns=0.85, switching=0.15, copying=0.6),
        "mps": ModeModel(
            waiting=0.8,
            width=1.4,
            narrowing=0.6,
            dram=0.8,
            capacity=1.3,
            crowding=0.6,
            copying=1.1,
        ),
    },
    residual=0.05,
    idle_power_w=75.0,
    power_limit_w=700.0,
)
ROOMY = Capacity(
    cpus_per_gpu=48,
    host_memory_mb_per_gpu=400_000,
    gpu_memory_mb=143_771,
    time_limit_max_s=7 * 86_400,
    time_limit_default_s=3600,
)
POLICY = Policy(slowdown_bound=1.5, modes=MODES)


def build_job(number: int = 1, **changes: object) -> Job:
    job = Job(
        number, f"job{number}", "job.sh", (), "/tmp", cpus=2, gpus=1, time_limit_s=1200,
        came_together=True,
    )  # fmt: skip
    return dataclasses.replace(job, **changes)  # type: ignore[arg-type]


def build_profile(sm: float, dram: float, engine: float, **changes: object) -> UsageProfile:
    profile = UsageProfile(
        gpu_memory_peak_mb=6500,
        host_memory_peak_mb=2000,
        sm_activity=sm,
        dram_activity=dram,
        engine_activity=engine,
        cpu_cores=1.0,
        power_w=160.0,
        idle_power_w=75.0,
        steps_per_s=10.0,
        run_s=600.0,
        known_by=KnownBy.EXACT,
        gpu_model=H200,
    )
    return dataclasses.replace(profile, **changes)  # type: ignore[arg-type]


SMALL = build_profile(0.12, 0.03, 0.29)
LARGE = build_profile(0.43, 0.18, 0.63, gpu_memory_peak_mb=11_000, power_w=350.0)
SATURATING = build_profile(0.95, 0.5, 1.0, gpu_memory_peak_mb=40_000, power_w=680.0)


def build_call(
    *kinds: tuple[str, UsageProfile | None],
) -> tuple[list[Job], dict[int, UsageProfile]]:
    """Jobs by name and profile."""
    jobs = [build_job(number, name=name) for number, (name, _) in enumerate(kinds, 1)]
    known = {index: profile for index, (_, profile) in enumerate(kinds) if profile is not None}
    return jobs, known


SHARES = st.floats(0.0, 1.0) | st.sampled_from([0.05, 0.12, 0.3, 0.6])
ODD = st.none() | SHARES | st.sampled_from([0.0, 1.7, 40.0])
"""What may stand in a profile: also nothing, and what contradicts itself."""
PROFILES = st.builds(
    UsageProfile,
    gpu_memory_peak_mb=st.none() | st.integers(0, 60_000),
    host_memory_peak_mb=st.none() | st.integers(0, 50_000),
    sm_activity=ODD,
    dram_activity=ODD,
    tensor_activity=ODD,
    engine_activity=ODD,
    pcie_share=ODD,
    cpu_cores=st.none() | st.floats(0.0, 64.0),
    power_w=st.none() | st.floats(0.0, 1000.0),
    idle_power_w=st.none() | st.floats(0.0, 200.0),
    steps_per_s=st.none() | st.floats(0.01, 100.0),
    run_s=st.none() | st.floats(0.0, 100_000.0),
    known_by=st.sampled_from(KnownBy),
    gpu_model=st.sampled_from([H200, H200, H100, ""]),
    sensitivity=st.floats(-0.5, 0.5),
    pressure=st.floats(-0.5, 0.5),
)
SOUND_PROFILES = st.builds(
    build_profile,
    SHARES,
    SHARES,
    SHARES,
    gpu_memory_peak_mb=st.integers(500, 60_000),
    host_memory_peak_mb=st.none() | st.integers(100, 50_000),
    run_s=st.none() | st.sampled_from([300.0, 600.0, 5000.0]),
    known_by=st.sampled_from([KnownBy.EXACT, KnownBy.EXACT, KnownBy.FAMILY]),
)
JOBS = st.builds(
    build_job,
    st.just(1),
    cpus=st.integers(1, 8),
    host_memory_mb=st.none() | st.integers(100, 40_000),
    gpu_memory_mb=st.none() | st.integers(1000, 60_000),
    time_limit_s=st.none() | st.integers(60, 7200),
    group=st.sampled_from([(), (), (), (("partition", "gpu"),)]),
    came_together=st.sampled_from([True, True, True, True, False]),
    max_slowdown=st.sampled_from([None, None, None, 1.0, 1.3, 3.0]),
)
CAPACITIES = st.builds(
    Capacity,
    cpus_per_gpu=st.none() | st.integers(4, 64),
    host_memory_mb_per_gpu=st.none() | st.integers(10_000, 200_000),
    gpu_memory_mb=st.none() | st.integers(16_000, 144_000),
    time_limit_max_s=st.none() | st.integers(600, 20_000),
    time_limit_default_s=st.none() | st.integers(60, 7200),
)
POLICIES = st.builds(
    Policy,
    degree=st.integers(1, 6),
    pack_size=st.none() | st.none() | st.integers(1, 12),
    slowdown_bound=st.sampled_from([1.0, 1.2, 1.5, 2.0, 3.0]),
    running_limit=st.none() | st.none() | st.integers(1, 12),
    goal=st.sampled_from(Goal),
    degree_is_asked=st.booleans(),
    degree_max=st.sampled_from([2, 5, 48]),
    modes=st.sampled_from([(), MODES, (SharingMode.MPS,), (SharingMode.TIMESLICE,)]),
)
