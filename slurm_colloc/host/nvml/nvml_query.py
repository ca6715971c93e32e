"""Asks NVML in a child process: a driver that hangs does not hang the caller.

Also: what NVML says about a node's GPUs, and which of them are a job's.

Who: root's hooks, the runner, the doctor. The child is `nvml_child.py` of this package, with the
caller's interpreter and rights; no process of a user's is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.host.system.child_programs import (
    PIPE,
    Child,
    collect,
    finish_program,
    start_program,
)
from slurm_colloc.host.system.signals import end_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- What NVML says about a node's GPUs, and which of them are a job's; pure ---------------------
#
# What NVML does not say is None, never 0.

EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
"""The compute mode that lets one process in at a time."""

UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU.

    Args:
        pid: Its pid, as NVML gives it.
        gpu_memory_mb: What it uses; None where not told.
        type: `C` compute, `M+C` compute through MPS.
    """

    pid: int
    gpu_memory_mb: int | None = None
    type: str = "C"


@dataclass(frozen=True)
class Gpu:
    """One GPU; what NVML does not say is None.

    Args:
        nvml_index: The number that NVML gives it.
        uuid: Its UUID.
        name: Its model.
        minor_number: N of /dev/nvidiaN.
        pci_bus_id: Where it is.
        gpu_memory_total_mb: All of its memory.
        gpu_memory_used_mb: What is in use, the driver's own included.
        compute_mode: DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED or EXCLUSIVE_THREAD.
        compute_capability: Such as (9, 0).
        mig_enabled: It is divided by MIG.
        processes: Compute processes, MPS servers and clients among them.
        mps_processes: MPS clients.
        power_limit_mw: Its power limit in mW.
        power_limit_least_mw: The lowest that the card takes.
        is_persistent: The driver keeps such settings while nothing uses the GPU.
        doubt: What NVML says about it that cannot be true; empty where all can.
    """

    nvml_index: int
    uuid: str | None = None
    name: str | None = None
    minor_number: int | None = None
    pci_bus_id: str | None = None
    gpu_memory_total_mb: int | None = None
    gpu_memory_used_mb: int | None = None
    compute_mode: str | None = None
    compute_capability: tuple[int, int] | None = None
    mig_enabled: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mps_processes: tuple[GpuProcess, ...] | None = None
    power_limit_mw: int | None = None
    power_limit_least_mw: int | None = None
    is_persistent: bool | None = None
    doubt: str = ""


