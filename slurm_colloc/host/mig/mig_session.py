"""A session with NVML about the MIG of a job's GPUs: a child process, a limit on every answer.

The child (nvml.mig_child) holds the GPUs' locks. Hooks of other jobs, and a call that is still in
the driver after its hook was killed, are waited for when it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
import time
from collections.abc import Mapping

from slurm_colloc.host.mig.plan_cut import MigGpu, MigProblem, parse_mig_gpu
from slurm_colloc.host.nvml.nvml_query import build_nvml_environment
from slurm_colloc.host.system.child_programs import PIPE, Child, collect, start_program
from slurm_colloc.host.system.signals import end_child
from slurm_colloc.model.mig_profiles import Placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

CALL_S = 6.0
"""How long one call may take; destroying an instance takes about a second. After a call that gave
no answer it is twice as long: a driver that is slow answers in the end, one that hangs does not."""

START_S = 10.0
"""How long the first answer may take: before it other hooks are waited for, and NVML loads."""

_STARTS_MAX = 4

_LONGEST_ANSWER = 1 << 20


class MigSession:
    """NVML's calls for MIG, each with a time limit.

    After a call that gave no answer the next one is made by a new process, while there is time.

    Args:
        lock: Path of root's lock file; empty for a session that only reads.
        gpus: The GPUs that it is about, with their minor numbers.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
        ends_at: When the last answer has to be there, on the monotonic clock.

    Raises:
        MigProblem: It cannot be started.
    """

    def __init__(
        self,
        lock: str,
        gpus: Mapping[str, int],
        *,
        driver: str = "",
        node: str = "",
        ends_at: float,
    ) -> None:
        self._command = [
            *(sys.executable, "-IB", "-m", "slurm_colloc.host.nvml.mig_child", lock),
            *(f"{uuid}={minor}" for uuid, minor in gpus.items()),
        ]
        self._environ = build_nvml_environment(driver, node)
        self._ends_at = ends_at
        self._problem = ""
        self._starts = 0
        self._call_s = CALL_S
        self._child: Child | None = None
        self.took_s = 0.0
        """How long the last answer took."""
        self._start()

    def _start(self) -> Child:
        self._rest = b""
        self._has_answered = False
        self._starts += 1
        try:
            self._child = start_program(self._command, self._environ, stdin=PIPE, stdout=PIPE)
        except OSError as error:
            raise MigProblem(f"NVML cannot be asked: {error.strerror}") from error
        return self._child

    def close(self) -> None:
        """End the child; NVML is closed with it."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            if child.stdin is not None:
                child.stdin.close()
        if collect(child, 0.5) is None:
            end_child(child.pid)
            # One that is stuck in the kernel is left to the kernel; it keeps the GPUs' locks.
            collect(child, 0.5)
        if child.stdout is not None:
            child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- NVML's calls -----------------------------------------------------------------------------

    def read(self) -> tuple[MigGpu, ...]:
        """Read the GPUs that it is about."""
        try:
            return tuple(map(parse_mig_gpu, self._ask("read")))
        except (KeyError, TypeError, ValueError) as error:
            raise MigProblem(f"the process that asks NVML about MIG failed: {error}") from error

    def set_mode(self, gpu: str, on: bool) -> None:
        """Turn MIG on or off; whether it took has to be read."""
        self._ask("set_mode", gpu, on)

    def create(self, gpu: str, profile_id: int, placement: Placement) -> int:
        """Make a GPU instance; its id."""
        return int(self._ask("create", gpu, profile_id, placement.start, placement.size))

    def create_compute(self, gpu: str, instance: int, slices: int) -> None:
        """Make a compute instance in it."""
        self._ask("create_compute", gpu, instance, slices)

    def destroy_compute(self, gpu: str, instance: int, compute: int) -> None:
        """Destroy a compute instance."""
        self._ask("destroy_compute", gpu, instance, compute)

    def destroy(self, gpu: str, instance: int) -> None:
        """Destroy a GPU instance."""
        self._ask("destroy", gpu, instance)

    # -- the child --------------------------------------------------------------------------------

    def _ask(self, *request: Any) -> Any:
        left_s = self._ends_at - time.monotonic()
        if self._problem and (left_s <= 0 or self._starts >= _STARTS_MAX):
            raise MigProblem(self._problem)
        child = self._child or self._start()
        usual_s = self._call_s if self._has_answered else max(START_S, self._call_s)
        patience_s = max(0.0, min(usual_s, left_s))
        asked_at = time.monotonic()
        try:
            assert child.stdin is not None
            os.write(child.stdin.fileno(), json.dumps(request).encode() + b"\n")
            line = self._read_line(child, time.monotonic() + patience_s)
        except BrokenPipeError:
            line = self._read_line(child, time.monotonic() + 0.5)
        if not line:
            self._give_up(child)
            self._call_s *= 2
            told = f"NVML gave no answer to {request[0]} within {patience_s:.1f} s"
            self._problem = self._problem or told
            raise MigProblem(told)
        self._has_answered = True
        self.took_s = time.monotonic() - asked_at
        try:
            answer = json.loads(line)
            if "error" in answer:
                raise MigProblem(f"NVML: {answer['error']}", int(answer["code"]))
            return answer["value"]
        except (ValueError, KeyError, TypeError) as error:
            raise MigProblem(f"the process that asks NVML about MIG failed: {error}") from error

    def _read_line(self, child: Child, deadline: float) -> bytes:
        """One line; empty where none comes in time."""
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest and len(self._rest) < _LONGEST_ANSWER:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    return b""
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    return b""
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _give_up(self, child: Child) -> None:
        end_child(child.pid)
        self.close()
