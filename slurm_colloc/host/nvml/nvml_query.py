"""Asks NVML in a child process: a driver that hangs does not hang the caller.

Who: root's hooks, the runner, the doctor. The child is `nvml_child.py` of this package, with the
caller's interpreter and rights; no process of a user's is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer, parse_answer
from slurm_colloc.host.system.child_programs import (
    PIPE,
    Child,
    collect,
    finish_program,
    start_program,
)
from slurm_colloc.host.system.signals import end_child

NVML_S = 4.0
"""How long a hook waits for NVML."""

_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_child.py")
_CLEAN = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C"}


class NvmlQuestion:
    """A child process that gets NVML ready while the caller does something else.

    Args:
        python: The interpreter.
        environ: Its environment; the caller's where None.
        module_path: Where the bindings are looked for first.
        uuids: The GPUs that are asked about, by UUID. A driver in trouble is asked only for UUID
            and minor number of the others.
        minors: The same by N of /dev/nvidiaN. With neither: all GPUs.
        compute_modes: As root: compute modes to set, by UUID; the answer has what holds then.
    """

    def __init__(
        self,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        module_path: Sequence[str] = (),
        *,
        uuids: Collection[str] = (),
        minors: Collection[int] = (),
        compute_modes: Mapping[str, str] | None = None,
    ) -> None:
        self._child: Child | None = None
        self._problem = ""
        words = [
            *(f"--uuid={uuid}" for uuid in uuids),
            *(f"--minor={minor}" for minor in minors),
            *(f"--compute-mode={uuid}={mode}" for uuid, mode in (compute_modes or {}).items()),
        ]
        try:
            self._child = start_program(
                [python, "-IB", _CHILD, "--on-request", *words, *module_path],
                os.environ if environ is None else environ,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
            )
        except OSError as error:
            self._problem = f"{python} cannot be started: {error.strerror}"

    def ask(self, timeout_s: float) -> NvmlAnswer:
        """Ask now; one question can be asked once.

        Args:
            timeout_s: How long it may take. A child that hangs is killed, and left alone where
                even that does not end it.
        """
        if self._child is None:
            return NvmlAnswer(problem=self._problem)
        outcome = finish_program(self._child, text="all\n", timeout_s=timeout_s)
        self._child = None
        if outcome.problem:
            return NvmlAnswer(problem=f"NVML gave {outcome.problem}")
        try:
            return parse_answer(json.loads(outcome.stdout.splitlines()[-1]))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):
            words = (outcome.stderr.strip().splitlines() or [f"exit {outcome.returncode}"])[-1]
            return NvmlAnswer(problem=f"the process that asks NVML failed: {words}")

    def close(self) -> None:
        """Give the question up."""
        child, self._child = self._child, None
        if child is not None:
            end_child(child.pid)
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            collect(child, 0.5)


def probe_gpus(
    timeout_s: float,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    module_path: Sequence[str] = (),
) -> NvmlAnswer:
    """Ask NVML for everything once.

    Args:
        timeout_s: How long it may take.
        python: The interpreter that has nvidia-ml-py.
        environ: Its environment; the caller's where None. As root: a clean one.
        module_path: Where the bindings are looked for first.
    """
    return NvmlQuestion(python, environ, module_path).ask(timeout_s)


def start_question(
    driver: str = "",
    node: str = "",
    *,
    uuids: Collection[str] = (),
    minors: Collection[int] = (),
    compute_modes: Mapping[str, str] | None = None,
) -> NvmlQuestion:
    """Get a question ready as root does: with this interpreter, in a clean environment.

    Args:
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
        uuids: The GPUs that are asked about, by UUID.
        minors: The same by N of /dev/nvidiaN. With neither: all GPUs.
        compute_modes: Compute modes to set first, by UUID.
    """
    return NvmlQuestion(
        environ=build_nvml_environment(driver, node),
        uuids=uuids,
        minors=minors,
        compute_modes=compute_modes,
    )


def build_nvml_environment(driver: str, node: str) -> dict[str, str]:
    """The clean environment in which root asks NVML; pure.

    Args:
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
    """
    environ = dict(_CLEAN)
    if node:
        environ["SLURMD_NODENAME"] = node
    if driver:
        environ["LD_LIBRARY_PATH"] = f"{driver}/lib"
    return environ
