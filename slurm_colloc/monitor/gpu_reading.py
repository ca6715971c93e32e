"""One GPU as NVML shows it: which calls work on it, and what they give.

Also: counters of a GPU that NVML reads in one call: performance monitoring (GPM), and fields; what
could be read on this node, by which call, and why not; one MIG instance as NVML shows it: its
memory, its processes, and what GPM tells of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# ---- Counters of a GPU that NVML reads in one call: performance monitoring (GPM), and fields -----
#
# GPM tells what the SMs, the tensor cores and the DRAM do, on Hopper and newer. It takes no lock of
# a profiler, so it disturbs no user's Nsight. Each figure is the mean between two samples, which
# must be more than 100 ms apart (nvml.h). Fields tell the time of throttling, and bytes over PCIe
# and NVLink.

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
        gpu_instance: Read this MIG instance of it, by NVML's id; None for the GPU itself.
        metrics: What is read, as in METRICS.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        gpu_instance: int | None = None,
        metrics: Sequence[tuple[int, str, float]] = METRICS,
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


def open_gpm(nvml: Any, handle: Any, gpu_instance: int | None = None) -> GpmReader | None:
    """A reader of a GPU, or of a MIG instance of it; None where the GPU has no GPM."""
    if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        return None
    return GpmReader(nvml, handle, gpu_instance)


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


# ---- What could be read on this node, by which call, and why not; pure ---------------------------

OK = "ok"
UNSUPPORTED = "unsupported"
NO_PERMISSION = "no_permission"
ERROR = "error"

# nvml.h (CUDA 13): NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED.
_UNSUPPORTED_CODES = frozenset({3, 13, 25, 26})
_NO_PERMISSION_CODE = 4
# UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH.
SESSION_CODES = frozenset({1, 9, 12, 18})
"""After these NVML itself is gone."""
# GPU_IS_LOST, RESET_REQUIRED.
GPU_CODES = frozenset({15, 16})
"""After these one GPU is gone."""


def classify_error(code: int | None) -> str:
    """The state that an NVML return code stands for; None where it was no such code."""
    if code in _UNSUPPORTED_CODES:
        return UNSUPPORTED
    return NO_PERMISSION if code == _NO_PERMISSION_CODE else ERROR


class Capabilities:
    """What is known of every metric so far: its source, its state, and what the driver said.

    The source is the call, such as `gpm:2` or `nvmlDeviceGetPowerUsage`; empty where none works.
    The driver says nothing where it works.

    A metric that has once been read stays `ok`: that it is missing later is a gap. Where several
    GPUs differ, the best of them counts.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def note(self, metric: str, source: str, state: str, detail: str = "") -> None:
        """Say how an attempt to read a metric went."""
        known = self._known.get(metric)
        if known is None or (
            known["state"] != OK and (known["state"], known["detail"]) != (state, detail)
        ):
            self._known[metric] = {"source": source, "state": state, "detail": detail}

    def prefer(self, metric: str, source: str) -> None:
        """Say that a metric is read by this source from now on, whatever else gives it."""
        self._known[metric] = {"source": source, "state": OK, "detail": ""}

    def as_dict(self) -> dict[str, dict[str, str]]:
        """The whole, for a JSON file."""
        return dict(sorted(self._known.items()))


# ---- One GPU as NVML shows it: which calls work on it, and what they give ------------------------

_GPM_IDS = {name: number for number, name, _ in METRICS}
_GPM_NAMES = tuple(_GPM_IDS)
_NO_UINT = 0xFFFFFFFF
_NO_ULONGLONG = 0xFFFFFFFFFFFFFFFF

Value = float | int | None


class Lost(Exception):
    """A GPU, or all of NVML, has gone."""

    def __init__(self, reason: str, *, everything: bool) -> None:
        super().__init__(reason)
        self.everything = everything


Call = Callable[[Any, Any], Value]


def _scaled(name: str, nothing: int, divisor: int) -> Call:
    """A call whose answer is a number in smaller units than ours, or one that stands for none."""
    return lambda nvml, handle: _scale(getattr(nvml, name)(handle), nothing, divisor)


