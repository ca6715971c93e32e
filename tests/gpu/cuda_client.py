"""A program that uses the GPU through CUDA's driver library alone, so that it starts in a second.

It fills GPU memory again and again until a file is there or its time is up. FILE of --up gets one
JSON object once the first fill is done, or what did not work: the pid that it calls itself, and how
many multiprocessors it is given, which is fewer for a client of MPS with a thread limit.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
BUFFER_MB = 256
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT (CUDA Driver API, CUdevice_attribute)."""


class Failed(Exception):
    """A call of CUDA's has failed, in CUDA's words."""


def load_cuda() -> Any:
    """The driver's library."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Failed(f"libcuda.so.1: {error}") from error


def call(cuda: Any, name: str, *arguments: Any) -> None:
    """One call.

    Raises:
        Failed: It did not give CUDA_SUCCESS.
    """
    status = getattr(cuda, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(text))
        raise Failed(f"{name}: {(text.value or str(status).encode()).decode()}")


def open_gpu(cuda: Any) -> tuple[int, ctypes.c_uint64]:
    """Make a context and take some GPU memory: the number of multiprocessors, and where it is."""
    device, count, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    gpu_memory = ctypes.c_uint64()
    call(cuda, "cuInit", 0)
    call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSORS, device)
    call(cuda, "cuMemAlloc_v2", ctypes.byref(gpu_memory), ctypes.c_size_t(BUFFER_MB * MIB))
    return count.value, gpu_memory


def fill(cuda: Any, gpu_memory: ctypes.c_uint64) -> None:
    """Write all of the GPU memory, and wait for the GPU."""
    call(
        cuda, "cuMemsetD32_v2", gpu_memory, ctypes.c_uint(7), ctypes.c_size_t(BUFFER_MB * MIB // 4)
    )
    call(cuda, "cuCtxSynchronize")


def tell(path: Path | None, found: dict[str, Any]) -> None:
    """Say something in the file, whole or not at all."""
    line = json.dumps({"pid": os.getpid(), **found})
    print(line, flush=True)
    if path is not None:
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text(f"{line}\n")
        draft.rename(path)


def main() -> int:
    """Work until it is time to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--up", type=Path)
    parser.add_argument("--until", type=Path)
    arguments = parser.parse_args()
    begin = time.monotonic()
    try:
        cuda = load_cuda()
        multiprocessors, gpu_memory = open_gpu(cuda)
        fill(cuda, gpu_memory)
        up_s = round(time.monotonic() - begin, 3)
        tell(arguments.up, {"multiprocessors": multiprocessors, "up_s": up_s})
        while time.monotonic() < begin + arguments.seconds:
            if arguments.until is not None and arguments.until.exists():
                break
            fill(cuda, gpu_memory)
            time.sleep(0.02)
    except Failed as problem:
        tell(arguments.up, {"problem": str(problem)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
