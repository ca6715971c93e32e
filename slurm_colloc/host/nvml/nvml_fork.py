"""NVML asked in a fork of the hook: no second interpreter has to start; who: root.

What it imports is next to nothing, for the prolog forks before it loads the rest of itself:
bindings and hook are then loaded side by side. As in a program of its own, a driver that hangs
hangs nobody else.
"""

# ruff: noqa: SIM105 - contextlib alone takes as long to load as all else that comes before the fork

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, NoReturn

    from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer

_LIMIT_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_LIBRARY = "libnvidia-ml.so.1"
_END_S = 0.5

NVML_S = 4.0
"""How long a hook waits for NVML."""


class ForkedQuestion:
    """One question to NVML; the fork touches no driver before `prepare` or `ask`.

    Args:
        simulation: The directory of a simulated GPU; empty on a real node.
        node: Slurm's name of this node.
        uuids: The GPUs that are asked about, by UUID.
        minors: Or by N of /dev/nvidiaN. With neither: all.
        compute_modes: Compute modes to set first, by UUID; the answer has what holds then.

    Raises:
        OSError: There can be no further process.
    """

    def __init__(
        self,
        simulation: str,
        node: str,
        *,
        uuids: Collection[str] = (),
        minors: Collection[int] = (),
        compute_modes: Mapping[str, str] | None = None,
    ) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            for descriptor in (requests, self._requests, self._answers, answers):
                os.close(descriptor)
            raise
        if self._pid == 0:
            is_wanted = _choose_wanted(uuids, minors)
            _serve(
                requests,
                answers,
                simulation,
                node,
                lambda child: _answer(child, is_wanted, dict(compute_modes or {})),
            )
        os.close(requests)
        os.close(answers)
        self._is_prepared = self._is_requested = False
        self._has_answered = self._is_collected = False

    def prepare(self) -> None:
        """Let NVML be initialised meanwhile."""
        if not self._is_prepared:
            self._is_prepared = True
            self._send()

    def request(self) -> None:
        """Let it read the GPUs from now on; `ask` takes the answer."""
        self.prepare()
        if not self._is_requested:
            self._is_requested = True
            self._send()

    def ask(self, timeout_s: float) -> NvmlAnswer:
        """Ask now, or take what was requested before; one question can be asked once.

        Args:
            timeout_s: How long it may take. A fork that hangs is killed, and left alone where even
                that does not end it.
        """
        import json

        from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer, parse_answer

        self.request()
        data, is_late = self._read(time.monotonic() + timeout_s)
        self._has_answered = data.endswith(b"\n")
        self._let_go()
        # One that has answered is at its end, which takes the driver a while.
        status = None if self._has_answered else self._collect(kills=is_late, patience_s=_END_S)
        if is_late:
            return NvmlAnswer(problem=f"NVML gave no answer within {timeout_s:g} s")
        try:
            return parse_answer(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError):
            words = "" if status is None else f" with exit status {status}"
            return NvmlAnswer(problem=f"the process that asks NVML failed{words}")

    def close(self) -> None:
        """Give the question up; without waiting for one that has answered."""
        self._let_go()
        self._collect(
            kills=not self._has_answered, patience_s=0.0 if self._has_answered else _END_S
        )

    def _send(self) -> None:
        if self._requests >= 0:
            try:
                os.write(self._requests, b"\n")
            except BrokenPipeError:
                pass

    def _read(self, deadline: float) -> tuple[bytes, bool]:
        """What it says, a line; and whether the time was too short for it."""
        import select

        data = b""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while not data.endswith(b"\n") and len(data) <= _LIMIT_BYTES:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return data, True
            chunk = os.read(self._answers, _READ_BYTES)
            if not chunk:
                break
            data += chunk
        return data, False

    def _let_go(self) -> None:
        if self._requests >= 0:
            os.close(self._requests)
            os.close(self._answers)
            self._requests = self._answers = -1

    def _collect(self, *, kills: bool, patience_s: float) -> int | None:
        """Wait for its end; its exit status, None where it goes on or was collected before."""
        if self._is_collected:
            return None
        if kills:
            from slurm_colloc.host.system.signals import end_child

            end_child(self._pid)
        deadline = time.monotonic() + patience_s
        pause_s = 0.0005
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid or time.monotonic() >= deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.01)
        self._is_collected = pid != 0
        return os.waitstatus_to_exitcode(status) if pid else None


def fork_quietly(simulation: str, node: str, minors: Collection[int] = ()) -> ForkedQuestion | None:
    """The same; None where there can be no further process."""
    try:
        return ForkedQuestion(simulation, node, minors=minors)
    except OSError:
        return None


def ask_nvml(
    simulation: str,
    node: str,
    *,
    uuids: Collection[str] = (),
    minors: Collection[int] = (),
    compute_modes: Mapping[str, str] | None = None,
) -> ForkedQuestion:
    """Get a question to NVML ready, in a clean environment.

    Args:
        simulation: The directory of a simulated GPU; empty on a real node.
        node: Slurm's name of this node.
        uuids: The GPUs that are asked about, by UUID.
        minors: Or by N of /dev/nvidiaN. With neither: all.
        compute_modes: Compute modes to set first, by UUID.

    Raises:
        NodeError: There can be no further process.
    """
    from slurm_colloc.errors import NodeError

    try:
        question = ForkedQuestion(
            simulation, node, uuids=uuids, minors=minors, compute_modes=compute_modes
        )
    except OSError as error:
        raise NodeError(f"NVML cannot be asked ({error.strerror})") from error
    question.prepare()
    return question


def _choose_wanted(
    uuids: Collection[str], minors: Collection[int]
) -> Callable[[str | None, int | None], bool] | None:
    if not (uuids or minors):
        return None
    return lambda uuid, minor: uuid in uuids or minor in minors


def _serve(
    requests: int,
    answers: int,
    simulation: str,
    node: str,
    answer: Callable[[Any], int],
) -> NoReturn:
    """The fork: it has nothing of the hook's but its memory, and never returns."""
    status = 1
    try:
        # No lock of the hook's and no pipe to slurmd may stay open where the driver hangs.
        os.dup2(requests, 0)
        os.dup2(answers, 1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 2)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.close(int(name))
                except OSError:
                    # The listing's own.
                    pass
        # A clean environment for the driver; that of the simulation where there is one.
        os.environ.clear()
        os.environ.update({"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C"})
        from slurm_colloc.host.nvml import nvml_child

        if simulation:
            _load_simulation(simulation, node)
        status = answer(nvml_child)
    finally:
        os._exit(status)


def _load_simulation(simulation: str, node: str) -> None:
    """What LD_LIBRARY_PATH would do at a program's start."""
    import ctypes

    os.environ.update({"SIMGPU_ROOT": simulation, "SLURMD_NODENAME": node})
    try:
        ctypes.CDLL(f"{simulation}/lib/{_LIBRARY}", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        # The simulation has taken it away: then NVML is absent.
        pass


def _answer(
    nvml_child: Any,
    is_wanted: Callable[[str | None, int | None], bool] | None,
    compute_modes: Mapping[str, str],
) -> int:
    nvml, problem = nvml_child.load_bindings()
    if not os.read(0, 1):
        return 0
    if not problem:
        problem = nvml_child.start_nvml(nvml, list(compute_modes.items()))
    if not os.read(0, 1):
        return 0
    import json

    value = {"problem": problem} if problem else nvml_child.read_all(nvml, is_wanted)
    # Not through sys.stdout, which is the hook's and may be anything.
    data = json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]
    return 0
