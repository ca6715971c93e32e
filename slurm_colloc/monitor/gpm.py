"""GPU performance monitoring through NVML: what the SMs, tensor cores and DRAM of a GPU do.

Hopper and newer. It takes no lock of a profiler, so it disturbs no user's Nsight. Each figure is
the mean between two samples, which must be more than 100 ms apart (nvml.h).
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
    if math.isnan(value) or math.isinf(value) or value < 0:
        return None
    converted = value * factor
    if factor != 1.0:
        return None if converted > _SHARE_MAX else min(1.0, converted)
    return converted


class GpmReader:
    """Takes samples of one GPU, and keeps the last.

    Args:
        nvml: The binding.
        handle: The GPU.
        metrics: What to read, as in METRICS.
    """

    def __init__(
        self, nvml: Any, handle: Any, metrics: Sequence[tuple[int, str, float]] = METRICS
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._taken_at: float | None = None
        # Which ids a binding knows depends on its age: the structure ends where they end.
        self._metrics = [one for one in metrics if one[0] < nvml.NVML_GPM_METRIC_MAX]
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._found: dict[str, tuple[float | None, int]] = {}

    def read(self) -> dict[str, tuple[float | None, int]]:
        """Read what has been since the last call.

        Returns:
            By metric its value, None where there is none, and NVML's return code of it. Empty at
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
        nvml.nvmlGpmSampleGet(self._handle, newer)
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
