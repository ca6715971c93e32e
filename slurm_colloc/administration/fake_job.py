"""A job that does not exist, as slurmd would describe it to a hook; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.host.nvml.nvml_answer import Gpu, NvmlAnswer

COMMENT = "csub admin verify [csub/1 mps]"
FIRST_JOB_ID = 4_000_000_000
"""Slurm's own ids end at 67,108,863 (slurm.conf(5), MaxJobId), so no real job is hit."""


@dataclass(frozen=True)
class FakeJob:
    """What the hooks are told.

    Args:
        job_id: Its number.
        uid: Whose it would be.
        gid: That user's group.
        user: The user's name.
        gpu: The GPU it would have.
        partition: Its partition.
        account: Its account.
        node: Slurm's name of this node.
    """

    job_id: str
    uid: int
    gid: int
    user: str
    gpu: Gpu
    partition: str
    account: str
    node: str


def choose_gpu(answer: NvmlAnswer, wanted: int | None, held: Collection[str]) -> Gpu:
    """Find a GPU that no process uses.

    Args:
        answer: What NVML says.
        wanted: N of /dev/nvidiaN; None for the first that is idle.
        held: UUIDs of GPUs that jobs have prepared.

    Raises:
        NodeError: There is none, or it cannot be told.
        UsageProblem: The one that is wanted is not there.
    """
    if answer.problem:
        raise NodeError(answer.problem, hint="without NVML the hooks prepare nothing")
    gpus = [gpu for gpu in answer.gpus if wanted is None or gpu.minor_number == wanted]
    if not gpus:
        raise UsageProblem(
            f"there is no GPU {wanted} here" if wanted is not None else "there is no GPU here",
            hint="--gpu takes N of /dev/nvidiaN",
        )
    reasons = []
    for gpu in gpus:
        reason = _find_use(gpu, held)
        if not reason:
            return gpu
        reasons.append(f"/dev/nvidia{gpu.minor_number}: {reason}")
    raise NodeError(
        f"no GPU is idle ({'; '.join(reasons)})", hint="drain the node, or name one with --gpu"
    )


def _find_use(gpu: Gpu, held: Collection[str]) -> str:
    """Why a GPU cannot be tried on; empty where it can."""
    if gpu.uuid is None or gpu.minor_number is None:
        return "NVML does not say which it is"
    if gpu.uuid in held:
        return "prepared for a job"
    if gpu.processes is None:
        return "NVML does not say who uses it"
    return f"used by process {gpu.processes[0].pid}" if gpu.processes else ""


def build_hook_environment(job: FakeJob, comment: str = COMMENT) -> dict[str, str]:
    """The variables of a prolog, without PATH, as slurmd gives them."""
    index = str(job.gpu.minor_number)
    return {
        "SLURM_JOB_ID": job.job_id,
        "SLURM_JOBID": job.job_id,
        "SLURM_JOB_UID": str(job.uid),
        "SLURM_JOB_GID": str(job.gid),
        "SLURM_JOB_USER": job.user,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_ACCOUNT": job.account,
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_GPUS": index,
        "CUDA_VISIBLE_DEVICES": index,
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURMD_NODENAME": job.node,
        "SLURM_CLUSTER_NAME": "csub-admin-verify",
    }


def describe_gpu(gpu: Gpu | None) -> dict[str, object]:
    """What of a GPU's state a job must leave as it was."""
    if gpu is None:
        return {}
    return {
        "uuid": gpu.uuid,
        "compute_mode": gpu.compute_mode,
        "mig_enabled": gpu.mig_enabled,
        "processes": None if gpu.processes is None else sorted(p.pid for p in gpu.processes),
        "gpu_memory_used_mb": gpu.gpu_memory_used_mb,
    }


def find_differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """What a job has changed; memory in use is the driver's own and moves by itself."""
    return [
        f"{name} was {before[name]}, is {after.get(name)}"
        for name in before
        if name != "gpu_memory_used_mb" and after.get(name) != before[name]
    ]
