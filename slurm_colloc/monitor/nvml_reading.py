"""The one module of the monitor that talks to NVML; every call is made by one thread.

Handles are kept, because finding a GPU costs more than asking it. nvmlDeviceGetPcieThroughput is
never called: it waits 20 ms for each direction, inside the driver.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.monitor.gpu_reading import (
    Capabilities,
    GpuReader,
    InstanceReader,
    Lost,
    Value,
    decode,
    explain,
)

if TYPE_CHECKING:
    from types import ModuleType

MIG_PREFIX = "MIG-"
"""What UUIDs of MIG instances begin with."""

REOPEN_S = (2.0, 5.0, 10.0, 30.0, 60.0)
"""How long to wait before NVML, or a GPU that was lost, is tried again."""


@dataclass(frozen=True)
class NvmlSample:
    """What NVML said at one tick.

    Attributes:
        gpus: By UUID the metrics that were read; what is missing could not be.
        processes: By UUID gpu_memory in MiB by pid, None where a process's is not told; only of
            GPUs whose lists were asked for and read.
        problems: By UUID, or `nvml` for the whole, why nothing was read.
        models: By UUID what GPU it is.
    """

    gpus: dict[str, dict[str, Value]] = field(default_factory=dict)
    processes: dict[str, dict[int, float | None]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)


class NvmlReader:
    """Reads GPUs, and finds them again after they, or NVML, were away.

    Args:
        choose: Names the pack's GPUs where the caller names none; see host.nvml.nvml_query.
        capabilities: Where what works is written down.
    """

    def __init__(
        self,
        choose: Callable[[NvmlAnswer], tuple[tuple[str, ...], str]],
        capabilities: Capabilities,
    ) -> None:
        self._choose = choose
        self._capabilities = capabilities
        self._nvml: ModuleType | None = None
        self._chosen: tuple[str, ...] = ()
        self._gpus: dict[str, GpuReader | InstanceReader] = {}
        self._retry: dict[str, tuple[float, int, str]] = {}

    def read(self, uuids: Sequence[str], *, with_processes: bool) -> NvmlSample:
        """Read all GPUs once.

        Args:
            uuids: The pack's GPUs; none where it is not known which.
            with_processes: Read the lists of processes too.
        """
        sample = NvmlSample()
        try:
            nvml = self.open()
            if nvml is None:
                sample.problems["nvml"] = self._retry["nvml"][2]
                return sample
            wanted = tuple(uuids) or self._choose_own(nvml)
            if not wanted:
                sample.problems["nvml"] = self._retry["choice"][2]
            self.forget(wanted)
            for uuid in wanted:
                self._read_gpu(nvml, uuid, sample, with_processes)
        except Lost as lost:
            self.close()
            self._put_off("nvml", str(lost))
            sample.gpus.clear()
            sample.problems["nvml"] = str(lost)
        return sample

    def close(self) -> None:
        """Give everything back."""
        for gpu in self._gpus.values():
            gpu.close()
        self._gpus.clear()
        self._chosen = ()
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def open(self) -> ModuleType | None:
        """Get NVML ready, which may take seconds where the driver sleeps; None where it is not."""
        if self._nvml is not None:
            return self._nvml
        if self._must_wait("nvml"):
            return None
        try:
            import pynvml
        except ImportError:
            self._put_off("nvml", "nvidia-ml-py is not installed")
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._put_off("nvml", f"NVML cannot be used: {error}")
            return None
        self._retry.pop("nvml", None)
        self._nvml = pynvml
        return self._nvml

    def _choose_own(self, nvml: ModuleType) -> tuple[str, ...]:
        if not self._chosen and not self._must_wait("choice"):
            self._chosen, reason = self._choose(_list_gpus(nvml))
            self._put_off("choice", f"it is not known which GPU is the pack's: {reason}")
        return self._chosen

    def _read_gpu(
        self, nvml: ModuleType, uuid: str, sample: NvmlSample, with_processes: bool
    ) -> None:
        if uuid not in self._gpus and self._must_wait(uuid):
            sample.problems[uuid] = self._retry[uuid][2]
            return
        try:
            gpu = self._gpus.get(uuid)
            if gpu is None:
                gpu = self._gpus[uuid] = self._open_reader(nvml, uuid)
            sample.gpus[uuid] = gpu.read()
            if isinstance(gpu, GpuReader):
                sample.models[uuid] = gpu.model
            if with_processes:
                processes = gpu.read_processes()
                if processes is not None:
                    sample.processes[uuid] = processes
            self._retry.pop(uuid, None)
        except Lost as lost:
            if lost.everything:
                raise
            sample.gpus.pop(uuid, None)
            sample.problems[uuid] = str(lost)
            self._put_off(uuid, str(lost))
            gpu = self._gpus.pop(uuid, None)
            if gpu is not None:
                gpu.close()

    def _open_reader(self, nvml: ModuleType, uuid: str) -> GpuReader | InstanceReader:
        if uuid.startswith(MIG_PREFIX):
            return InstanceReader(nvml, uuid)
        return GpuReader(nvml, uuid, self._capabilities)

    def forget(self, uuids: Sequence[str]) -> None:
        """Give back what is held of MIG instances that are not among these any more."""
        for uuid in [one for one in self._gpus if one.startswith(MIG_PREFIX)]:
            if uuid not in uuids:
                self._gpus.pop(uuid).close()

    def _must_wait(self, what: str) -> bool:
        return what in self._retry and time.monotonic() < self._retry[what][0]

    def _put_off(self, what: str, reason: str) -> None:
        tries = self._retry[what][1] + 1 if what in self._retry else 0
        wait_s = REOPEN_S[min(tries, len(REOPEN_S) - 1)]
        self._retry[what] = (time.monotonic() + wait_s, tries, reason)


def _list_gpus(nvml: Any) -> NvmlAnswer:
    """Which GPUs there are, with what tells which of them are a job's."""
    gpus = []
    with explain(nvml, of_all=True):
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(
                    Gpu(
                        nvml_index=index,
                        uuid=decode(nvml.nvmlDeviceGetUUID(handle)),
                        name=decode(nvml.nvmlDeviceGetName(handle)),
                        minor_number=int(nvml.nvmlDeviceGetMinorNumber(handle)),
                    )
                )
    return NvmlAnswer(gpus=tuple(gpus))


