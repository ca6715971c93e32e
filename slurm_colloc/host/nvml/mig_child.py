"""Reads and changes MIG through NVML, a line of JSON at a time; who: root; a process of its own.

    python -m slurm_colloc.host.nvml.mig_child LOCK UUID=MINOR ...

A call into the driver can hang: who asks kills this process then. It holds the lock of each of its
GPUs (a byte of LOCK) until it has ended, so that a call which it is killed in is over before the
next hook looks; without a LOCK it only reads. It dies with its parent. What it may do is
in `_COMMANDS`: each is one call of NVML's, and answers `{"value": ...}` or `{"error": text,
"code": number}`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys

from slurm_colloc.host.nvml.nvml_child import (
    ask,
    die_with_parent,
    load_bindings,
    say,
    start_nvml,
    text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GPU_LOCKS_AT = 1 << 40
"""Where the GPUs' bytes begin in the lock file, by minor number; jobs' are below."""

_VIRTUAL_MODES = (2, 3, 4)
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU, _HOST_VGPU, _HOST_VSGA."""


def main(argv: list[str]) -> int:
    """Answer each line of standard input."""
    if not die_with_parent():
        return 1
    gpus = dict(word.split("=") for word in argv[2:])
    nvml, problem = load_bindings()
    if problem:
        return say({"error": problem, "code": -1})
    if argv[1]:
        lock = os.open(argv[1], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        for minor in sorted(map(int, gpus.values())):
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, GPU_LOCKS_AT + minor)
    if problem := start_nvml(nvml, []):
        return say({"error": problem, "code": -1})
    for line in sys.stdin:
        say(answer(nvml, list(gpus), json.loads(line), may_change=bool(argv[1])))
    return 0


def answer(nvml: Any, gpus: list[str], request: list[Any], *, may_change: bool) -> dict[str, Any]:
    """Do what one line asks for: a command and its arguments."""
    command, *arguments = request
    try:
        if command == "read":
            return {"value": [read_gpu(nvml, uuid) for uuid in gpus]}
        if not may_change:
            return {"error": "without a lock nothing is changed", "code": -1}
        return {"value": _COMMANDS[command](nvml, *arguments)}
    except nvml.NVMLError as error:
        return {"error": str(error), "code": int(error.value)}
    except _MadeAllTheSame as error:
        # With its own code it would be taken for a refusal.
        return {"error": str(error), "code": -1}


class _MadeAllTheSame(Exception):
    """NVML has made an instance, and does not say which."""


# -- changing: one call each -----------------------------------------------------------------------


def _set_mode(nvml: Any, gpu: str, on: bool) -> None:
    # What it returns is no error, and is only believed after it was read (nvmlDeviceSetMigMode).
    nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByUUID(gpu), int(on))


def _create(nvml: Any, gpu: str, profile_id: int, start: int, size: int) -> int:
    placement = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        nvml.nvmlDeviceGetHandleByUUID(gpu), profile_id, ctypes.byref(placement)
    )
    try:
        return int(nvml.nvmlGpuInstanceGetInfo(instance).id)
    except nvml.NVMLError as error:
        raise _MadeAllTheSame(str(error)) from error


def _create_compute(nvml: Any, gpu: str, instance: int, slices: int) -> None:
    found = _find_instance(nvml, gpu, instance)
    for profile in _list_compute_profiles(nvml, found):
        if profile.sliceCount == slices:
            nvml.nvmlGpuInstanceCreateComputeInstance(found, profile.id)
            return
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def _destroy_compute(nvml: Any, gpu: str, instance: int, compute: int) -> None:
    found = _find_instance(nvml, gpu, instance)
    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(found, compute))


def _destroy(nvml: Any, gpu: str, instance: int) -> None:
    nvml.nvmlGpuInstanceDestroy(_find_instance(nvml, gpu, instance))


def _find_instance(nvml: Any, gpu: str, instance: int) -> Any:
    return nvml.nvmlDeviceGetGpuInstanceById(nvml.nvmlDeviceGetHandleByUUID(gpu), instance)


_COMMANDS: dict[str, Callable[..., int | None]] = {
    "set_mode": _set_mode,
    "create": _create,
    "create_compute": _create_compute,
    "destroy_compute": _destroy_compute,
    "destroy": _destroy,
}

# -- reading ---------------------------------------------------------------------------------------


