"""A CUDA process that does as it is told: client.py simulated|cuda [HOW MANY].

It makes contexts and prints what it got as one line of JSON, then answers each line of its input:
`poll` prints the number of its error or 0, `fault` makes an illegal memory access, the end of the
input ends it. `simulated` is a process on a simulated GPU; `cuda` calls the driver, without
PyTorch. Both print the driver's error numbers.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Protocol

_PTX = b""".version 6.0
.target sm_70
.address_size 64
.visible .entry f(.param .u64 p){
.reg .b64 %rd<2>; .reg .f32 %f1;
ld.param.u64 %rd1,[p]; mov.f32 %f1,0f3F800000; st.global.f32 [%rd1],%f1; ret;
}
\0"""
_MULTIPROCESSORS = 16


class Cuda(Protocol):
    """What both kinds can do."""

    def describe(self) -> dict[str, object]:
        """What the process got."""

    def poll(self) -> int:
        """Its error, or 0."""

    def fault(self) -> None:
        """Make an illegal memory access."""


class Simulated:
    """On a simulated GPU."""

    def __init__(self, count: int) -> None:
        from slurm_colloc_lab.simgpu.mps.client_process import attach

        self._attached = [attach(os.environ, os.getpid()) for _ in range(count)]

    def describe(self) -> dict[str, object]:
        from slurm_colloc_lab.simgpu.mps.client_limits import count_sms
        from slurm_colloc_lab.simgpu.nvml.gpu_state import open_node

        gpus = {gpu.uuid: gpu for gpu in open_node(os.environ).read_visible_gpus()}
        attached = self._attached[0]
        seen = tuple(gpus) if attached is None else attached.gpus
        if not seen:
            return {"error": 100}
        gpu = gpus[seen[0]]
        percentage = 100.0 if attached is None else attached.thread_percentage
        limit_mb = None if attached is None else attached.gpu_memory_limit_mb(gpu.uuid)
        return {
            "error": 0,
            "mps": attached is not None,
            "server": attached.server_pid if attached else None,
            "sms": count_sms(percentage, gpu.sm_count),
            "free_mb": gpu.gpu_memory_mb if limit_mb is None else limit_mb,
        }

    def poll(self) -> int:
        errors = [attached.poll() for attached in self._attached if attached]
        return next((error.code for error in errors if error), 0)

    def fault(self) -> None:
        if self._attached[0] is not None:
            self._attached[0].fault("illegal-address")


class Driver:
    """On a real GPU. A process is one client, however many contexts it has."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._error = self._cuda.cuInit(0)
        device = ctypes.c_int()
        if not self._error:
            self._error = self._cuda.cuDeviceGet(ctypes.byref(device), 0)
        if not self._error:
            self._error = self._cuda.cuCtxCreate_v2(ctypes.byref(self._context), 0, device)

    def describe(self) -> dict[str, object]:
        if self._error:
            return {"error": self._error}
        free, total, sms = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
        self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        self._cuda.cuDeviceGetAttribute(ctypes.byref(sms), _MULTIPROCESSORS, 0)
        return {"error": 0, "mps": None, "sms": sms.value, "free_mb": free.value >> 20}

    def poll(self) -> int:
        if self._error:
            return int(self._error)
        # An allocation goes through the server, a kernel need not.
        memory = ctypes.c_uint64()
        error = self._cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))
        if not error:
            error = self._cuda.cuMemFree_v2(memory)
        return int(error or self._cuda.cuCtxSynchronize())

    def fault(self) -> None:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        memory = ctypes.c_uint64()
        self._cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))
        self._cuda.cuModuleLoadData(ctypes.byref(module), _PTX)
        self._cuda.cuModuleGetFunction(ctypes.byref(function), module, b"f")
        address = ctypes.c_uint64(memory.value + (1 << 42))
        pointer = ctypes.cast(ctypes.byref(address), ctypes.c_void_p)
        arguments = (ctypes.c_void_p * 1)(pointer)
        self._cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
        self._cuda.cuCtxSynchronize()


def main(kind: str, count: int) -> None:
    cuda: Cuda
    if kind == "cuda":
        cuda = Driver()
    else:
        # A program, so the package is found by its path.
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))  # noqa: PTH120
        from slurm_colloc_lab.simgpu.training.cuda_errors import CudaError

        try:
            cuda = Simulated(count)
        except CudaError as error:
            print(json.dumps({"error": error.code}), flush=True)
            sys.stdin.read()
            return
    print(json.dumps(cuda.describe()), flush=True)
    for line in sys.stdin:
        if line.strip() == "fault":
            cuda.fault()
            print("done", flush=True)
        else:
            print(cuda.poll(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
