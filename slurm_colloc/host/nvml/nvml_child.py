"""Asks NVML and prints what it says as JSON; who: the user or root; where: a process of its own.

A call into the driver can hang, so no other module of `host` imports pynvml. It is started by path:

    nvml_child.py [--on-request] [--uuid=UUID ...] [--minor=N ...] [--compute-mode=UUID=MODE ...]
        [--power-limit=UUID=MW ...] [PATH ...]

With --on-request it gets ready, then answers each line on standard input. With --uuid or --minor
it reads only UUID and minor number of all other GPUs. With --compute-mode and --power-limit it sets
these, which only root may, and answers with all that holds then. PATHs are where the bindings are
looked for first. What cannot be read is null, never 0; see host.nvml.nvml_query for the meaning.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COMPUTE_MODES = ("DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")
_MIB = 1 << 20
_PR_SET_PDEATHSIG = 1
_KILL = 9


def main(argv: list[str]) -> int:
    """Answer once, or for each line."""
    # See slurm_colloc.process_name, which this file does without.
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(b"csub-nvml")
    except OSError:
        pass
    options = [word.split("=") for word in argv[1:] if word.startswith("--")]
    changes = [words for words in options if words[0] in ("--compute-mode", "--power-limit")]
    wanted = {words[1] for words in options if words[0] in ("--uuid", "--minor")}
    if changes and not die_with_parent():
        return 1
    sys.path[:0] = [word for word in argv[1:] if not word.startswith("--")]
    nvml, problem = load_bindings()
    problem = problem or start_nvml(nvml, changes)
    if problem:
        return say({"problem": problem, "lacks_bindings": nvml is None})
    if ["--on-request"] not in options:
        return say(read_all(nvml, wanted))
    for _ in sys.stdin:
        say(read_all(nvml, wanted))
    return 0


def die_with_parent() -> bool:
    """Let nothing change any more once the parent was killed; False where it is gone already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _KILL, 0, 0, 0)
    return os.getppid() == parent


def load_bindings() -> tuple[Any, str]:
    """The bindings, or why there are none; no driver is touched yet."""
    try:
        import pynvml
    except ImportError:
        return None, f"nvidia-ml-py is not installed for {sys.executable}"
    return pynvml, ""


def start_nvml(nvml: Any, changes: list[list[str]]) -> str:
    """Initialise NVML and set what is to be set; why it cannot be, empty where it is done."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML cannot be used: {error}"
    for option, uuid, value in changes:
        change(nvml, option, uuid, value)
    return ""


def say(value: dict[str, Any]) -> int:
    """Print one answer."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
    return 0


def read_all(nvml: Any, wanted: set[str]) -> dict[str, Any]:
    """Read driver and GPUs.

    Args:
        nvml: The bindings.
        wanted: UUIDs and minor numbers of the GPUs that are read whole; empty for all. A driver in
            trouble is asked only for these two of the others.
    """
    version = ask(nvml, "nvmlSystemGetCudaDriverVersion")
    count = ask(nvml, "nvmlDeviceGetCount")
    if count is None:
        return {"problem": "NVML does not say how many GPUs there are"}
    return {
        "problem": "",
        "driver_version": text(ask(nvml, "nvmlSystemGetDriverVersion")),
        # CUDA writes 13.1 as 13010.
        "cuda_version": None if version is None else f"{version // 1000}.{version % 1000 // 10}",
        "gpus": [read_gpu(nvml, index, wanted) for index in range(count)],
    }


def change(nvml: Any, option: str, uuid: str, value: str) -> None:
    """Set one thing of a GPU; whether it took is read back with all the rest."""
    handle = ask(nvml, "nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        return
    if option == "--power-limit":
        ask(nvml, "nvmlDeviceSetPowerManagementLimit", handle, int(value))
    else:
        ask(nvml, "nvmlDeviceSetComputeMode", handle, _COMPUTE_MODES.index(value))


def read_gpu(nvml: Any, index: int, wanted: set[str]) -> dict[str, Any]:
    """Read one GPU; `wanted` as in `read_all`."""
    gpu: dict[str, Any] = {"nvml_index": index}
    handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return gpu
    uuid = text(ask(nvml, "nvmlDeviceGetUUID", handle))
    minor = ask(nvml, "nvmlDeviceGetMinorNumber", handle)
    gpu.update(uuid=uuid, minor_number=minor)
    if wanted and wanted.isdisjoint((uuid, str(minor))):
        return gpu
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    mode = ask(nvml, "nvmlDeviceGetComputeMode", handle)
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    mig = ask(nvml, "nvmlDeviceGetMigMode", handle)
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    bounds = ask(nvml, "nvmlDeviceGetPowerManagementLimitConstraints", handle)
    persistence = ask(nvml, "nvmlDeviceGetPersistenceMode", handle)
    gpu.update(
        name=text(ask(nvml, "nvmlDeviceGetName", handle)),
        pci_bus_id=None if pci is None else text(pci.busId),
        gpu_memory_total_mb=None if memory is None else int(memory.total) // _MIB,
        gpu_memory_used_mb=None if memory is None else int(memory.used) // _MIB,
        compute_mode=_COMPUTE_MODES[mode] if mode in range(4) else None,
        compute_capability=None if capability is None else [int(part) for part in capability],
        mig_enabled=None if mig is None else bool(mig[0]),
        power_limit_mw=ask(nvml, "nvmlDeviceGetPowerManagementLimit", handle),
        power_limit_least_mw=None if bounds is None else int(bounds[0]),
        is_persistent=None if persistence is None else bool(persistence),
        processes=read_processes(nvml, "nvmlDeviceGetComputeRunningProcesses", handle),
        mps_processes=read_processes(nvml, "nvmlDeviceGetMPSComputeRunningProcesses", handle),
    )
    return gpu


def read_processes(nvml: Any, name: str, handle: Any) -> list[dict[str, Any]] | None:
    """Read a list of processes."""
    processes = ask(nvml, name, handle)
    if processes is None:
        return None
    return [
        {
            "pid": int(process.pid),
            "gpu_memory_mb": None
            if process.usedGpuMemory is None
            else int(process.usedGpuMemory) // _MIB,
        }
        for process in processes
    ]


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """One call; None where NVML, or this version of its bindings, has no answer."""
    try:
        return getattr(nvml, name)(*arguments)
    except (nvml.NVMLError, AttributeError, ValueError, TypeError):
        return None


def text(value: Any) -> str | None:
    """Text of an answer; older bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    # Without taking the interpreter down: the caller waits for the end.
    os._exit(main(sys.argv))
