"""Finding out, while members run: which GPUs are there, whether MPS can be used, what uses them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from slurm_colloc.errors import CollocError
from slurm_colloc.host.mps.mps_control import MpsPrograms, Support, find_programs, judge_support
from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer, choose_job_gpus, probe_gpus
from slurm_colloc.model.late_definitions import dataclass

_T = TypeVar("_T")


@dataclass(frozen=True)
class GpuFinding:
    """What is there.

    Attributes:
        uuids: The pack's GPUs; empty where they could not be told.
        gpu: The first of them; None where it could not be read.
        problem: Why MPS cannot be used; empty where it can.
        client_cap: How many MPS clients the GPU takes; None where unknown.
        notes: Doubts, a sentence each.
        sees_no_others: The job sees no GPUs but these, by the cgroup or because there are none.
    """

    uuids: tuple[str, ...]
    gpu: Gpu | None
    problem: str
    client_cap: int | None
    notes: tuple[str, ...]
    sees_no_others: bool = False


def find_gpus(environ: Mapping[str, str], nvml_timeout_s: float) -> GpuFinding:
    """Look for the MPS programs, ask NVML, and judge.

    Args:
        environ: The batch script's environment.
        nvml_timeout_s: How long NVML may take.
    """
    try:
        programs = find_programs(environ.get("PATH", ""))
    except CollocError as problem:
        # Without the programs there is nothing to prepare, and NVML need not be asked.
        return GpuFinding((), None, str(problem), None, ())
    return judge_finding(programs, probe_gpus(nvml_timeout_s), environ)


def judge_finding(
    programs: MpsPrograms, answer: NvmlAnswer, environ: Mapping[str, str]
) -> GpuFinding:
    """Judge what NVML says; pure."""
    chosen = choose_job_gpus(answer, environ)
    doubts = tuple(answer.doubts)
    if not chosen.uuids:
        problem = answer.problem or chosen.reason
        return GpuFinding((), None, f"the pack's GPU is not known: {problem}", None, doubts)
    gpu = next((gpu for gpu in answer.gpus if gpu.uuid == chosen.uuids[0]), None)
    support: Support = judge_support(programs, answer, chosen.uuids)
    return GpuFinding(
        chosen.uuids,
        gpu,
        "" if support.is_possible else support.reason,
        support.client_cap,
        (*doubts, *support.notes),
        {each.uuid for each in answer.gpus} == set(chosen.uuids),
    )


def list_outside(answer: NvmlAnswer, uuids: Sequence[str]) -> tuple[int, ...]:
    """Processes on some GPUs that are no MPS clients, its server among them; pure.

    None where NVML cannot tell: a client must not be taken for one that goes without.

    Args:
        answer: What NVML says.
        uuids: The GPUs.
    """
    found = []
    for gpu in answer.gpus:
        if gpu.uuid in uuids and gpu.processes is not None and gpu.mps_processes is not None:
            found += [process.pid for process in gpu.processes if process.type == "C"]
    return tuple(found)


class BackgroundCall(Generic[_T]):
    """Runs something slow in a thread: the runner stays able to answer signals.

    Args:
        run: What is to be done.
        failed: Makes the answer where that fails.
    """

    def __init__(self, run: Callable[[], _T], failed: Callable[[Exception], _T]) -> None:
        self._run_it = run
        self._failed = failed
        self._answer: list[_T] = []
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            threading.Thread(target=self._run, name="gpus", daemon=True).start()
        except RuntimeError as problem:
            # A limit on threads.
            self._settle(failed(problem))

    def fileno(self) -> int:
        """Readable once the answer is there."""
        return self._read_end

    def poll(self) -> _T | None:
        """The answer, None while it is not there."""
        return self._answer[0] if self._answer else None

    def close(self) -> None:
        """Forget it."""
        os.close(self._read_end)

    def _run(self) -> None:
        try:
            answer = self._run_it()
        except Exception as problem:  # noqa: BLE001 - without an answer no member would ever start
            answer = self._failed(problem)
        self._settle(answer)

    def _settle(self, answer: _T) -> None:
        self._answer.append(answer)
        os.close(self._write_end)


def search_gpus(environ: Mapping[str, str], nvml_timeout_s: float) -> BackgroundCall[GpuFinding]:
    """Begin `find_gpus`."""
    return BackgroundCall(
        lambda: find_gpus(environ, nvml_timeout_s),
        lambda problem: GpuFinding(
            (), None, f"the GPU cannot be looked at: {_describe(problem)}", None, ()
        ),
    )


def search_outside(uuids: Sequence[str], nvml_timeout_s: float) -> BackgroundCall[tuple[int, ...]]:
    """Begin to ask NVML what uses some GPUs without MPS; none where it does not answer."""
    return BackgroundCall(lambda: list_outside(probe_gpus(nvml_timeout_s), uuids), lambda _: ())


def _describe(problem: Exception) -> str:
    """What went wrong; of what was not foreseen the class says more than its text."""
    return str(problem) if isinstance(problem, CollocError | OSError) else repr(problem)
