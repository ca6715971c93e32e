"""A fork server for trainings: `python -m slurm_colloc_lab.calibration.training_worker`.

It loads torch once and never touches CUDA itself, so that a worker costs a fork and not the seconds
that loading torch takes, and can still be given an environment of its own. It reads requests on
its standard input, one JSON object a line, and writes what the workers say to its standard output.
It ends at the end of its input, and its workers with it.

Requests: start, warm, run, end and kill, each with the id of a worker. Events: built, ready, ran,
error (with text) and gone (the process has ended).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_colloc_lab.calibration.training_window import Stepper

_PR_SET_PDEATHSIG = 1
_MODULE = "slurm_colloc_lab.calibration.training_worker"
_BARE = "--bare"
_REAP_S = 0.1
_READ_BYTES = 65536
_LAST_WORDS = 500


@dataclass
class _Worker:
    """What the server knows of one worker."""

    pid: int
    connection: socket.socket
    partial: bytes = b""


class ForkServer:
    """Forks workers, and passes words between them and the process that started it.

    Args:
        requests: Descriptor to read requests from.
        events: Descriptor to write events to.
        stepper: What runs a training in a worker.
    """

    def __init__(self, requests: int, events: int, stepper: type[Stepper] = Stepper) -> None:
        self._stepper = stepper
        self._requests = requests
        self._events = events
        self._partial = b""
        self._workers: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._libc = ctypes.CDLL(None)

    def serve(self) -> None:
        """Work until the requests end."""
        self._say({"event": "serving"})
        while True:
            for key, _ in self._selector.select(_REAP_S):
                if key.fd == self._requests:
                    if not self._hear_requests():
                        return
                else:
                    self._hear_worker(key.data)
            self._reap()

    def end_all(self) -> None:
        """Kill what is left."""
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)  # noqa: TID251 - its own
        while self._workers:
            self._reap(waits=True)

    def _hear_requests(self) -> bool:
        data = os.read(self._requests, _READ_BYTES)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, request: dict[str, Any]) -> None:
        number = int(request["id"])
        if request["do"] == "start":
            self._fork(number, request)
            return
        worker = self._workers.get(number)
        if worker is None:
            return
        if request["do"] == "kill":
            os.kill(worker.pid, signal.SIGKILL)  # noqa: TID251 - its own
            return
        with contextlib.suppress(OSError):
            worker.connection.sendall(json.dumps(request).encode() + b"\n")

    def _fork(self, number: int, request: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        server = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            worker = self._workers[number] = _Worker(pid, ours)
            self._selector.register(ours, selectors.EVENT_READ, number)
            self._say({"event": "forked", "id": number, "pid": worker.pid})
            return
        status = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:
                os._exit(1)
            # Otherwise a worker would keep the connections of all others open.
            self._selector.close()
            for other in (ours, *(worker.connection for worker in self._workers.values())):
                other.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), self._requests)
            os.dup2(2, self._events)
            status = work(theirs, request, self._stepper)
        finally:
            os._exit(status)

    def _hear_worker(self, number: int) -> None:
        worker = self._workers[number]
        try:
            data = worker.connection.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(worker.connection)
            worker.connection.close()
            return
        *lines, worker.partial = (worker.partial + data).split(b"\n")
        for line in lines:
            self._say({**json.loads(line), "id": number})

    def _reap(self, *, waits: bool = False) -> None:
        for number, worker in tuple(self._workers.items()):
            pid, status = os.waitpid(worker.pid, 0 if waits else os.WNOHANG)
            if not pid:
                continue
            # What it said last may still lie in its connection.
            while worker.connection.fileno() >= 0:
                self._hear_worker(number)
            del self._workers[number]
            code = os.waitstatus_to_exitcode(status)
            self._say({"event": "gone", "id": number, "status": code})

    def _say(self, event: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._events, json.dumps(event).encode() + b"\n")


def work(connection: socket.socket, request: Mapping[str, Any], build: type[Stepper]) -> int:
    """Be a worker until told to end.

    Args:
        connection: To the server.
        request: What to build, and with which environment and cores.
        build: Makes what runs the training.

    Returns:
        The exit status: 0, or 1 after an error, which has been told.
    """
    lines = connection.makefile("rb")

    def say(event: str, **values: Any) -> None:
        connection.sendall(json.dumps({"event": event, **values}).encode() + b"\n")

    stepper: Stepper | None = None
    try:
        # CUDA reads them when it is first used, which is after this.
        os.environ.update(request["environment"])
        stepper = build(request["workload"], request["device"], request["scale"], request["cores"])
        say("built")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "warm":
                peak_mb = stepper.warm_up(command["seconds"], command["steps"])
                say("ready", gpu_memory_mb=peak_mb)
            elif command["do"] == "run":
                ran = stepper.run(
                    command["begin"], command["mark"], command["end"], command["cores"]
                )
                say("ran", **asdict(ran))
            else:
                break
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        words = f"{type(error).__name__}: {error}".strip()
        with contextlib.suppress(OSError):
            say("error", text=" ".join(words.split())[:_LAST_WORDS])
        return 1
    finally:
        if stepper is not None:
            stepper.close()
    return 0


def preload() -> None:
    """Load what every training would load by itself, a second for each, without touching CUDA."""
    import torch

    # The first optimizer loads torch's compiler.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)


def has_touched_cuda() -> bool:
    """Whether this process has come so near to CUDA that those forked from it could not use it."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("/dev/nvidia"):
                return True
    pid = os.fork()
    if not pid:
        # torch tells only those that were forked.
        import torch

        os._exit(int(bool(torch.cuda._is_in_bad_fork())))
    _, status = os.waitpid(pid, 0)
    return bool(status)


def main(module: str = _MODULE, stepper: type[Stepper] = Stepper) -> int:
    """Serve requests from the standard input.

    Args:
        module: The program to start anew where loading torch has touched CUDA.
        stepper: What runs a training in a worker.
    """
    # Forking is the purpose here, whatever threads libraries have; CUDA has none yet.
    warnings.simplefilter("ignore", DeprecationWarning)
    import slurm_colloc_lab.calibration.image_trainings
    import slurm_colloc_lab.calibration.input_trainings
    import slurm_colloc_lab.calibration.other_trainings  # noqa: F401

    if _BARE not in sys.argv:
        preload()
        if has_touched_cuda():
            os.execv(sys.executable, [sys.executable, "-B", "-m", module, _BARE])
    server = ForkServer(sys.stdin.fileno(), sys.stdout.fileno(), stepper)
    try:
        server.serve()
    finally:
        server.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
