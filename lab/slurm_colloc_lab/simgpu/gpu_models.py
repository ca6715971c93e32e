"""The GPUs that can be simulated.

Sizes are those of NVIDIA's data sheets (B200, H200, H100 SXM5, A100 SXM4 with 80 and 40 GB, A30)
and of the CUDA programming guide (multiprocessors, FP32 lanes: 128 each on Hopper and Blackwell,
64 on these Amperes). The names and the gpu_memory are as nvidia-smi prints them. Idle power and
what the driver reserves are plausible, not measured, and so is most of the B200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

AMPERE, HOPPER, BLACKWELL = 7, 9, 10
"""NVML's numbers, `NVML_DEVICE_ARCH_*`."""


@dataclass(frozen=True)
class GpuModel:
    """One kind of GPU.

    Args:
        key: Its short name here.
        name: The product's name as NVML gives it.
        gpu_memory_mb: The total, in MiB.
        reserved_gpu_memory_mb: What the driver keeps for itself, in MiB.
        sm_count: Streaming multiprocessors.
        core_count: FP32 lanes of all of them.
        capability: CUDA compute capability.
        architecture: NVML's number.
        idle_power_w: With nothing on it.
        power_limit_w: The default limit.
        min_power_limit_w: The lowest limit that can be set.
        sm_clock_mhz: The highest clock of its SMs.
        memory_clock_mhz: The clock of its memory.
        mig_table: Its name in `MIG_TABLES`: how it can be partitioned.
        gpm: Whether it has GPU performance monitoring (Hopper and newer).
    """

    key: str
    name: str
    gpu_memory_mb: int
    reserved_gpu_memory_mb: int
    sm_count: int
    core_count: int
    capability: str
    architecture: int
    idle_power_w: int
    power_limit_w: int
    min_power_limit_w: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    mig_table: str
    gpm: bool


B200 = GpuModel(
    key="b200",
    name="NVIDIA B200",
    gpu_memory_mb=183359,
    reserved_gpu_memory_mb=720,
    sm_count=148,
    core_count=18944,
    capability="10.0",
    architecture=BLACKWELL,
    idle_power_w=140,
    power_limit_w=1000,
    min_power_limit_w=200,
    sm_clock_mhz=1965,
    memory_clock_mhz=3996,
    mig_table="B200",
    gpm=True,
)
H200 = GpuModel(
    key="h200",
    name="NVIDIA H200",
    gpu_memory_mb=143771,
    reserved_gpu_memory_mb=616,
    sm_count=132,
    core_count=16896,
    capability="9.0",
    architecture=HOPPER,
    idle_power_w=76,
    power_limit_w=700,
    min_power_limit_w=200,
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    mig_table="H200",
    gpm=True,
)
H100_80 = GpuModel(
    key="h100",
    name="NVIDIA H100 80GB HBM3",
    gpu_memory_mb=81559,
    reserved_gpu_memory_mb=472,
    sm_count=132,
    core_count=16896,
    capability="9.0",
    architecture=HOPPER,
    idle_power_w=70,
    power_limit_w=700,
    min_power_limit_w=200,
    sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    mig_table="H100-80",
    gpm=True,
)
A100_40 = GpuModel(
    key="a100",
    name="NVIDIA A100-SXM4-40GB",
    gpu_memory_mb=40960,
    reserved_gpu_memory_mb=424,
    sm_count=108,
    core_count=6912,
    capability="8.0",
    architecture=AMPERE,
    idle_power_w=50,
    power_limit_w=400,
    min_power_limit_w=100,
    sm_clock_mhz=1410,
    memory_clock_mhz=1215,
    mig_table="A100-40",
    gpm=False,
)
A100_80 = replace(
    A100_40,
    key="a100-80",
    name="NVIDIA A100-SXM4-80GB",
    gpu_memory_mb=81920,
    reserved_gpu_memory_mb=669,
    memory_clock_mhz=1593,
    mig_table="A100-80",
)
A30 = GpuModel(
    key="a30",
    name="NVIDIA A30",
    gpu_memory_mb=24576,
    reserved_gpu_memory_mb=318,
    sm_count=56,
    core_count=3584,
    capability="8.0",
    architecture=AMPERE,
    idle_power_w=30,
    power_limit_w=165,
    min_power_limit_w=100,
    sm_clock_mhz=1440,
    memory_clock_mhz=1215,
    mig_table="A30",
    gpm=False,
)

MODELS: Mapping[str, GpuModel] = {
    model.key: model for model in (B200, H200, H100_80, A100_80, A100_40, A30)
}
"""By short name."""


def choose_model(gpu_type: str | None) -> GpuModel:
    """The model for a GRES type such as `a100` or `nvidia_h100_80gb_hbm3`; else an H200."""
    words = (gpu_type or "").lower().replace("-", "_").split("_")
    if "a100" in words and {"80", "80gb"} & set(words):
        return A100_80
    return next((MODELS[word] for word in words if word in MODELS), H200)
