"""What NVML says of this node's GPUs, asked in a child process: a hung driver hangs nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.host.nvml.nvml_answer import UUID, Gpu, GpuProcess, NvmlAnswer, parse_answer
from slurm_colloc.host.system.child_programs import (
    PIPE,
    Child,
    collect,
    finish_program,
    start_program,
)
from slurm_colloc.host.system.signals import end_child

__all__ = [
    "Gpu",
    "GpuProcess",
    "JobGpus",
    "NvmlAnswer",
    "NvmlQuestion",
    "choose_job_gpus",
    "probe_gpus",
]

_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_child.py")


class NvmlQuestion:
    """A child process that gets NVML ready while the caller does something else.

    Args:
        python: The interpreter.
        environ: Its environment; the caller's where None.
        module_path: Where the bindings are looked for first.
        compute_modes: As root: compute modes to set, by UUID; the answer has what holds then.
    """

    def __init__(
        self,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        module_path: Sequence[str] = (),
        compute_modes: Mapping[str, str] | None = None,
    ) -> None:
        self._child: Child | None = None
        self._problem = ""
        changes = [f"--compute-mode={uuid}={mode}" for uuid, mode in (compute_modes or {}).items()]
        try:
            self._child = start_program(
                [python, "-IB", _CHILD, "--on-request", *changes, *module_path],
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


@dataclass(frozen=True)
class JobGpus:
    """Which GPUs are a job's.

    Args:
        uuids: Theirs; empty where that is unknown.
        reason: How that is known, or why not.
    """

    uuids: tuple[str, ...]
    reason: str


def choose_job_gpus(answer: NvmlAnswer, environ: Mapping[str, str]) -> JobGpus:
    """Find out which of the GPUs that NVML shows are the job's; pure.

    Args:
        answer: What NVML says.
        environ: The batch script's environment, as Slurm made it.
    """
    found = _find_job_gpus(answer, environ)
    # What is wrong with another job's GPU says nothing against this one's.
    doubts = [gpu.doubt for gpu in answer.gpus if gpu.uuid in found.uuids and gpu.doubt]
    return JobGpus((), f"NVML cannot be believed: {'; '.join(doubts)}") if doubts else found


def _find_job_gpus(answer: NvmlAnswer, environ: Mapping[str, str]) -> JobGpus:
    visible = _split(environ.get("CUDA_VISIBLE_DEVICES", ""))
    if visible and all(word.startswith(("GPU-", "MIG-")) for word in visible):
        return _complete_uuids(answer, visible)
    if answer.problem:
        return JobGpus((), answer.problem)
    name = next((n for n in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS") if environ.get(n)), "")
    indices = _split(environ.get(name, ""))
    shown = tuple(gpu.uuid for gpu in answer.gpus if gpu.uuid is not None)
    count = len(indices or visible)
    # One that is lost may be the job's: then the others are not.
    if count and len(shown) == len(answer.gpus) == count:
        return JobGpus(shown, f"NVML shows exactly the {count} that the job has")
    if indices:
        return _choose_by_minor(answer, name, indices)
    if visible:
        return _choose_by_order(answer, visible)
    if len(shown) == len(answer.gpus) == 1 and "CUDA_VISIBLE_DEVICES" not in environ:
        return JobGpus(shown, "the only GPU that NVML shows")
    return JobGpus((), "neither Slurm nor CUDA_VISIBLE_DEVICES says which GPUs are the job's")


def _choose_by_minor(answer: NvmlAnswer, name: str, indices: Sequence[str]) -> JobGpus:
    """Slurm numbers GPUs as their device files are numbered, where gres.conf names those."""
    by_minor = {str(gpu.minor_number): gpu.uuid for gpu in answer.gpus}
    found = [by_minor.get(index) for index in indices]
    if None in found:
        return JobGpus(
            (),
            f"NVML shows {len(answer.gpus)} GPUs, the job has {len(indices)}, and not all of "
            f"{name}={','.join(indices)} are minor numbers of theirs",
        )
    return JobGpus(tuple(str(uuid) for uuid in found), f"by the minor numbers in {name}")


def _choose_by_order(answer: NvmlAnswer, visible: Sequence[str]) -> JobGpus:
    """Without Slurm a number is CUDA's, which counts like NVML where all GPUs are of one model."""
    models = {gpu.name for gpu in answer.gpus}
    by_index = {str(gpu.nvml_index): gpu.uuid for gpu in answer.gpus}
    found = [by_index.get(word) for word in visible]
    if len(models) != 1 or None in models or None in found:
        return JobGpus((), f"CUDA_VISIBLE_DEVICES={','.join(visible)} does not say which GPU it is")
    return JobGpus(
        tuple(str(uuid) for uuid in found),
        "by the numbers in CUDA_VISIBLE_DEVICES, all GPUs being of one model",
    )


def _complete_uuids(answer: NvmlAnswer, visible: Sequence[str]) -> JobGpus:
    """CUDA takes the beginning of a UUID where it is unique; MPS's limits need all of it."""
    known = [gpu.uuid for gpu in answer.gpus if gpu.uuid is not None]
    complete = []
    for word in visible:
        fits = [uuid for uuid in known if uuid.startswith(word)]
        if len(fits) == 1:
            complete.append(fits[0])
        elif UUID.fullmatch(word):
            complete.append(word)
        else:
            return JobGpus((), f"CUDA_VISIBLE_DEVICES has {word}, which is no GPU's UUID")
    return JobGpus(tuple(dict.fromkeys(complete)), "CUDA_VISIBLE_DEVICES has UUIDs")


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
