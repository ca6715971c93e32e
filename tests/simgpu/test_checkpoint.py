"""The driver's checkpoint calls of the simulated GPU: states, sizes, errors, stopped processes.

On a GPU tests/gpu/test_gpu_oversubscribe.py sees the same of the driver.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from ..wait_until import wait_until
from .conftest import Simulation

RUNNING, LOCKED, CHECKPOINTED = range(3)
INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_STATE, NOT_READY = 1, 2, 401, 600
CONTEXT_MB = 512

_CALLS = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
def get():
    state = ctypes.c_int(-1)
    return [cuda.cuCheckpointProcessGetState({pid}, ctypes.byref(state)), state.value]
def lock(timeout_ms=5000):
    return cuda.cuCheckpointProcessLock({pid}, (ctypes.c_uint * 16)(timeout_ms))
def checkpoint():
    return cuda.cuCheckpointProcessCheckpoint({pid}, None)
def restore():
    return cuda.cuCheckpointProcessRestore({pid}, None)
def unlock():
    return cuda.cuCheckpointProcessUnlock({pid}, None)
"""


def call(simulation: Simulation, pid: int, code: str) -> Any:
    return simulation.ask(f"{_CALLS.format(pid=pid)}\nanswer = {code}")


def read_mb(simulation: Simulation, pid: int) -> int:
    return next(one.gpu_memory_mb for one in simulation.node.read_processes() if one.pid == pid)


def read_work(simulation: Simulation, pid: int) -> float:
    return next(one.work for one in simulation.node.read_processes() if one.pid == pid)


def test_gpu_memory_goes_and_comes_back_and_no_step_is_made_between(
    simulation: Simulation,
) -> None:
    pid = simulation.start("--gpu-memory", "20G", "--seconds", "600").pid
    assert call(simulation, pid, "[lock(), get(), checkpoint(), get()]") == [
        0, [0, LOCKED], 0, [0, CHECKPOINTED],
    ]  # fmt: skip
    assert read_mb(simulation, pid) == 0
    work = read_work(simulation, pid)
    assert call(simulation, pid, "[restore(), get()]") == [0, [0, LOCKED]]
    assert read_mb(simulation, pid) == 20 * 1024 + CONTEXT_MB
    assert read_work(simulation, pid) == work
    assert call(simulation, pid, "[unlock(), get()]") == [0, [0, RUNNING]]
    wait_until(lambda: read_work(simulation, pid) > work, "it makes steps again")


def test_calls_out_of_order_and_on_other_processes_are_refused(simulation: Simulation) -> None:
    pid = simulation.start("--seconds", "600").pid
    assert call(simulation, pid, "[checkpoint(), restore(), unlock()]") == [ILLEGAL_STATE] * 3
    assert call(simulation, os.getpid(), "[get()[0], lock()]") == [INVALID_VALUE] * 2


def test_what_has_no_room_stays_checkpointed(simulation: Simulation) -> None:
    pid = simulation.start("--gpu-memory", "100G", "--seconds", "600").pid
    assert call(simulation, pid, "[lock(), checkpoint()]") == [0, 0]
    other = simulation.start("--gpu-memory", "100G", "--seconds", "600")
    assert call(simulation, pid, "[restore(), get()]") == [OUT_OF_MEMORY, [0, CHECKPOINTED]]
    other.kill()
    other.wait()
    assert call(simulation, pid, "[restore(), unlock()]") == [0, 0]


def test_a_stopped_process_is_not_locked(simulation: Simulation) -> None:
    pid = simulation.start("--seconds", "600").pid
    os.kill(pid, signal.SIGSTOP)
    assert call(simulation, pid, "lock(50)") == NOT_READY
    os.kill(pid, signal.SIGCONT)
    assert call(simulation, pid, "[lock(), unlock()]") == [0, 0]


def test_faults_are_injected_by_call(simulation: Simulation) -> None:
    pid = simulation.start("--seconds", "600").pid
    simulation.run("faults", "fail=cuCheckpointProcessCheckpoint:999")
    assert call(simulation, pid, "[lock(), checkpoint(), get(), unlock()]") == [
        0, 999, [0, LOCKED], 0,
    ]  # fmt: skip
