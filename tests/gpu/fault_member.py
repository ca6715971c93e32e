"""A member of a pack that works on the GPU for a while, or fails there in one particular way.

fault_member.py work --seconds S --flags DIR --number N      trains, and says when it is up
fault_member.py KIND --flags DIR --wait-for N ...            fails once the others are up
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

PATIENCE_S = 60.0
GIB = 1 << 30
# A store to an address that nobody has allocated.
_STORE = b""".version 6.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 target)
{
    .reg .b64 %rd<3>;
    .reg .f32 %f1;
    ld.param.u64 %rd1, [target];
    mov.f32 %f1, 0f3F800000;
    st.global.f32 [%rd1], %f1;
    ret;
}
\0"""


def work(seconds: float, flag: Path) -> None:
    """Train a few layers for so long."""
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps = 0
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        steps += 1
        if steps == 1:
            begin = time.monotonic()
            flag.touch()
    print(f"done after {steps} steps", flush=True)


def die() -> None:
    """End in the middle of a kernel."""
    value = torch.ones(4096, 4096, device="cuda")
    for _ in range(300):
        value = value @ value * 0
    os.kill(os.getpid(), signal.SIGKILL)


def take_everything() -> None:
    """Take GPU memory until there is no more."""
    held = []
    while True:
        held.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))


def take_20_gib() -> None:
    """Take more than a limit of less than 20 GiB allows."""
    held = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    print(f"took {len(held)} GiB: there is no limit", flush=True)


def fail_an_assertion() -> None:
    """Index beyond the end, which a kernel of PyTorch asserts."""
    index = torch.tensor([10**6], device="cuda")
    print(torch.zeros(4, device="cuda")[index])
    torch.cuda.synchronize()


def use_an_illegal_address() -> None:
    """Store where nothing is."""
    near = torch.zeros(4, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), _STORE))
    _check(
        "cuModuleGetFunction", cuda.cuModuleGetFunction(ctypes.byref(function), module, b"store")
    )
    target = ctypes.c_uint64(near.data_ptr() + (1 << 42))
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(target), ctypes.c_void_p))
    launched = cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)
    _check("cuLaunchKernel", launched)
    torch.cuda.synchronize()


def _check(name: str, status: int) -> None:
    if status:
        raise SystemExit(f"{name} gave {status}")


FAULTS: dict[str, Callable[[], None]] = {
    "sigkill": die,
    "out-of-memory": take_everything,
    "memory-limit": take_20_gib,
    "device-assert": fail_an_assertion,
    "illegal-address": use_an_illegal_address,
}


def main() -> None:
    """Work or fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["work", *FAULTS])
    parser.add_argument("--flags", type=Path, required=True)
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--wait-for", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{arguments.kind} pid {os.getpid()} restart {os.environ.get('SLURM_RESTART_COUNT', '0')} "
        f"mps {'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE' in os.environ}",
        flush=True,
    )
    if arguments.kind == "work":
        work(arguments.seconds, arguments.flags / f"up.{arguments.number}")
        return
    torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    deadline = time.monotonic() + PATIENCE_S
    while not all((arguments.flags / f"up.{number}").exists() for number in arguments.wait_for):
        if time.monotonic() > deadline:
            raise SystemExit("the others did not come up")
        time.sleep(0.02)
    # Long enough for all of them to have been seen as clients.
    time.sleep(0.5)
    FAULTS[arguments.kind]()


if __name__ == "__main__":
    main()