# What gives a metric, the best first. One number that stands for "none" is None.
_CALLS: dict[str, dict[str, Call]] = {
    "utilization": {
        "nvmlDeviceGetUtilizationRates": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100
    },
    "gpu_memory_mb": {
        # Version 1 counts what the driver reserves as used.
        "nvmlDeviceGetMemoryInfo_v2": lambda n, h: _as_mib(
            n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used
        ),
        "nvmlDeviceGetMemoryInfo": lambda n, h: _as_mib(n.nvmlDeviceGetMemoryInfo(h).used),
    },
    **{
        metric: {name: _scaled(name, nothing, 1000)}
        for metric, name, nothing in (
            ("power_w", "nvmlDeviceGetPowerUsage", _NO_UINT),
            ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", _NO_UINT),
            ("energy_j", "nvmlDeviceGetTotalEnergyConsumption", _NO_ULONGLONG),
        )
    },
    "sm_clock_mhz": {
        "nvmlDeviceGetClockInfo:1": lambda n, h: _known(n.nvmlDeviceGetClockInfo(h, 1))
    },
    "memory_clock_mhz": {
        "nvmlDeviceGetClockInfo:2": lambda n, h: _known(n.nvmlDeviceGetClockInfo(h, 2))
    },
    "temperature_c": {
        "nvmlDeviceGetTemperature": lambda n, h: _known(n.nvmlDeviceGetTemperature(h, 0))
    },
}

_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
"""MPS clients stand in both or in one, by driver."""


