"""Moves GPU memory of processes to host memory and back; who: the user; where: compute node.

The driver does it (CUDA's checkpoint, r570 or newer) by a thread in the process itself, which must
not be stopped. A call may hang, so it is made here, in a process of its own that its runner can
kill. Lines of JSON go in, `{"do": "away", "member": 3, "pids": [..]}`, or `back`; for each of
these a line comes out: `{"member": 3, "at": "away", "pid": 17, "mb": 20480,
"seconds": 3.1, "reason": ""}`. `adopt` names one that another such process has moved, `renew` says
that the runner is there. Once the pipe has ended, or nothing has come for as long as a pause
lasts, all that was moved is brought back: its runner is gone, or hangs.

    move_memory.py [LIBRARY]
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

from slurm_colloc.process_name import name_process

if __name__ == "__main__":
    # Before all that takes its time to load.
    name_process("csub-mover")

from slurm_colloc.host.nvml.nvml_query import probe_gpus
from slurm_colloc.host.system.node_processes import ProcessId, identify
from slurm_colloc.runtime.programs.pause_lease import LEASE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

LOCK_MS = 5000
"""How long a process may take until all its calls into CUDA are held."""

NVML_S = 30.0
"""How long NVML may take to say who has GPU memory."""

AGAIN_S = 2.0
"""How long after it could not be brought back, as where there is no room, it is tried again."""

RUNNING, LOCKED, CHECKPOINTED = range(3)
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class DriverError(Exception):
    """A call into the driver failed; the text says which, and why."""


class _LockArgs(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class Driver:
    """The driver's calls (cuda.h, Checkpointing).

    Args:
        library: libcuda.

    Raises:
        DriverError: There is none, or it is older than r570.
    """

    def __init__(self, library: str) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
            _ = self._cuda.cuCheckpointProcessLock
        except OSError as error:
            raise DriverError(str(error)) from error
        except AttributeError as error:
            raise DriverError("the driver is older than r570") from error
        self._call("cuInit", 0)

    def read_state(self, pid: int) -> int:
        """RUNNING, LOCKED or CHECKPOINTED; another number where it has failed."""
        state = ctypes.c_int(-1)
        self._call("cuCheckpointProcessGetState", pid, ctypes.byref(state))
        return state.value

    def move_away(self, pid: int) -> None:
        """Move a process's GPU memory to its host memory; it then waits in its calls."""
        self._call("cuCheckpointProcessLock", pid, ctypes.byref(_LockArgs(LOCK_MS)))
        self._call("cuCheckpointProcessCheckpoint", pid, None)

    def bring_back(self, pid: int) -> None:
        """Undo that, as far as it was done."""
        if self.read_state(pid) == CHECKPOINTED:
            self._call("cuCheckpointProcessRestore", pid, None)
        if (state := self.read_state(pid)) == LOCKED:
            self._call("cuCheckpointProcessUnlock", pid, None)
        elif state != RUNNING:
            raise DriverError(f"the driver says that it is in state {state}")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            said = (text.value or b"unknown error").decode("utf-8", "replace")
            raise DriverError(f"{name}: {said} ({code})")


class Mover:
    """Moves, and knows what it has moved.

    Args:
        library: libcuda.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._driver: Driver | None = None
        self.away: dict[int, ProcessId] = {}
        """The process of each member whose GPU memory is in host memory."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a line asks for; what became of it."""
        began, member = time.monotonic(), request["member"]
        found: dict[str, Any] = {"pid": 0, "mb": None, "reason": ""}
        try:
            if request["do"] == "away":
                self._move_away(member, request["pids"], found)
            else:
                self._bring_back(member, request["pids"])
        except DriverError as error:
            found["reason"] = str(error)
        at = "away" if member in self.away else "there"
        return {"member": member, "at": at, "seconds": time.monotonic() - began, **found}

    def adopt(self, member: int, pids: list[int]) -> None:
        """Take over what a process before this one has moved."""
        for process in filter(None, map(identify, pids)):
            self.away[member] = process

    def bring_all_back(self) -> bool:
        """Bring back what can be; True once nothing is left."""
        for member in list(self.away):
            with contextlib.suppress(DriverError):
                self._bring_back(member, [])
        return not self.away

    def _move_away(self, member: int, pids: list[int], found: dict[str, Any]) -> None:
        driver = self._driver = self._driver or Driver(self._library)
        sizes = self._list_sizes(pids)
        if not sizes:
            # It has only begun.
            found["mb"] = 0
            return
        if len(sizes) != 1:
            raise DriverError(f"{len(sizes)} of its processes have GPU memory, and one must")
        found["pid"], found["mb"] = pid, _ = next(iter(sizes.items()))
        process = identify(pid)
        if process is None:
            raise DriverError("it has ended")
        self.away[member] = process
        try:
            driver.move_away(pid)
        except DriverError:
            self._bring_back(member, [])
            raise

    def _bring_back(self, member: int, pids: list[int]) -> None:
        """What another has moved is found by its pid."""
        processes = [self.away[member]] if member in self.away else map(identify, pids)
        for process in processes:
            if process is None or identify(process.pid) != process:
                continue
            driver = self._driver = self._driver or Driver(self._library)
            self.away[member] = process
            # A stopped one cannot be restored.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)  # noqa: TID251 - the user's own
            driver.bring_back(process.pid)
        self.away.pop(member, None)

    @staticmethod
    def _list_sizes(pids: Sequence[int]) -> dict[int, int | None]:
        """GPU memory in MiB of those of some processes that NVML shows on GPUs seen here."""
        answer = probe_gpus(NVML_S)
        if answer.problem:
            raise DriverError(answer.problem)
        listed = (process for gpu in answer.gpus for process in gpu.processes or ())
        found = [process for process in listed if process.pid in pids]
        sizes = {process.pid: process.gpu_memory_mb for process in found}
        if len(sizes) < len(found):
            raise DriverError("it uses several GPUs")
        return sizes


def main(argv: list[str]) -> int:
    """Answer until the pipe ends; then bring all back, however long that takes."""
    for number in _IGNORED:
        # What ends the job ends the members first: until then they may be brought back.
        signal.signal(number, signal.SIG_IGN)
    mover = Mover(argv[1] if len(argv) > 1 else "libcuda.so.1")
    data = b""
    while True:
        if not select.select([0], [], [], LEASE_S)[0]:
            for member in list(mover.away):
                say(mover.answer({"do": "back", "member": member, "pids": []}))
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            break
        *lines, data = (data + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "adopt":
                mover.adopt(request["member"], request["pids"])
            elif request["do"] != "renew":
                say(mover.answer(request))
    while not mover.bring_all_back():
        time.sleep(AGAIN_S)
    return 0


def say(answer: dict[str, Any]) -> None:
    """Write a line."""
    with contextlib.suppress(OSError):
        os.write(1, f"{json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv))
