"""Whether MPS can be used here, and with what limits; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.host.mps.mps_control import MpsPrograms
from slurm_colloc.host.nvml.nvml_answer import Gpu, NvmlAnswer

PRE_VOLTA_CLIENTS = 16
VOLTA_CLIENTS = 48
NEWER_CLIENTS = 60
"""Clients of one GPU: NVIDIA's MPS manual (r615); 48 observed on an H200 with CUDA 13.0, where the
49th gets cudaErrorMpsMaxClientsReached."""

CONTEXT_MB = 600
"""What a CUDA context takes of a gpu_memory limit before the first allocation: 0.5 GiB and a little
on an H200, where a limit of 100 MiB left no room for the context itself."""

_OLDEST = (3, 5)
_VOLTA = (7, 0)


@dataclass(frozen=True)
class Support:
    """Whether MPS can be used.

    Args:
        is_possible: It can.
        reason: Why, or why not.
        client_cap: How many processes can be clients of one GPU; None where MPS cannot be used.
        notes: What could not be read, or is worse than it might be.
    """

    is_possible: bool
    reason: str
    client_cap: int | None = None
    notes: tuple[str, ...] = ()


def judge_support(
    programs: MpsPrograms | None, answer: NvmlAnswer, uuids: Sequence[str]
) -> Support:
    """Say whether MPS can be used on some GPUs.

    What NVML does not say speaks against nothing: the daemon's start is the proof.

    Args:
        programs: NVIDIA's programs; None where they are not there.
        answer: What NVML says.
        uuids: The GPUs.
    """
    if programs is None:
        return Support(False, "nvidia-cuda-mps-control is not installed on this node")
    if not uuids:
        return Support(False, "it is not known which GPUs are the job's")
    if len(set(uuids)) != len(uuids):
        return Support(False, f"a GPU is named twice: {', '.join(uuids)}")
    notes: list[str] = []
    caps = []
    for uuid in uuids:
        if uuid.startswith("MIG-"):
            return Support(False, f"{uuid} is a part of a GPU (MIG)")
        gpu = answer.find(uuid)
        if gpu is None:
            why = answer.problem or "NVML does not show it"
            notes.append(f"{uuid} was not checked: {why}")
            caps.append(VOLTA_CLIENTS)
            continue
        refusal = _find_refusal(gpu)
        if refusal:
            return Support(False, f"{uuid} {refusal}")
        capability = gpu.compute_capability
        if capability is not None and capability < _VOLTA:
            notes.append(
                f"{uuid} is older than Volta: MPS has no limits there, and a fault of one member "
                "ends all"
            )
        caps.append(choose_client_cap(capability, answer.cuda_version))
    return Support(
        True, "NVIDIA's programs are there and the GPU allows it", min(caps), tuple(notes)
    )


def _find_refusal(gpu: Gpu) -> str:
    capability = gpu.compute_capability
    if capability is not None and capability < _OLDEST:
        return f"has compute capability {capability[0]}.{capability[1]}, MPS needs 3.5 or more"
    if gpu.mig_enabled:
        return "has MIG on, where programs find nothing but instances"
    if gpu.compute_mode == "PROHIBITED":
        return "is in compute mode PROHIBITED"
    return ""


def choose_client_cap(capability: tuple[int, int] | None, cuda_version: str | None) -> int:
    """How many processes can share one GPU; the smaller number where something is unknown.

    Args:
        capability: The GPU's compute capability.
        cuda_version: The newest CUDA that the driver supports, such as 13.0.
    """
    if capability is not None and capability < _VOLTA:
        return PRE_VOLTA_CLIENTS
    if cuda_version is not None and _parse_version(cuda_version) >= (13, 1):
        return NEWER_CLIENTS
    return VOLTA_CLIENTS


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(".") if word.isdigit())


def compute_default_thread_percentage(degree: int) -> int:
    """What each member may use of the GPU's SMs when it is unknown, in percent.

    Twice the fair share: on an H200 small and medium trainings gain most with it.

    Args:
        degree: Members at the same time.
    """
    return max(1, min(100, 200 // max(1, degree)))


def build_member_environment(
    *,
    gpus: Sequence[str],
    pipe_directory: str,
    thread_percentage: float | None = None,
    gpu_memory_limits_mb: Mapping[str, int] | None = None,
    gpu_memory_totals_mb: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """What makes a member a client with limits.

    CUDA ignores a percentage beyond its range and a limit above the GPU's memory, and drops every
    limit where one names a GPU that the process cannot see (H200, driver 580; NVIDIA's manual
    r615). So nothing of that kind leaves here.

    Args:
        gpus: UUIDs that the member sees.
        pipe_directory: The daemon's.
        thread_percentage: Share of the SMs it may use; None for no limit.
        gpu_memory_limits_mb: Limit on each GPU, in MiB, the CUDA context included; GPUs that the
            member does not see are left out.
        gpu_memory_totals_mb: The GPUs' memory, where known; a limit that is no less is left out.

    Raises:
        UsageProblem: A limit is out of range.
    """
    if not gpus:
        raise UsageProblem("a member under MPS needs at least one GPU")
    if thread_percentage is not None and not 0 < thread_percentage <= 100:
        raise UsageProblem(
            f"a thread percentage is above 0 and at most 100, not {thread_percentage:g}"
        )
    limits = []
    for gpu, limit_mb in (gpu_memory_limits_mb or {}).items():
        if limit_mb < CONTEXT_MB:
            raise UsageProblem(
                f"a gpu_memory limit of {limit_mb} MiB leaves no room for the CUDA context",
                hint=f"give {CONTEXT_MB} MiB at least",
            )
        total_mb = (gpu_memory_totals_mb or {}).get(gpu)
        if gpu in gpus and (total_mb is None or limit_mb < total_mb):
            limits.append(f"{gpu}={limit_mb}M")
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
    }
    if thread_percentage is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{thread_percentage:g}"
    if limits:
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
    return environment
