"""How long the calls take by which csub's monitor reads a GPU.

As a program: nvml_calls.py UUID [ROUNDS]. It prints a JSON object: for each kind of call how many
milliseconds it took, one number for each round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

from slurm_colloc.monitor.gpu_reading import (
    SHORTEST_S,
    Capabilities,
    FieldReader,
    GpmReader,
    GpuReader,
)

ROUNDS = 50


def measure_ms(act: Callable[[], Any]) -> float:
    """How long something takes, in milliseconds."""
    begin = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - begin)


def main() -> None:
    """Measure every kind of call."""
    uuid = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    nvml: Any = pynvml
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    capabilities = Capabilities()
    reader = GpuReader(nvml, uuid, capabilities)
    fields = FieldReader(nvml, handle, with_traffic=False)
    traffic = FieldReader(nvml, handle, with_traffic=True)
    calls: dict[str, Callable[[], Any]] = {
        "a whole tick (GpuReader.read)": reader.read,
        "process lists, both (GpuReader.read_processes)": reader.read_processes,
        "nvmlDeviceGetComputeRunningProcesses": lambda: nvml.nvmlDeviceGetComputeRunningProcesses(
            handle
        ),
        "nvmlDeviceGetMPSComputeRunningProcesses": lambda: (
            nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
        ),
        "nvmlDeviceGetMemoryInfo_v2": lambda: nvml.nvmlDeviceGetMemoryInfo(
            handle, nvml.nvmlMemory_v2
        ),
        "nvmlDeviceGetUtilizationRates": lambda: nvml.nvmlDeviceGetUtilizationRates(handle),
        "nvmlDeviceGetPowerUsage": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "nvmlDeviceGetTotalEnergyConsumption": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(
            handle
        ),
        "nvmlDeviceGetClockInfo": lambda: nvml.nvmlDeviceGetClockInfo(handle, 1),
        "nvmlDeviceGetTemperature": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        "fields of throttling (FieldReader)": fields.read,
        "fields of throttling, PCIe and NVLink (FieldReader)": traffic.read,
    }
    try:
        gpm = GpmReader(nvml, handle)
        gpm.read()
        calls["GPM sample and metrics (GpmReader.read)"] = gpm.read
    except (AttributeError, nvml.NVMLError) as error:
        print(f"no GPM: {error}", file=sys.stderr)
    took_ms: dict[str, list[float]] = {name: [] for name in calls}
    refused: dict[str, str] = {}
    for _ in range(rounds):
        # Samples of GPM must lie so far apart, else the last answer is given again.
        time.sleep(SHORTEST_S + 0.01)
        for name, call in calls.items():
            if name in refused:
                continue
            try:
                took_ms[name].append(round(measure_ms(call), 4))
            except (AttributeError, nvml.NVMLError) as error:
                refused[name] = str(error)
    print(
        json.dumps(
            {
                "took_ms": took_ms,
                "refused": refused,
                "capabilities": capabilities.as_dict(),
            }
        )
    )


if __name__ == "__main__":
    main()
