"""What `csub doctor` finds out on a node: written there, read on the login side.

Both sides may be of different versions: what a reader does not know it leaves out, what was not
written is None.
"""

from __future__ import annotations

from slurm_colloc.model.late_definitions import dataclass


@dataclass(frozen=True)
class StepTrial:
    """Whether a job step starts next to the batch script.

    Attributes:
        problem: Why not, in srun's words; empty where it does.
        elapsed_ms: How long it took; None where it did not start.
    """

    problem: str = ""
    elapsed_ms: float | None = None


@dataclass(frozen=True)
class TmpdirLook:
    """The directory for temporary files.

    Attributes:
        path: TMPDIR, or what stands in for it.
        problem: Why nothing can be written there; empty where it can.
        free_mb: Free space in MiB; None where unknown.
    """

    path: str = ""
    problem: str = ""
    free_mb: int | None = None


@dataclass(frozen=True)
class GpuLook:
    """One GPU of the job; what NVML does not say is None.

    Attributes:
        uuid: Its UUID.
        name: Its model.
        gpu_memory_total_mb: All of its memory in MiB.
        compute_mode: DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED or EXCLUSIVE_THREAD.
        mig_enabled: It is divided by MIG.
        processes: How many processes were on it before the job started any.
        index: nvidia-smi's on the node.
    """

    uuid: str | None = None
    name: str | None = None
    gpu_memory_total_mb: int | None = None
    compute_mode: str | None = None
    mig_enabled: bool | None = None
    processes: int | None = None
    index: int | None = None


@dataclass(frozen=True)
class NvmlLook:
    """What NVML says.

    Attributes:
        problem: Why it says nothing, or why the job's GPUs cannot be told; empty otherwise.
        driver_version: Such as 580.159.04.
        cuda_version: The newest CUDA of the driver.
        shown: How many GPUs it shows to the job; None where it does not answer.
        gpus: The job's.
        doubts: What it says that cannot be true.
        lacks_bindings: The problem is that its Python has no nvidia-ml-py.
    """

    problem: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    shown: int | None = None
    gpus: tuple[GpuLook, ...] = ()
    doubts: tuple[str, ...] = ()
    lacks_bindings: bool = False


@dataclass(frozen=True)
class MpsTrial:
    """Whether an MPS daemon works.

    Attributes:
        problem: Why not; empty where it does.
        control: NVIDIA's control program; empty where it was not found.
        by: What started the daemon: `runner` (this trial) or `prolog`.
        control_ms: From its start to its first answer; None where it was not reached.
        active_ms: From the request for a server to one that takes clients; None likewise.
        left: What its end has left on the node, with reasons.
        notes: What is not as it should be, and does no harm.
    """

    problem: str = ""
    control: str = ""
    by: str = "runner"
    control_ms: float | None = None
    active_ms: float | None = None
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class HooksLook:
    """What root's hooks did for the job.

    Attributes:
        is_installed: The node has hooks, as far as a user can see.
        is_prepared: The prolog has started an MPS daemon that the job can use.
        problem: Why not; empty where it has, or did nothing at all.
        mig: Whether jobs may divide their GPUs, in the policy's word; empty where no user can
            read it.
    """

    is_installed: bool = False
    is_prepared: bool = False
    problem: str = ""
    mig: str = ""


@dataclass(frozen=True)
class Examination:
    """A node, seen from inside a job.

    Attributes:
        node: Its name.
        version: The version of slurm_colloc there.
        python: The version of the Python that runs it.
        slurm_gpus: The GPUs that Slurm gave, by its own numbers.
        steps: Job steps.
        tmpdir: Temporary files.
        nvml: The GPU; None where none was asked for.
        mps: MPS on it; None where none was asked for.
        hooks: Root's hooks; None where no GPU was asked for.
        no_places: Why a member gets no /tmp of its own; empty where it may, None where not told.
    """

    node: str
    version: str
    python: str
    slurm_gpus: tuple[str, ...] = ()
    steps: StepTrial | None = None
    tmpdir: TmpdirLook | None = None
    nvml: NvmlLook | None = None
    mps: MpsTrial | None = None
    hooks: HooksLook | None = None
    no_places: str | None = None
