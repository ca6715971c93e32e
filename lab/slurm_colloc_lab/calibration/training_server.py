"""The fork server's other side: starts it, asks its workers, and never waits without a limit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import slurm_colloc
from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.child_programs import PIPE, Child, collect, start_program

# Where both packages lie, for a Python that does not look there by itself.
_ROOTS = (Path(__file__).resolve().parents[2], Path(slurm_colloc.__file__).resolve().parents[1])
_STDERR = 2
_READ_BYTES = 65536
_SERVING_S = 120.0
_END_S = 5.0


@dataclass
class Worker:
    """One training, as far as it has said anything.

    Args:
        number: What the server calls it.
        workload: What it trains.
        limit: Its thread limit under MPS, in percent; None for none.
        state: `starting`, `built`, `warming`, `ready`, `running`, `ran` or `gone`.
        pid: Its process; None until it is forked.
        answer: The values of its last event.
        problem: Why it failed; empty where it has not.
        gpu_memory_mb: The most that torch held in MiB; None on a CPU, or before it is ready.
    """

    number: int
    workload: str
    limit: int | None = None
    state: str = "starting"
    pid: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    gpu_memory_mb: float | None = None


class Pool:
    """A fork server and its workers.

    Args:
        environ: The environment that workers start from; what a worker is given comes on top.
        module: The server's program, which speaks as calibration.training_worker does.

    Raises:
        NodeError: The server cannot be started, for example because there is no torch.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        module: str = "slurm_colloc_lab.calibration.training_worker",
    ) -> None:
        paths = (*map(str, _ROOTS), *filter(None, environ.get("PYTHONPATH", "").split(":")))
        try:
            self._child: Child = start_program(
                [sys.executable, "-B", "-m", module],
                {**environ, "PYTHONPATH": ":".join(paths)},
                stdin=PIPE,
                stdout=PIPE,
                stderr=_STDERR,
                own_session=True,
                directory=None,
            )
        except OSError as error:
            raise NodeError(f"the server of trainings cannot be started: {error}") from error
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests = self._child.stdin.fileno()
        self._events = self._child.stdout.fileno()
        self._partial = b""
        self._is_serving = False
        self.workers: dict[int, Worker] = {}
        """All that were ever started, by number."""
        self.is_alive = True
        """The server answers."""

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._child.pid

    def wait_until_serving(self, timeout_s: float = _SERVING_S) -> None:
        """Wait until torch is loaded.

        Raises:
            NodeError: It is not, or not in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_serving and self.is_alive and time.monotonic() < deadline:
            self._hear(deadline - time.monotonic())
        if not self._is_serving:
            status = collect(self._child, 1.0)
            words = "does not answer" if status is None else f"ended with exit status {status}"
            raise NodeError(f"the server of trainings {words}", hint="it needs torch")

    def start(
        self,
        workload: str,
        *,
        device: str,
        scale: str,
        environment: Mapping[str, str],
        cores: Iterable[int],
        limit: int | None = None,
    ) -> Worker:
        """Have a worker forked; it says `built` once its training is there."""
        worker = Worker(len(self.workers), workload, limit)
        self.workers[worker.number] = worker
        self._send(
            worker,
            "start",
            workload=workload,
            device=device,
            scale=scale,
            environment=dict(environment),
            cores=list(cores),
        )
        return worker

    def warm_up(self, worker: Worker, seconds: float, steps: int) -> None:
        """Have a worker step for so long and so often; it says `ready`."""
        self._send(worker, "warm", seconds=seconds, steps=steps)

    def run(
        self, worker: Worker, *, begin: float, mark: float, end: float, cores: Iterable[int]
    ) -> None:
        """Have a worker run, in monotonic seconds; it says `ran`."""
        if worker.state != "gone":
            worker.state = "running"
        self._send(worker, "run", begin=begin, mark=mark, end=end, cores=list(cores))

    def wait(
        self,
        workers: Collection[Worker],
        states: Collection[str],
        timeout_s: float,
        *,
        on_event: Callable[[Worker], None] | None = None,
    ) -> list[Worker]:
        """Wait until workers are in one of some states, or gone.

        Args:
            workers: Whom to wait for; may grow meanwhile.
            states: What to wait for.
            timeout_s: How long at most.
            on_event: Is told whose state has changed.

        Returns:
            Those that are still in another state, which the caller had better kill.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            late = [each for each in workers if each.state not in (*states, "gone")]
            left_s = deadline - time.monotonic()
            if not late or left_s <= 0:
                return late
            for worker in self._hear(left_s):
                if on_event is not None:
                    on_event(worker)

    def kill(self, workers: Iterable[Worker], problem: str) -> None:
        """End workers that have not done what they should."""
        for worker in workers:
            worker.problem = worker.problem or problem
            self._send(worker, "kill")

    def end(self, workers: Collection[Worker], timeout_s: float = _END_S) -> None:
        """Let workers end, and kill those that do not."""
        for worker in workers:
            self._send(worker, "end")
        late = self.wait(workers, (), timeout_s)
        self.kill(late, "it did not end")
        self.wait(late, (), timeout_s)

    def close(self) -> None:
        """End the server, and with it all workers."""
        child = self._child
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if collect(child, _END_S) is None:
            # Its workers die with it.
            child.kill()
            collect(child, _END_S)
        self._lose()

    def _send(self, worker: Worker, action: str, **values: Any) -> None:
        if worker.state == "gone" or not self.is_alive:
            return
        line = json.dumps({"do": action, "id": worker.number, **values}).encode() + b"\n"
        try:
            os.write(self._requests, line)
        except OSError:
            self._lose()

    def _hear(self, timeout_s: float) -> list[Worker]:
        """What has been said within a time; whose state it has changed."""
        if not self.is_alive:
            return []
        readable, _, _ = select.select([self._events], [], [], max(0.0, timeout_s))
        if not readable:
            return []
        data = os.read(self._events, _READ_BYTES)
        if not data:
            self._lose()
            return []
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [worker for line in lines if (worker := self._note(json.loads(line))) is not None]

    def _note(self, event: dict[str, Any]) -> Worker | None:
        kind = event["event"]
        if kind == "serving":
            self._is_serving = True
            return None
        worker = self.workers[int(event["id"])]
        if kind == "forked":
            worker.pid = int(event["pid"])
        elif kind == "error":
            worker.problem = worker.problem or str(event["text"])
        elif kind == "gone":
            worker.state = "gone"
            if event["status"] and not worker.problem:
                worker.problem = f"it ended with status {event['status']}"
        else:
            worker.state, worker.answer = kind, event
            if kind == "ready":
                worker.gpu_memory_mb = event["gpu_memory_mb"]
        return worker

    def _lose(self) -> None:
        self.is_alive = False
        for worker in self.workers.values():
            if worker.state != "gone":
                worker.state = "gone"
                worker.problem = worker.problem or "the server of trainings has ended"