@dataclass(frozen=True)
class NvmlAnswer:
    """All that NVML says.

    Args:
        problem: Why there is no answer, in words; empty where there is one.
        driver_version: Such as 580.159.04.
        cuda_version: The newest CUDA the driver supports, such as 13.0.
        gpus: The GPUs that this process may see. One that is lost says nothing of itself, and
            speaks against no other.
        lacks_bindings: The problem is that this Python has no nvidia-ml-py.
    """

    problem: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    lacks_bindings: bool = False

    @property
    def doubts(self) -> tuple[str, ...]:
        """What cannot be true, of any of them."""
        return tuple(gpu.doubt for gpu in self.gpus if gpu.doubt)

    def find(self, uuid: str) -> Gpu | None:
        """The GPU of a UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def parse_answer(value: Mapping[str, Any]) -> NvmlAnswer:
    """Read what the child printed, and say what cannot be true.

    Raises:
        KeyError: It is something else.
        TypeError: Likewise.
    """
    if value["problem"]:
        return NvmlAnswer(str(value["problem"]), lacks_bindings=bool(value.get("lacks_bindings")))
    gpus = tuple(_parse_gpu(gpu) for gpu in value["gpus"])
    return NvmlAnswer(
        driver_version=value["driver_version"],
        cuda_version=value["cuda_version"],
        gpus=tuple(replace(gpu, doubt=find_doubt(gpu, gpus)) for gpu in gpus),
    )


def _parse_gpu(value: Mapping[str, Any]) -> Gpu:
    fields = dict(value)
    capability = fields.get("compute_capability")
    if capability is not None:
        fields["compute_capability"] = (capability[0], capability[1])
    clients = fields.get("mps_processes")
    mps_pids = {process["pid"] for process in clients or ()}
    for name in ("processes", "mps_processes"):
        if fields.get(name) is not None:
            fields[name] = tuple(
                GpuProcess(
                    process["pid"],
                    process["gpu_memory_mb"],
                    "M+C" if process["pid"] in mps_pids else "C",
                )
                for process in fields[name]
            )
    return Gpu(**fields)


def find_doubt(gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    """Say what NVML says of a GPU that cannot be true; empty where all can; pure.

    Args:
        gpu: The GPU.
        gpus: All that NVML shows, this one among them.
    """
    who = f"GPU {gpu.nvml_index} (nvml_index)"
    if gpu.uuid is None:
        return f"{who} has no readable UUID"
    if not UUID.fullmatch(gpu.uuid):
        return f"{who} has the UUID {gpu.uuid!r}, which is none"
    if [other.uuid for other in gpus].count(gpu.uuid) > 1:
        return f"{who} has the same UUID as another, {gpu.uuid}"
    total, used = gpu.gpu_memory_total_mb, gpu.gpu_memory_used_mb
    if total is not None and total <= 0:
        return f"{who} has a gpu_memory of {total} MiB"
    if total is not None and used is not None and used > total:
        return f"{who} uses {used} MiB of a gpu_memory of {total} MiB"
    return ""


@dataclass(frozen=True)
class JobGpus:
    """Which GPUs are a job's.

    Args:
        uuids: Theirs; empty where that is unknown.
        reason: How that is known, or why not.
    """

    uuids: tuple[str, ...]
    reason: str


def choose_job_gpus(answer: NvmlAnswer, environ: Mapping[str, str]) -> JobGpus:
    """Find out which of the GPUs that NVML shows are the job's; pure.

    Args:
        answer: What NVML says.
        environ: The batch script's environment, as Slurm made it.
    """
    found = _find_job_gpus(answer, environ)
    # What is wrong with another job's GPU says nothing against this one's.
    doubts = [gpu.doubt for gpu in answer.gpus if gpu.uuid in found.uuids and gpu.doubt]
    return JobGpus((), f"NVML cannot be believed: {'; '.join(doubts)}") if doubts else found


def _find_job_gpus(answer: NvmlAnswer, environ: Mapping[str, str]) -> JobGpus:
    visible = split_words(environ.get("CUDA_VISIBLE_DEVICES", ""))
    if visible and all(word.startswith(("GPU-", "MIG-")) for word in visible):
        return _complete_uuids(answer, visible)
    if answer.problem:
        return JobGpus((), answer.problem)
    name = next((n for n in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS") if environ.get(n)), "")
    indices = split_words(environ.get(name, ""))
    shown = tuple(gpu.uuid for gpu in answer.gpus if gpu.uuid is not None)
    count = len(indices or visible)
    # One that is lost may be the job's: then the others are not.
    if count and len(shown) == len(answer.gpus) == count:
        return JobGpus(shown, f"NVML shows exactly the {count} that the job has")
    if indices:
        return _choose_by_minor(answer, name, indices)
    if visible:
        return _choose_by_order(answer, visible)
    if len(shown) == len(answer.gpus) == 1 and "CUDA_VISIBLE_DEVICES" not in environ:
        return JobGpus(shown, "the only GPU that NVML shows")
    return JobGpus((), "neither Slurm nor CUDA_VISIBLE_DEVICES says which GPUs are the job's")


def _choose_by_minor(answer: NvmlAnswer, name: str, indices: Sequence[str]) -> JobGpus:
    """Slurm numbers GPUs as their device files are numbered, where gres.conf names those."""
    by_minor = {str(gpu.minor_number): gpu.uuid for gpu in answer.gpus}
    found = [by_minor.get(index) for index in indices]
    if None in found:
        return JobGpus(
            (),
            f"NVML shows {len(answer.gpus)} GPUs, the job has {len(indices)}, and not all of "
            f"{name}={','.join(indices)} are minor numbers of theirs",
        )
    return JobGpus(tuple(str(uuid) for uuid in found), f"by the minor numbers in {name}")


def _choose_by_order(answer: NvmlAnswer, visible: Sequence[str]) -> JobGpus:
    """Without Slurm a number is CUDA's, which counts like NVML where all GPUs are of one model."""
    models = {gpu.name for gpu in answer.gpus}
    by_index = {str(gpu.nvml_index): gpu.uuid for gpu in answer.gpus}
    found = [by_index.get(word) for word in visible]
    if len(models) != 1 or None in models or None in found:
        return JobGpus((), f"CUDA_VISIBLE_DEVICES={','.join(visible)} does not say which GPU it is")
    return JobGpus(
        tuple(str(uuid) for uuid in found),
        "by the numbers in CUDA_VISIBLE_DEVICES, all GPUs being of one model",
    )


def _complete_uuids(answer: NvmlAnswer, visible: Sequence[str]) -> JobGpus:
    """CUDA takes the beginning of a UUID where it is unique; MPS's limits need the whole."""
    known = [gpu.uuid for gpu in answer.gpus if gpu.uuid is not None]
    complete = []
    for word in visible:
        fits = [uuid for uuid in known if uuid.startswith(word)]
        if len(fits) == 1:
            complete.append(fits[0])
        elif UUID.fullmatch(word):
            complete.append(word)
        else:
            return JobGpus((), f"CUDA_VISIBLE_DEVICES has {word}, which is not a GPU's UUID")
    return JobGpus(tuple(dict.fromkeys(complete)), "CUDA_VISIBLE_DEVICES has UUIDs")