class _Reader:
    """What reads a GPU or an instance keeps a reader of GPM where there is one."""

    _gpm: GpmReader | None = None

    def close(self) -> None:
        """Give back what the driver holds for it."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None


class GpuReader(_Reader):
    """One GPU, with the calls that work on it."""

    def __init__(self, nvml: Any, uuid: str, capabilities: Capabilities) -> None:
        self._nvml = nvml
        self._capabilities = capabilities
        self._failure = ""
        with explain(nvml):
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.model = _read_model(nvml, self._handle)
        """What GPU it is, as `name`, `memory_mb` and `index` (nvidia-smi's on this node), each None
        where it cannot be read."""
        self._calls = {metric: list(calls.items()) for metric, calls in _CALLS.items()}
        self._process_lists = list(_PROCESS_LISTS)
        self._gpm = self._open_gpm()
        # What GPM gives needs no counters.
        self._fields = FieldReader(nvml, self._handle, with_traffic=self._gpm is None)

    def read(self) -> dict[str, Value]:
        """All metrics that can be read now.

        Raises:
            Lost: The GPU or NVML is gone.
        """
        found: dict[str, Value] = {}
        self._failure = ""
        for metric, calls in self._calls.items():
            while calls:
                source, call = calls[0]
                try:
                    found[metric] = value = call(self._nvml, self._handle)
                except (AttributeError, self._nvml.NVMLError) as error:
                    if not self._note_error((metric,), source, error):
                        break
                    calls.pop(0)
                    continue
                if value is not None:
                    self._capabilities.note(metric, source, OK)
                break
        self._read_gpm(found)
        self._read_fields(found)
        if self._failure and not any(value is not None for value in found.values()):
            # A GPU that fell off the bus is not always called lost.
            raise Lost(f"NVML: {self._failure}", everything=False)
        return found

    def _note_error(self, metrics: Sequence[str], source: str, error: Exception) -> bool:
        """Write down why a call failed; True where it need not be tried again."""
        code = getattr(error, "value", None)
        if code in SESSION_CODES or code in GPU_CODES:
            raise Lost(f"NVML: {error}", everything=code in SESSION_CODES) from error
        # A binding that is older than a call has no such attribute.
        state = UNSUPPORTED if isinstance(error, AttributeError) else classify_error(code)
        for metric in metrics:
            self._capabilities.note(metric, source, state, str(error))
        if state == ERROR:
            self._failure = str(error)
        return state != ERROR

    def _open_gpm(self) -> GpmReader | None:
        source = "nvmlGpmQueryDeviceSupport"
        try:
            reader = open_gpm(self._nvml, self._handle)
        except (AttributeError, self._nvml.NVMLError) as error:
            self._note_error(_GPM_NAMES, source, error)
            return None
        for name in () if reader is not None else _GPM_NAMES:
            self._capabilities.note(name, source, UNSUPPORTED, "the GPU has no GPM")
        return reader

    def _read_gpm(self, found: dict[str, Value]) -> None:
        if self._gpm is None:
            return
        try:
            metrics = self._gpm.read()
        except self._nvml.NVMLError as error:
            if self._note_error(_GPM_NAMES, "nvmlGpmSampleGet", error):
                self.close()
            return
        for name, (value, code) in metrics.items():
            found[name] = value
            state = OK if value is not None else classify_error(code) if code else ERROR
            detail = f"NVML return code {code}" if code else "" if state == OK else "no number"
            self._capabilities.note(name, f"gpm:{_GPM_IDS[name]}", state, detail)

    def _read_fields(self, found: dict[str, Value]) -> None:
        try:
            values = self._fields.read()
        except (AttributeError, self._nvml.NVMLError) as error:
            if self._note_error(self._fields.metrics, "nvmlDeviceGetFieldValues", error):
                self._fields.give_up()
            return
        for name, (value, source, code) in values.items():
            if code:
                detail = f"NVML return code {code}"
                self._capabilities.note(name, source, classify_error(code), detail)
            elif value is not None:
                self._capabilities.note(name, source, OK)
                found[name] = value

    def read_processes(self) -> dict[int, float | None] | None:
        """gpu_memory by pid: MPS clients stand in both lists or in one, by driver; None: unread."""
        found: dict[int, float | None] = {}
        has_read = False
        for name in tuple(self._process_lists):
            try:
                processes = getattr(self._nvml, name)(self._handle)
            except (AttributeError, self._nvml.NVMLError) as error:
                if self._note_error(("member_gpu_memory_mb",), name, error):
                    self._process_lists.remove(name)
                continue
            has_read = True
            self._capabilities.note("member_gpu_memory_mb", name, OK)
            _add_processes(found, processes)
        return found if has_read else None


def _add_processes(found: dict[int, float | None], processes: Iterable[Any]) -> None:
    """Add what a list says of processes, which may stand in another one, too."""
    for process in processes:
        used = process.usedGpuMemory
        used_mb, known = None if used is None else _as_mib(used), found.get(int(process.pid))
        found[int(process.pid)] = used_mb if known is None else max(known, used_mb or 0.0)


@contextlib.contextmanager
def explain(nvml: Any, *, of_all: bool = False) -> Any:
    """Turn an error that leaves nothing to read into Lost.

    Args:
        nvml: The binding.
        of_all: It was asked about all GPUs; of one, also where that is not found, the others may be
            there.
    """
    try:
        yield
    except nvml.NVMLError as error:
        is_all = error.value not in GPU_CODES if of_all else error.value in SESSION_CODES
        raise Lost(f"NVML: {error}", everything=is_all) from error


def _read_model(nvml: Any, handle: Any) -> dict[str, Any]:
    model: dict[str, Any] = {"name": None, "memory_mb": None, "index": None}
    with contextlib.suppress(nvml.NVMLError):
        model["name"] = decode(nvml.nvmlDeviceGetName(handle))
    with contextlib.suppress(nvml.NVMLError):
        model["memory_mb"] = nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        model["index"] = int(nvml.nvmlDeviceGetIndex(handle))
    return model


def _known(value: int) -> int | None:
    return None if value == _NO_UINT else int(value)


def _scale(value: int, nothing: int, divisor: int) -> float | None:
    return None if value == nothing else value / divisor


def _as_mib(value: int) -> float | None:
    return None if value == _NO_ULONGLONG else value / _MIB


def decode(value: str | bytes) -> str:
    """A text of NVML's, which some bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


# ---- One MIG instance as NVML shows it: its memory, its processes, and what GPM tells of it ------
#
# An instance has memory of its own, so both are exact. GPM is by GPU instance: compute instances
# that share one have the same figures. Power, clocks and throttling are the whole GPU's.


class InstanceReader(_Reader):
    """Reads one MIG instance; see monitor.gpu_reading.GpuReader.

    Args:
        nvml: The binding.
        uuid: The instance's.

    Raises:
        Lost: It is not there.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        with explain(nvml):
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)
            number = int(nvml.nvmlDeviceGetGpuInstanceId(self._handle))
        with contextlib.suppress(AttributeError, nvml.NVMLError):
            self._gpm = open_gpm(nvml, parent, number)

    def read(self) -> dict[str, Value]:
        """What can be read now.

        Raises:
            Lost: The instance, or NVML, is gone.
        """
        nvml = self._nvml
        with explain(nvml):
            found: dict[str, Value] = {
                "gpu_memory_mb": nvml.nvmlDeviceGetMemoryInfo(self._handle).used / _MIB
            }
            if self._gpm is not None:
                try:
                    metrics = self._gpm.read()
                except nvml.NVMLError as error:
                    if error.value in SESSION_CODES or error.value in GPU_CODES:
                        raise
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
            _add_processes(found, processes)
        return found