def read_gpu(nvml: Any, uuid: str) -> dict[str, Any]:
    """All of a GPU's MIG; what cannot be read is null (mig_state says what it means)."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    virtual = ask(nvml, "nvmlDeviceGetVirtualizationMode", handle)
    profiles, problem = _read_profiles(nvml, handle) if mode is not None else ([], "")
    instances: list[dict[str, Any]] | None = []
    if mode is not None and mode[0]:
        try:
            instances = [
                _read_instance(nvml, instance)
                for profile in profiles
                for instance in _list_instances(nvml, handle, profile)
            ]
        except nvml.NVMLError as error:
            problem = str(error)
        # Instances are found by profile: without one of them some may not be seen.
        if problem:
            instances = None
    return {
        "uuid": uuid,
        "name": text(ask(nvml, "nvmlDeviceGetName", handle)),
        "pci_device_id": None if pci is None else int(pci.pciDeviceId),
        "minor_number": ask(nvml, "nvmlDeviceGetMinorNumber", handle),
        "compute_capability": None if capability is None else [int(part) for part in capability],
        "is_on": None if mode is None else bool(mode[0]),
        "is_pending_on": None if mode is None else bool(mode[1]),
        "is_virtual": virtual in _VIRTUAL_MODES,
        "profiles": profiles,
        "instances": instances,
        "processes": _read_processes(nvml, handle),
        "problem": problem,
    }


def _read_profiles(nvml: Any, handle: Any) -> tuple[list[dict[str, Any]], str]:
    """The profiles that this GPU has with this driver, and why some may be missing."""
    profiles = []
    problem = ""
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2)
            placements = _read_placements(nvml, handle, info.id)
        except nvml.NVMLError as error:
            # Not of this GPU, or newer than the driver.
            if error.value not in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
            ):
                problem = str(error)
            continue
        name = (text(info.name) or "").removeprefix("MIG ")
        profiles.append(
            {
                "profile_id": int(info.id),
                "name": name,
                "compute_slices": int(info.sliceCount),
                "memory_slices": max((size for _, size in placements), default=0),
                "memory_mb": int(info.memorySizeMB),
                "sms": int(info.multiprocessorCount),
                "instances_max": int(info.instanceCount),
                "placements": placements,
                "media_extensions": "+me" in name,
            }
        )
    return profiles, problem


def _read_placements(nvml: Any, handle: Any, profile_id: int) -> list[list[int]]:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, found, ctypes.byref(count))
    return sorted([int(one.start), int(one.size)] for one in found[: count.value])


def _list_instances(nvml: Any, handle: Any, profile: dict[str, Any]) -> list[Any]:
    most = max(1, profile["instances_max"])
    count = ctypes.c_uint(most)
    found = (nvml.c_nvmlGpuInstance_t * most)()
    nvml.nvmlDeviceGetGpuInstances(handle, profile["profile_id"], found, ctypes.byref(count))
    return list(found[: count.value])


def _read_instance(nvml: Any, instance: Any) -> dict[str, Any]:
    info = nvml.nvmlGpuInstanceGetInfo(instance)
    compute = []
    for profile in _list_compute_profiles(nvml, instance):
        most = max(1, int(profile.instanceCount))
        count = ctypes.c_uint(most)
        found = (nvml.c_nvmlComputeInstance_t * most)()
        nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id, found, ctypes.byref(count))
        for one in found[: count.value]:
            # Its own record, because walking all MIG devices takes seconds while others do so too.
            own = nvml.nvmlComputeInstanceGetInfo(one)
            compute.append(
                [
                    int(own.id),
                    int(profile.sliceCount),
                    int(profile.multiprocessorCount),
                    text(ask(nvml, "nvmlDeviceGetUUID", own.device)),
                ]
            )
    return {
        "id": int(info.id),
        "profile_id": int(info.profileId),
        "placement": [int(info.placement.start), int(info.placement.size)],
        "compute": sorted(compute),
    }


def _list_compute_profiles(nvml: Any, instance: Any) -> list[Any]:
    """What a GPU instance can be divided into, one of each size."""
    found: dict[int, Any] = {}
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            profile = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=2
            )
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        found.setdefault(int(profile.id), profile)
    return list(found.values())


def _read_processes(nvml: Any, handle: Any) -> list[int] | None:
    processes = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    return None if processes is None else [int(process.pid) for process in processes]


if __name__ == "__main__":
    # Without taking the interpreter down: the caller waits for the end.
    os._exit(main(sys.argv))