def split_words(text: str) -> list[str]:
    """The words of a list as Slurm and CUDA write it, `0,1`."""
    return [word.strip() for word in text.split(",") if word.strip()]


# ---- Asks NVML in a child process: a driver that hangs does not hang the caller ------------------

NVML_S = 4.0
"""How long a hook waits for NVML."""

_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_child.py")
_CLEAN = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C"}


class NvmlQuestion:
    """A child process that gets NVML ready while the caller does something else.

    Args:
        python: The interpreter.
        environ: Its environment; the caller's where None.
        module_path: Where the bindings are looked for first.
        uuids: The GPUs that are asked about, by UUID. A driver in trouble is asked only for UUID
            and minor number of the others.
        minors: The same by N of /dev/nvidiaN. With neither: all GPUs.
        compute_modes: As root: compute modes to set, by UUID; the answer has what holds then.
        power_limits: The same of power limits, in mW.
    """

    def __init__(
        self,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        module_path: Sequence[str] = (),
        *,
        uuids: Collection[str] = (),
        minors: Collection[int] = (),
        compute_modes: Mapping[str, str] | None = None,
        power_limits: Mapping[str, int] | None = None,
    ) -> None:
        self._child: Child | None = None
        self._problem = ""
        words = [
            *(f"--uuid={uuid}" for uuid in uuids),
            *(f"--minor={minor}" for minor in minors),
            *(f"--compute-mode={uuid}={mode}" for uuid, mode in (compute_modes or {}).items()),
            *(f"--power-limit={uuid}={limit}" for uuid, limit in (power_limits or {}).items()),
        ]
        try:
            self._child = start_program(
                [python, "-IB", _CHILD, "--on-request", *words, *module_path],
                os.environ if environ is None else environ,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
            )
        except OSError as error:
            self._problem = f"{python} cannot be started: {error.strerror}"

    def ask(self, timeout_s: float) -> NvmlAnswer:
        """Ask now; one question can be asked once.

        Args:
            timeout_s: How long it may take. A child that hangs is killed, and left alone where
                even that does not end it.
        """
        if self._child is None:
            return NvmlAnswer(problem=self._problem)
        outcome = finish_program(self._child, text="all\n", timeout_s=timeout_s)
        self._child = None
        if outcome.problem:
            return NvmlAnswer(problem=f"NVML gave {outcome.problem}")
        try:
            return parse_answer(json.loads(outcome.stdout.splitlines()[-1]))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):
            words = (outcome.stderr.strip().splitlines() or [f"exit {outcome.returncode}"])[-1]
            return NvmlAnswer(problem=f"the process that asks NVML failed: {words}")

    def close(self) -> None:
        """Give the question up."""
        child, self._child = self._child, None
        if child is not None:
            end_child(child.pid)
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            collect(child, 0.5)


def probe_gpus(
    timeout_s: float,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    module_path: Sequence[str] = (),
) -> NvmlAnswer:
    """Ask NVML for everything once.

    Args:
        timeout_s: How long it may take.
        python: The interpreter that has nvidia-ml-py.
        environ: Its environment; the caller's where None. As root: a clean one.
        module_path: Where the bindings are looked for first.
    """
    return NvmlQuestion(python, environ, module_path).ask(timeout_s)


def start_question(
    driver: str = "",
    node: str = "",
    *,
    uuids: Collection[str] = (),
    minors: Collection[int] = (),
    compute_modes: Mapping[str, str] | None = None,
    power_limits: Mapping[str, int] | None = None,
) -> NvmlQuestion:
    """Get a question ready as root does: with this interpreter, in a clean environment.

    Args:
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
        uuids: The GPUs that are asked about, by UUID.
        minors: The same by N of /dev/nvidiaN. With neither: all GPUs.
        compute_modes: Compute modes to set first, by UUID.
        power_limits: Power limits to set first, in mW by UUID.
    """
    return NvmlQuestion(
        environ=build_nvml_environment(driver, node),
        uuids=uuids,
        minors=minors,
        compute_modes=compute_modes,
        power_limits=power_limits,
    )


def build_nvml_environment(driver: str, node: str) -> dict[str, str]:
    """The clean environment in which root asks NVML; pure.

    Args:
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
    """
    environ = dict(_CLEAN)
    if node:
        environ["SLURMD_NODENAME"] = node
    if driver:
        environ["LD_LIBRARY_PATH"] = f"{driver}/lib"
    return environ
