"""One GPU as NVML shows it: which calls work on it, and what they give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from slurm_colloc.monitor.capabilities import (
    ERROR,
    GPU_CODES,
    OK,
    SESSION_CODES,
    UNSUPPORTED,
    Capabilities,
    classify_error,
)
from slurm_colloc.monitor.gpu_counters import METRICS, FieldReader, GpmReader

_GPM_IDS = {name: number for number, name, _ in METRICS}
_GPM_NAMES = tuple(_GPM_IDS)

_MIB = 1 << 20
_NO_UINT = 0xFFFFFFFF
_NO_ULONGLONG = 0xFFFFFFFFFFFFFFFF

Value = float | int | None


class Lost(Exception):
    """A GPU, or all of NVML, has gone."""

    def __init__(self, reason: str, *, everything: bool) -> None:
        super().__init__(reason)
        self.everything = everything


Call = Callable[[Any, Any], tuple[Value, ...]]

# What gives a metric, the best first. One number that stands for "none" is None.
_CALLS: tuple[tuple[tuple[str, ...], tuple[tuple[str, Call], ...]], ...] = (
    (
        ("utilization",),
        (
            (
                "nvmlDeviceGetUtilizationRates",
                lambda n, h: (n.nvmlDeviceGetUtilizationRates(h).gpu / 100,),
            ),
        ),
    ),
    (
        ("gpu_memory_mb",),
        (
            # Version 1 counts what the driver reserves as used.
            (
                "nvmlDeviceGetMemoryInfo_v2",
                lambda n, h: (_as_mib(n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used),),
            ),
            ("nvmlDeviceGetMemoryInfo", lambda n, h: (_as_mib(n.nvmlDeviceGetMemoryInfo(h).used),)),
        ),
    ),
    (
        ("power_w",),
        (
            (
                "nvmlDeviceGetPowerUsage",
                lambda n, h: (_scale(n.nvmlDeviceGetPowerUsage(h), _NO_UINT, 1000),),
            ),
        ),
    ),
    (
        ("energy_j",),
        (
            (
                "nvmlDeviceGetTotalEnergyConsumption",
                lambda n, h: (
                    _scale(n.nvmlDeviceGetTotalEnergyConsumption(h), _NO_ULONGLONG, 1000),
                ),
            ),
        ),
    ),
    (
        ("sm_clock_mhz",),
        (("nvmlDeviceGetClockInfo:1", lambda n, h: (_known(n.nvmlDeviceGetClockInfo(h, 1)),)),),
    ),
    (
        ("memory_clock_mhz",),
        (("nvmlDeviceGetClockInfo:2", lambda n, h: (_known(n.nvmlDeviceGetClockInfo(h, 2)),)),),
    ),
    (
        ("temperature_c",),
        (
            (
                "nvmlDeviceGetTemperature",
                lambda n, h: (_known(n.nvmlDeviceGetTemperature(h, 0)),),
            ),
        ),
    ),
)


class GpuReader:
    """One GPU, with the calls that work on it."""

    def __init__(self, nvml: Any, uuid: str, capabilities: Capabilities) -> None:
        self._nvml = nvml
        self._capabilities = capabilities
        self._failure = ""
        with _explain_gpu(nvml):
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.model = _read_model(nvml, self._handle)
        """What GPU it is, as `name`, `memory_mb` and `index` (nvidia-smi's on this node), each None
        where it cannot be read."""
        self._calls = [(metrics, list(calls)) for metrics, calls in _CALLS]
        self._process_lists = [
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetMPSComputeRunningProcesses",
        ]
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
        for metrics, calls in self._calls:
            while calls:
                source, call = calls[0]
                values, hopeless = self._try(metrics, source, call)
                if values is not None:
                    found.update(zip(metrics, values, strict=True))
                if not hopeless:
                    break
                calls.pop(0)
        self._read_gpm(found)
        self._read_fields(found)
        if self._failure and not any(value is not None for value in found.values()):
            # A GPU that fell off the bus is not always called lost.
            raise Lost(f"NVML: {self._failure}", everything=False)
        return found

    def _try(
        self, metrics: Sequence[str], source: str, call: Call
    ) -> tuple[tuple[Value, ...] | None, bool]:
        """The values, if any, and whether the call will never work."""
        try:
            values = call(self._nvml, self._handle)
        except (AttributeError, self._nvml.NVMLError) as error:
            return None, self._note_error(metrics, source, error)
        for metric, value in zip(metrics, values, strict=True):
            if value is not None:
                self._capabilities.note(metric, source, OK)
        return values, False

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
        try:
            if self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                return GpmReader(self._nvml, self._handle)
        except (AttributeError, self._nvml.NVMLError) as error:
            self._note_error(_GPM_NAMES, "nvmlGpmQueryDeviceSupport", error)
            return None
        for name in _GPM_NAMES:
            source = "nvmlGpmQueryDeviceSupport"
            self._capabilities.note(name, source, UNSUPPORTED, "the GPU has no GPM")
        return None

    def _read_gpm(self, found: dict[str, Value]) -> None:
        if self._gpm is None:
            return
        try:
            metrics = self._gpm.read()
        except self._nvml.NVMLError as error:
            if self._note_error(_GPM_NAMES, "nvmlGpmSampleGet", error):
                self._gpm.close()
                self._gpm = None
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
            for process in processes:
                used = process.usedGpuMemory
                used_mb = None if used is None else _as_mib(used)
                known = found.get(int(process.pid))
                found[int(process.pid)] = used_mb if known is None else max(known, used_mb or 0.0)
        return found if has_read else None

    def close(self) -> None:
        """Give back what the driver holds for it."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None


@contextlib.contextmanager
def _explain_gpu(nvml: Any) -> Any:
    try:
        yield
    except nvml.NVMLError as error:
        # Also NOT_FOUND: the others may be there.
        raise Lost(f"NVML: {error}", everything=error.value in SESSION_CODES) from error


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
