"""What a whole GPU does between two moments: GPM, power from the energy counter, clocks."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from slurm_colloc.host.nvml.nvml_query import NvmlAnswer
from slurm_colloc.monitor.gpu_reading import METRICS, Capabilities, GpmReader
from slurm_colloc.monitor.nvml_reading import NvmlReader

# Ids of nvml.h (CUDA 13) that the monitor may not record.
_MORE_METRICS = ((1, "engine_active", 0.01), (12, "fp32_active", 0.01), (13, "fp16_active", 0.01))
NAMES = (
    "sm_active",
    "sm_occupancy",
    "tensor_active",
    "dram_active",
    "engine_active",
    "fp32_active",
    "fp16_active",
    "pcie_rx_mib_s",
    "pcie_tx_mib_s",
    "power_w",
    "sm_clock_mhz",
)
"""What is read, in the order of the columns."""

GPM_METRICS = tuple(
    {metric[0]: metric for metric in (*METRICS, *_MORE_METRICS) if metric[1] in NAMES}.values()
)

_EVERY_S = 0.1
_LATE_S = 5.0
_SM_CLOCK = 1
_NO_UINT = 0xFFFFFFFF


class Readings:
    """Reads one GPU in a thread of its own: a call into the driver can hang.

    Args:
        uuid: The GPU; None to read nothing.
    """

    def __init__(self, uuid: str | None) -> None:
        self.problem = "" if uuid else "there is no GPU to read"
        self.power_limit_w: float | None = None
        """What the GPU may draw; None where it does not tell."""
        self._thread: threading.Thread | None = None
        self._found: dict[str, float | None] = {}
        self._gpm: GpmReader | None = None
        self._nvml: Any = None
        self._handle: Any = None
        self._reader = NvmlReader(_choose_none, Capabilities())
        if uuid:
            self._open(uuid)

    def _open(self, uuid: str) -> None:
        self._nvml = self._reader.open()
        if self._nvml is None:
            self.problem = "NVML cannot be used; is nvidia-ml-py installed?"
            return
        nvml = self._nvml
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            with contextlib.suppress(AttributeError, nvml.NVMLError):
                self.power_limit_w = nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000
            if nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._gpm = GpmReader(nvml, self._handle, metrics=GPM_METRICS)
            else:
                self.problem = "the GPU has no GPM"
        except (AttributeError, nvml.NVMLError) as error:
            self.problem = f"NVML: {error}"

    def start(self, begin: float, end: float) -> None:
        """Read from `begin` to `end`, in monotonic seconds."""
        self._found = {}
        if self._handle is None:
            return
        if self._thread is not None and self._thread.is_alive():
            self.problem = "a call of NVML hangs"
            return
        found = self._found
        self._thread = threading.Thread(target=self._read, args=(begin, end, found), daemon=True)
        self._thread.start()

    def finish(self) -> dict[str, float | None]:
        """What was read; None for each figure that could not be."""
        thread = self._thread
        if thread is not None:
            thread.join(_LATE_S)
        return {name: self._found.get(name) for name in NAMES}

    def close(self) -> None:
        """Give NVML back."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None
        self._handle = None
        self._reader.close()

    def _read(self, begin: float, end: float, found: dict[str, float | None]) -> None:
        time.sleep(max(0.0, begin - time.monotonic()))
        self._read_gpm()
        energy: list[tuple[float, float]] = []
        clocks: list[float] = []
        while True:
            self._read_once(energy, clocks)
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(_EVERY_S, left_s))
        values = self._read_gpm()
        # In one step: a caller that stops waiting for this sees all or nothing.
        found.update(
            {
                **values,
                "power_w": compute_power(energy),
                "sm_clock_mhz": fmean(clocks) if clocks else None,
            }
        )

    def _read_gpm(self) -> dict[str, float | None]:
        if self._gpm is None:
            return {}
        try:
            return {name: value for name, (value, _) in self._gpm.read().items()}
        except self._nvml.NVMLError as error:
            self.problem = f"NVML: {error}"
            return {}

    def _read_once(self, energy: list[tuple[float, float]], clocks: list[float]) -> None:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            joules = nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000
            energy.append((time.monotonic(), joules))
        with contextlib.suppress(nvml.NVMLError):
            clock = nvml.nvmlDeviceGetClockInfo(self._handle, _SM_CLOCK)
            if clock != _NO_UINT:
                clocks.append(float(clock))


def compute_power(energy: Sequence[tuple[float, float]]) -> float | None:
    """Mean power in watts from readings of an energy counter; pure.

    The driver renews the counter many times slower than it can be read, so only moments at which
    it has changed count. None where it did not change twice.

    Args:
        energy: Monotonic seconds and joules.
    """
    changed = [later for earlier, later in itertools.pairwise(energy) if later[1] > earlier[1]]
    if len(changed) < 2:
        return None
    (begin, before), (end, after) = changed[0], changed[-1]
    return (after - before) / (end - begin)


def _choose_none(_: NvmlAnswer) -> tuple[tuple[str, ...], str]:
    return (), "none is chosen here"