def choose_by_environment(
    environ: Mapping[str, str],
) -> Callable[[NvmlAnswer], tuple[tuple[str, ...], str]]:
    """How a pack's GPUs are found where its setup names none by UUID."""

    def choose(answer: NvmlAnswer) -> tuple[tuple[str, ...], str]:
        from slurm_colloc.host.nvml.nvml_query import choose_job_gpus

        found = choose_job_gpus(answer, environ)
        return found.uuids, found.reason

    return choose


# Asks for the GPUs' samples in a thread of its own: a driver that hangs stops nothing else.
#
# This thread makes every call to NVML, so two never run at the same time. A thread that hangs
# inside the driver cannot be ended at all, and a process that has one cannot be collected
# either; the monitor's other work and the end of its files do not need it.

PATIENCE_S = 0.4
"""How long a tick waits for the driver: process lists of many clients take tens of ms."""


class GpuWatch:
    """The main thread's side.

    Args:
        reader: Used by the thread alone from now on.
    """

    def __init__(self, reader: NvmlReader) -> None:
        self._reader = reader
        self._questions: queue.SimpleQueue[tuple[tuple[str, ...], bool] | None]
        self._questions = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[NvmlSample] = queue.SimpleQueue()
        self._asked_at: float | None = None
        self._has_answered = False
        self._is_current = False
        self._thread = threading.Thread(target=self._serve, name="nvml", daemon=True)
        self._thread.start()

    def ask(self, uuids: Sequence[str], *, with_processes: bool) -> None:
        """Begin to read; does not wait."""
        if self._asked_at is not None:
            self._take_answer(0.0)
        # An answer to an older question, which came only now, is of no use.
        self._is_current = self._asked_at is None
        if self._is_current:
            self._asked_at = time.monotonic()
            self._questions.put((tuple(uuids), with_processes))

    def collect(self, patience_s: float = PATIENCE_S) -> NvmlSample:
        """What was asked for at last; says so where the driver has not answered yet."""
        # A child that has hung before is not waited for at every tick.
        answer = self._take_answer(patience_s if self._is_current else 0.0)
        if answer is not None and self._is_current:
            return answer
        if not self._has_answered:
            return NvmlSample(problems={"nvml": "NVML has not answered yet"})
        return NvmlSample(problems={"nvml": "NVML does not answer"})

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Give NVML back, unless it hangs."""
        self._questions.put(None)
        self._thread.join(patience_s)

    def _take_answer(self, patience_s: float) -> NvmlSample | None:
        try:
            answer = self._answers.get(block=patience_s > 0, timeout=patience_s or None)
        except queue.Empty:
            return None
        self._asked_at = None
        self._has_answered = True
        return answer

    def _serve(self) -> None:
        self._reader.open()
        while True:
            question = self._questions.get()
            if question is None:
                self._reader.close()
                return
            uuids, with_processes = question
            try:
                answer = self._reader.read(uuids, with_processes=with_processes)
            except Exception as error:  # noqa: BLE001 - members are sampled whatever is wrong here
                answer = NvmlSample(problems={"nvml": f"reading NVML failed: {error!r}"})
            self._answers.put(answer)
