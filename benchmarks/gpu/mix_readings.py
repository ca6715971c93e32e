"""What a GPU tells: which it is, the energy that it takes, and what a training takes alone."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_colloc.errors import NodeError
from slurm_colloc.host.nvml.nvml_query import probe_gpus
from slurm_colloc.model.plan import Capacity
from slurm_colloc.model.usage_profile import PCIE_MIB_S, Load
from slurm_colloc_lab.calibration.calibrated_gpu import CPU

_NVML_S = 60.0


@dataclass(frozen=True)
class Gpu:
    """What measures.

    Attributes:
        uuid: The GPU; None for the CPU in its stead.
        model: NVML's name of it.
        driver: Its version; None where it is not known.
        capacity: What there is of it, and of cores.
    """

    uuid: str | None
    model: str
    driver: str | None
    capacity: Capacity


def find_gpu(arguments: argparse.Namespace) -> Gpu:
    """The GPU that the command line names.

    Raises:
        NodeError: There is no such GPU.
    """
    cores = len(arguments.cores)
    if arguments.device == CPU:
        return Gpu(None, CPU, None, Capacity(cpus_per_gpu=max(16, cores), gpu_memory_mb=80_000))
    answer = probe_gpus(_NVML_S)
    for known in answer.gpus:
        if known.uuid and arguments.gpu in (known.uuid, str(known.nvml_index)):
            capacity = Capacity(cpus_per_gpu=cores, gpu_memory_mb=known.gpu_memory_total_mb)
            return Gpu(known.uuid, known.name or "", answer.driver_version, capacity)
    why = answer.problem or "NVML does not show it"
    raise NodeError(f"there is no GPU {arguments.gpu}: {why}")


class EnergyMeter:
    """NVML's counter of the energy that a GPU has taken.

    Args:
        uuid: The GPU; None to read nothing.
    """

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if uuid:
            with contextlib.suppress(ImportError):
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    self._nvml = pynvml
                    self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> float | None:
        """Joules since the driver was loaded; None where they cannot be read."""
        if self._handle is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        """Give NVML back."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def build_load(
    gpu: Mapping[str, float | None], cpu_cores: float, idle_power_w: float | None
) -> Load | None:
    """What a training takes, by readings of it alone; None where the GPU tells too little."""
    engine, sm, dram = (gpu.get(f"{name}_active") for name in ("engine", "sm", "dram"))
    if engine is None or sm is None or dram is None:
        return None
    busier_mib_s = max(gpu.get("pcie_rx_mib_s") or 0.0, gpu.get("pcie_tx_mib_s") or 0.0)
    power_w = gpu.get("power_w")
    return Load(
        engine=min(1.0, engine),
        sm=min(1.0, sm),
        dram=min(1.0, dram),
        tensor=min(1.0, gpu.get("tensor_active") or 0.0),
        pcie=min(1.0, busier_mib_s / PCIE_MIB_S),
        cpu_cores=cpu_cores,
        power_w=max(0.0, power_w - (idle_power_w or 0.0)) if power_w is not None else 0.0,
    )
