"""What is read of a MIG instance whose members share it by MPS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from slurm_colloc.monitor.gpu_reading import InstanceReader


def list_processes(*found: tuple[int, int | None]) -> Any:
    return lambda _handle: [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found]


def test_mps_clients_inside_an_instance_are_read_whichever_list_has_them() -> None:
    nvml = SimpleNamespace(
        NVMLError=OSError,
        nvmlDeviceGetHandleByUUID=lambda _uuid: 1,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda _handle: 0,
        nvmlDeviceGetGpuInstanceId=lambda _handle: 2,
        nvmlDeviceGetComputeRunningProcesses=list_processes((7, None), (8, 3 << 20)),
        nvmlDeviceGetMPSComputeRunningProcesses=list_processes((7, 5 << 20), (9, 1 << 20)),
    )
    reader = InstanceReader(nvml, "MIG-1")
    assert reader.read_processes() == {7: 5.0, 8: 3.0, 9: 1.0}
    del nvml.nvmlDeviceGetComputeRunningProcesses
    assert reader.read_processes() == {7: 5.0, 9: 1.0}
    del nvml.nvmlDeviceGetMPSComputeRunningProcesses
    assert reader.read_processes() is None
