"""Where a calibration is measured: which GPU, on which cores, and whether that can be."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.host.nvml.nvml_query import EXCLUSIVE_PROCESS, Gpu, NvmlAnswer, choose_job_gpus
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.store.calibrations import calibration_path
from slurm_colloc.store.foreign_files import tell_kind
from slurm_colloc_lab.calibration.cells import MPS, TIMESLICE
from slurm_colloc_lab.calibration.workloads import WORKLOADS, Room, WorkloadNeed, choose_names

CPU = "cpu"
"""Named instead of a GPU to try the measuring itself; the result is no calibration."""

EXTRA = "in a checkout of csub, pip install './lab[calibrate]'"
FEWEST_CORES = 4
_DEFAULT_MODES = ("DEFAULT", None)


@dataclass(frozen=True)
class CalibrationPlace:
    """Where a calibration is measured.

    Attributes:
        gpu: The GPU; None for the CPU.
        cores: Where trainings may run.
        driver: The NVIDIA driver's version; empty where unknown.
        modes: Sharing modes that can be measured.
        notes: What is worth knowing, a sentence each.
    """

    gpu: Gpu | None
    cores: tuple[int, ...]
    driver: str
    modes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def gpu_model(self) -> str:
        """What rows call it."""
        return CPU if self.gpu is None else self.gpu.name or ""

    @property
    def room(self) -> Room:
        """What there is for trainings."""
        memory_mb = self.gpu.gpu_memory_total_mb if self.gpu is not None else None
        return Room(len(self.cores), memory_mb, self.modes)


def check_packages(*names: str) -> None:
    """See whether packages of the extra are there, without loading them.

    Raises:
        NodeError: One is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise NodeError(f"csub calibrate needs {name}, which is not installed", hint=EXTRA)


def choose_place(
    answer: NvmlAnswer,
    wanted: str,
    environ: Mapping[str, str],
    cores: Sequence[int],
    *,
    shared: bool = False,
) -> CalibrationPlace:
    """Choose the GPU and say whether it can be measured; pure.

    Args:
        answer: What NVML says of this machine.
        wanted: UUID or its beginning, or NVML's index; empty for the one that the job has.
        environ: The environment: what CUDA_VISIBLE_DEVICES leaves out is not measured.
        cores: The cores that this process may use.
        shared: Measure although another process uses the GPU.

    Raises:
        NodeError: There is no GPU, or it cannot be measured.
        UsageProblem: There are several, and none was named; or too few cores.
    """
    if wanted == CPU:
        return CalibrationPlace(None, tuple(cores), "", (TIMESLICE,))
    if len(cores) < FEWEST_CORES:
        raise UsageProblem(
            f"{len(cores)} cores are too few: trainings would wait for cores, not for the GPU; "
            f"at least {FEWEST_CORES} are needed",
            hint="srun --gres=gpu:1 --cpus-per-task=16 csub calibrate",
        )
    gpu = _choose_gpu(answer, wanted, environ)
    if gpu.mig_enabled:
        raise NodeError(f"{gpu.uuid} is divided by MIG, and can only be measured whole")
    if gpu.processes and not shared:
        pids = ", ".join(str(process.pid) for process in gpu.processes[:5])
        raise NodeError(
            f"{gpu.uuid} is in use by somebody else (pid {pids}), whose work would be measured too",
            hint="wait, name another with --gpu, or use --shared",
        )
    notes = []
    modes: tuple[str, ...] = (MPS, TIMESLICE)
    if gpu.compute_mode == EXCLUSIVE_PROCESS:
        modes = (MPS,)
        notes.append("the GPU takes only one process at a time, so time slicing is not measured")
    elif gpu.compute_mode not in _DEFAULT_MODES:
        raise NodeError(f"{gpu.uuid} is in compute mode {gpu.compute_mode}: nothing can use it")
    if gpu.processes is None:
        notes.append("NVML does not tell whether somebody else uses the GPU")
    elif gpu.processes:
        notes.append("somebody else uses the GPU: the figures are of both")
    place = CalibrationPlace(gpu, tuple(cores), answer.driver_version or "", modes, tuple(notes))
    missing = [name for name in list_needs() if name not in choose_names(list_needs(), place.room)]
    if missing:
        note = f"left out, the GPU or the host has too little room: {', '.join(missing)}"
        place = CalibrationPlace(gpu, place.cores, place.driver, modes, (*notes, note))
    return place


def _choose_gpu(answer: NvmlAnswer, wanted: str, environ: Mapping[str, str]) -> Gpu:
    if answer.problem:
        raise NodeError(f"there is no GPU to measure: {answer.problem}")
    job = choose_job_gpus(answer, environ)
    limits = any(environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS"))
    if limits and not job.uuids:
        raise NodeError(f"it is not known which GPU is the job's: {job.reason}")
    own = [gpu for gpu in answer.gpus if gpu.uuid and (not limits or gpu.uuid in job.uuids)]
    if wanted:
        own = [
            gpu
            for gpu in own
            if str(gpu.nvml_index) == wanted
            or (wanted.startswith("GPU-") and str(gpu.uuid).startswith(wanted))
        ]
        if len(own) != 1:
            what = "is not one of the job's" if limits else "is not one of this machine's"
            raise NodeError(f"--gpu={wanted} {what}, by NVML")
    if not own:
        raise NodeError("there is no GPU to measure: NVML shows none")
    if len(own) > 1:
        shown = ", ".join(f"{gpu.nvml_index} ({gpu.name})" for gpu in own)
        raise UsageProblem(f"there are {len(own)} GPUs: {shown}", hint="name one with --gpu")
    return own[0]


def list_needs() -> dict[str, WorkloadNeed]:
    """What each workload of the catalogue takes."""
    return {
        each.name: WorkloadNeed(each.cpus, each.gpu_memory_mb, each.light) for each in WORKLOADS
    }


def list_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


FOR_ALL = 0o755
"""A site's folder: all users read it."""


def check_target(out: Path) -> None:
    """See that a file can be written; nothing is made, for what comes next may be refused.

    Args:
        out: The file, or a folder that exists and gets a file.

    Raises:
        UsageProblem: It cannot be written.
    """
    shown = escape_controls(str(out))
    try:
        if out.is_dir():
            folder = out
        elif out.exists() and not out.is_file():
            kind = tell_kind(out.stat().st_mode)
            raise UsageProblem(f"cannot write {shown}: it is {kind}, no file")
        else:
            folder = out.parent
        # Where it is missing, the nearest one that is there gets it.
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageProblem(f"cannot write {shown}: {os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise UsageProblem(f"cannot write {shown}: {error}") from error


def make_folder(file: Path) -> None:
    """Make the folder of a file, which all users read, where it is missing.

    Raises:
        UsageProblem: It cannot be made.
    """
    try:
        file.parent.mkdir(FOR_ALL, parents=True, exist_ok=True)
    except OSError as error:
        shown = escape_controls(str(file))
        raise UsageProblem(f"cannot write {shown}: {os.strerror(error.errno or 0)}") from error


def choose_file(out: Path, gpu_model: str) -> Path:
    """The file to write: in a folder the one that csub looks for there."""
    return calibration_path(out, gpu_model) if out.is_dir() else out
