"""Counters of a GPU that NVML reads in one call: performance monitoring (GPM), and fields.

GPM tells what the SMs, the tensor cores and the DRAM do, on Hopper and newer. It takes no lock of a
profiler, so it disturbs no user's Nsight. Each figure is the mean between two samples, which must
be more than 100 ms apart (nvml.h). Fields tell the time of throttling, and bytes over PCIe and
NVLink.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

# Metric ids of nvml.h (CUDA 13), what they are called here, and the factor to our unit.
METRICS: tuple[tuple[int, str, float], ...] = (
    (1, "engine_active", 0.01),
    (2, "sm_active", 0.01),
    (3, "sm_occupancy", 0.01),
    (5, "tensor_active", 0.01),
    (10, "dram_active", 0.01),
    (20, "pcie_tx_mib_s", 1.0),
    (21, "pcie_rx_mib_s", 1.0),
    (61, "nvlink_tx_mib_s", 1.0),
    (60, "nvlink_rx_mib_s", 1.0),
)

SHORTEST_S = 0.11
LONGEST_S = 600.0
# Two clocks of the driver make 100.3 % of a full GPU; what is far beyond is no measurement.
_SHARE_MAX = 1.05


def convert(value: float, factor: float) -> float | None:
    """One metric in our unit; None where the driver gave no number, or an impossible one; pure."""
    if not math.isfinite(value) or value < 0:
        return None
    return limit_share(value * factor) if factor != 1.0 else value


def limit_share(value: float) -> float | None:
    """A share of 0 to 1; None for a number that is none; pure."""
    if not 0.0 <= value <= _SHARE_MAX:
        return None
    return min(1.0, value)


class GpmReader:
    """Takes samples of one GPU, and keeps the last.

    Args:
        nvml: The binding.
        handle: The GPU.
        metrics: What to read, as in METRICS.
        gpu_instance: Read this MIG instance of it, by NVML's id; None for the GPU itself.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        metrics: Sequence[tuple[int, str, float]] = METRICS,
        gpu_instance: int | None = None,
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._gpu_instance = gpu_instance
        self._taken_at: float | None = None
        # Which ids a binding knows depends on its age: the structure ends where they end.
        self._metrics = [one for one in metrics if one[0] < nvml.NVML_GPM_METRIC_MAX]
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._found: dict[str, tuple[float | None, int]] = {}

    def read(self) -> dict[str, tuple[float | None, int]]:
        """Read what has been since the last call.

        Returns:
            By metric its value, None where there is none, and NVML's return code. Empty at
            the first call, and where the last was too long ago; what was read last where that is
            too short ago.

        Raises:
            nvml.NVMLError: The sample could not be taken.
        """
        nvml = self._nvml
        now = time.monotonic()
        if self._taken_at is not None and now - self._taken_at < SHORTEST_S:
            return self._found
        older, newer = self._samples
        if self._gpu_instance is None:
            nvml.nvmlGpmSampleGet(self._handle, newer)
        else:
            nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, newer)
        taken_at, self._taken_at = self._taken_at, now
        self._samples = [newer, older]
        self._found = {}
        if taken_at is None or now - taken_at > LONGEST_S:
            return {}
        request = self._request
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = older, newer
        for place, (number, _, _) in enumerate(self._metrics):
            request.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        found = self._found
        for place, (_, name, factor) in enumerate(self._metrics):
            metric = request.metrics[place]
            code = int(metric.nvmlReturn)
            found[name] = (None if code else convert(float(metric.value), factor), code)
        return found

    def close(self) -> None:
        """Free the samples; must come before NVML is shut down."""
        for sample in self._samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                continue
        self._samples = []


# Field ids of nvml.h (CUDA 13); throttling in ns. 74 is the software power cap.
_THROTTLE: dict[int, str] = {
    74: "throttle_power_s",
    269: "throttle_thermal_s",
    270: "throttle_thermal_s",
    271: "throttle_brake_s",
}
# Bytes, and KiB over all links together. Only where GPM gives no rates.
_TRAFFIC: dict[int, tuple[str, int]] = {
    197: ("pcie_tx_mib_s", 1),
    198: ("pcie_rx_mib_s", 1),
    138: ("nvlink_tx_mib_s", 1024),
    139: ("nvlink_rx_mib_s", 1024),
}
_ALL_LINKS = 0xFFFFFFFF
_MIB = 1 << 20
# nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long long.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")

Found = tuple[float | None, str, int]


class FieldReader:
    """Reads the counters of one GPU in one call.

    Args:
        nvml: The binding.
        handle: The GPU.
        with_traffic: Read what has gone over PCIe and NVLink, too.
    """

    def __init__(self, nvml: Any, handle: Any, *, with_traffic: bool) -> None:
        self._nvml = nvml
        self._handle = handle
        self._ids: list[int] = [*_THROTTLE, *(_TRAFFIC if with_traffic else ())]
        self._before: dict[int, tuple[float, float]] = {}
        self.metrics = list(
            dict.fromkeys(
                [*_THROTTLE.values()]
                + [name for name, _ in (_TRAFFIC.values() if with_traffic else ())]
            )
        )

    def give_up(self) -> None:
        """Read nothing from now on: no call of this kind works here."""
        self._ids = []

    def read(self) -> dict[str, Found]:
        """Read once.

        Returns:
            By metric its value (None where there is none yet), its source, and NVML's return code.

        Raises:
            nvml.NVMLError: No field could be read.
        """
        if not self._ids:
            return {}
        asked = [(one, _ALL_LINKS) if one in (138, 139) else one for one in self._ids]
        now = time.monotonic()
        answers = self._nvml.nvmlDeviceGetFieldValues(self._handle, asked)
        found: dict[str, Found] = {}
        for number, answer in zip(tuple(self._ids), answers, strict=True):
            code = int(answer.nvmlReturn)
            value = None if code else _read_value(answer)
            name = _THROTTLE.get(number)
            if name is not None:
                _add(found, name, None if value is None else value / 1e9, f"field:{number}", code)
            else:
                name, unit_bytes = _TRAFFIC[number]
                rate = (
                    None if value is None else self._compute_rate(number, value * unit_bytes, now)
                )
                found[name] = (rate, f"field:{number}", code)
            if code in (2, 3):
                self._ids.remove(number)
        return found

    def _compute_rate(self, number: int, value: float, now: float) -> float | None:
        before = self._before.get(number)
        self._before[number] = (now, value)
        # A counter that is smaller than before has wrapped, and how often is unknown.
        if before is None or value < before[1] or now <= before[0]:
            return None
        return (value - before[1]) / _MIB / (now - before[0])


def _add(found: dict[str, Found], name: str, value: float | None, source: str, code: int) -> None:
    """Sum what several counters say of one thing, as far as they can be read."""
    known = found.get(name)
    if known is None or known[0] is None:
        found[name] = (value, source, code)
    elif value is not None:
        found[name] = (known[0] + value, f"{known[1]}+{source}", 0)


def _read_value(answer: Any) -> float | None:
    kind = int(answer.valueType)
    return float(getattr(answer.value, _MEMBERS[kind])) if kind < len(_MEMBERS) else None
