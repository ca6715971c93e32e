"""One MIG instance as NVML shows it: its memory, its processes, and what GPM tells of it.

An instance has memory of its own, so both are exact. GPM is by GPU instance: compute instances that
share one have the same figures. Power, clocks and throttling are the whole GPU's.
"""

from __future__ import annotations

import contextlib
from typing import Any

from slurm_colloc.monitor.capabilities import GPU_CODES, SESSION_CODES
from slurm_colloc.monitor.gpu_counters import GpmReader
from slurm_colloc.monitor.gpu_reading import Lost, Value

_MIB = 1 << 20
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
"""MPS clients stand in both or in one, by driver."""


class InstanceReader:
    """Reads one MIG instance; see monitor.gpu_reading.GpuReader.

    Args:
        nvml: The binding.
        uuid: The instance's.

    Raises:
        Lost: It is not there.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)
            number = int(nvml.nvmlDeviceGetGpuInstanceId(self._handle))
        except nvml.NVMLError as error:
            raise Lost(f"NVML: {error}", everything=error.value in SESSION_CODES) from error
        self._gpm = self._open_gpm(parent, number)

    def _open_gpm(self, parent: Any, number: int) -> GpmReader | None:
        with contextlib.suppress(AttributeError, self._nvml.NVMLError):
            if self._nvml.nvmlGpmQueryDeviceSupport(parent).isSupportedDevice:
                return GpmReader(self._nvml, parent, gpu_instance=number)
        return None

    def read(self) -> dict[str, Value]:
        """What can be read now.

        Raises:
            Lost: The instance, or NVML, is gone.
        """
        nvml = self._nvml
        try:
            used = nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        except nvml.NVMLError as error:
            raise Lost(f"NVML: {error}", everything=error.value in SESSION_CODES) from error
        found: dict[str, Value] = {"gpu_memory_mb": used / _MIB}
        if self._gpm is not None:
            try:
                metrics = self._gpm.read()
            except nvml.NVMLError as error:
                if error.value in SESSION_CODES or error.value in GPU_CODES:
                    raise Lost(f"NVML: {error}", everything=error.value in SESSION_CODES) from error
                metrics = {}
            found |= {name: value for name, (value, _) in metrics.items()}
        return found

    def read_processes(self) -> dict[int, float | None] | None:
        """gpu_memory by pid, MPS clients in it among them; None where it cannot be read."""
        found: dict[int, float | None] | None = None
        for name in _PROCESS_LISTS:
            try:
                processes = getattr(self._nvml, name)(self._handle)
            except (AttributeError, self._nvml.NVMLError):
                continue
            found = found or {}
            for one in processes:
                used = one.usedGpuMemory
                known = found.get(int(one.pid))
                found[int(one.pid)] = known if used is None else max(known or 0.0, used / _MIB)
        return found

    def close(self) -> None:
        """Give back what the driver holds for it."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None
