"""What NVML says about MIG, by NVIDIA's own binding: mig_look.py prints a JSON object.

It only reads. What would change something is asked as an ordinary user, on a GPU without MIG: there
it fails on any driver.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pynvml

nvml: Any = pynvml
ORDINARY_USER = 65534
# Ids of profiles that no GPU has.
STRANGE_IDS = (1, 99)
# Of the A30, and of the others.
ALL_IDS = (0, 5, 6, 9, 14, 15, 19, 20, 21)


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or `{"error": code}`."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        return {"error": error.value}


def read_profile(function: Callable[..., Any], *arguments: Any) -> Any:
    """A profile as NVML gives it."""
    info = ask(function, *arguments)
    if isinstance(info, dict):
        return info
    name = info.name.decode() if isinstance(info.name, bytes) else info.name
    return {
        "id": info.id,
        "name": name,
        "slices": info.sliceCount,
        "count": info.instanceCount,
        "sms": info.multiprocessorCount,
        "copy": info.copyEngineCount,
        "decoders": info.decoderCount,
        "jpegs": info.jpegCount,
        "ofas": info.ofaCount,
        "memory_mb": info.memorySizeMB,
    }


def read_placements(device: Any, profile_id: int) -> Any:
    """Where instances of a profile may lie."""
    count = ctypes.c_uint()
    wanted = ask(
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements,
        *(device, profile_id, None, ctypes.byref(count)),
    )
    if isinstance(wanted, dict):
        return wanted
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, places, ctypes.byref(count))
    return [[place.start, place.size] for place in places]


def count_instances(device: Any, profile_id: int) -> Any:
    """How many there are of a profile."""
    found = (nvml.c_nvmlGpuInstance_t * 8)()
    count = ctypes.c_uint(8)
    done = ask(nvml.nvmlDeviceGetGpuInstances, device, profile_id, found, ctypes.byref(count))
    return done if isinstance(done, dict) else count.value


def ask_with_version(device: Any, version: int) -> int:
    """What a structure of another version gives."""
    info = nvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    info.version = version
    function = nvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
    return int(function(device, 0, ctypes.byref(info)))


def look(device: Any) -> dict[str, Any]:
    """Everything that can be read of a GPU."""
    sample = ask(nvml.nvmlGpmSampleAlloc)
    return {
        "name": nvml.nvmlDeviceGetName(device),
        "gpu_memory_mb": nvml.nvmlDeviceGetMemoryInfo(device).total >> 20,
        "mode": ask(nvml.nvmlDeviceGetMigMode, device),
        "devices": ask(nvml.nvmlDeviceGetMaxMigDeviceCount, device),
        "profiles": [
            read_profile(nvml.nvmlDeviceGetGpuInstanceProfileInfo, device, number)
            for number in range(18)
        ],
        "by_id": {
            profile_id: read_profile(
                nvml.nvmlDeviceGetGpuInstanceProfileInfoById, device, profile_id
            )
            for profile_id in (*ALL_IDS, *STRANGE_IDS)
        },
        "placements": {
            profile_id: read_placements(device, profile_id)
            for profile_id in (*ALL_IDS, *STRANGE_IDS)
        },
        "capacity": {
            profile_id: ask(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, device, profile_id)
            for profile_id in (*ALL_IDS, *STRANGE_IDS)
        },
        "instances": {
            profile_id: count_instances(device, profile_id)
            for profile_id in (*ALL_IDS, *STRANGE_IDS)
        },
        "a wrong version": ask_with_version(device, 7),
        "instance by id": ask(nvml.nvmlDeviceGetGpuInstanceById, device, 1),
        "device by index": ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, 0),
        "device by a high index": ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, 99),
        "device by uuid": ask(
            nvml.nvmlDeviceGetHandleByUUID, "MIG-00000000-0000-0000-0000-000000000000"
        ),
        "device by an odd uuid": ask(nvml.nvmlDeviceGetHandleByUUID, "MIG-x"),
        "instance of a GPU": ask(nvml.nvmlDeviceGetGpuInstanceId, device),
        "compute instance of a GPU": ask(nvml.nvmlDeviceGetComputeInstanceId, device),
        "parent of a GPU": ask(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device),
        "a GPU is a MIG device": nvml.nvmlDeviceIsMigDeviceHandle(device).value,
        "attributes of a GPU": ask(nvml.nvmlDeviceGetAttributes_v2, device),
        "GPM of an instance": (
            sample if isinstance(sample, dict) else ask(nvml.nvmlGpmMigSampleGet, device, 1, sample)
        ),
    }


def main() -> None:
    """Look as this user, and where it is root as an ordinary user too."""
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    seen: dict[str, Any] = {"first": look(device), "refused": None}
    if seen["first"]["mode"] == [0, 0]:
        if os.geteuid() == 0:
            nvml.nvmlShutdown()
            os.setgroups([])
            os.setgid(ORDINARY_USER)
            os.setuid(ORDINARY_USER)
            nvml.nvmlInit()
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            seen["ordinary user"] = look(device)
        seen["refused"] = {
            "switch off what is off": ask(nvml.nvmlDeviceSetMigMode, device, 0),
            "create": ask(nvml.nvmlDeviceCreateGpuInstance, device, 9),
        }
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
