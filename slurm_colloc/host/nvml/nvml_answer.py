"""What NVML says of a node's GPUs, as values; pure. What it does not say is None, never 0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
"""The compute mode that lets one process in at a time."""

UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU.

    Args:
        pid: Its pid, as NVML gives it.
        gpu_memory_mb: What it uses; None where not told.
        type: `C` compute, `M+C` compute through MPS.
    """

    pid: int
    gpu_memory_mb: int | None = None
    type: str = "C"


@dataclass(frozen=True)
class Gpu:
    """One GPU; what NVML does not say is None.

    Args:
        nvml_index: NVML's number of it.
        uuid: Its UUID.
        name: Its model.
        minor_number: N of /dev/nvidiaN.
        pci_bus_id: Where it is.
        gpu_memory_total_mb: All of its memory.
        gpu_memory_used_mb: What is in use, the driver's own included.
        compute_mode: DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED or EXCLUSIVE_THREAD.
        compute_capability: Such as (9, 0).
        mig_enabled: It is divided by MIG.
        processes: Compute processes, MPS servers and clients among them.
        mps_processes: MPS clients.
        doubt: What NVML says of it that cannot be true; empty where all can.
    """

    nvml_index: int
    uuid: str | None = None
    name: str | None = None
    minor_number: int | None = None
    pci_bus_id: str | None = None
    gpu_memory_total_mb: int | None = None
    gpu_memory_used_mb: int | None = None
    compute_mode: str | None = None
    compute_capability: tuple[int, int] | None = None
    mig_enabled: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mps_processes: tuple[GpuProcess, ...] | None = None
    doubt: str = ""


@dataclass(frozen=True)
class NvmlAnswer:
    """All that NVML says.

    Args:
        problem: Why there is no answer, in words; empty where there is one.
        driver_version: Such as 580.159.04.
        cuda_version: The newest CUDA the driver supports, such as 13.0.
        gpus: The GPUs that this process may see. One that is lost says nothing of itself, and
            speaks against no other.
    """

    problem: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """What cannot be true, of any of them."""
        return tuple(gpu.doubt for gpu in self.gpus if gpu.doubt)

    def find(self, uuid: str) -> Gpu | None:
        """The GPU of a UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def parse_answer(value: Mapping[str, Any]) -> NvmlAnswer:
    """Read what the child printed, and say what cannot be true.

    Raises:
        KeyError: It is something else.
        TypeError: Likewise.
    """
    if value["problem"]:
        return NvmlAnswer(problem=str(value["problem"]))
    gpus = tuple(_parse_gpu(gpu) for gpu in value["gpus"])
    return NvmlAnswer(
        driver_version=value["driver_version"],
        cuda_version=value["cuda_version"],
        gpus=tuple(replace(gpu, doubt=find_doubt(gpu, gpus)) for gpu in gpus),
    )


def _parse_gpu(value: Mapping[str, Any]) -> Gpu:
    fields = dict(value)
    capability = fields.get("compute_capability")
    if capability is not None:
        fields["compute_capability"] = (capability[0], capability[1])
    clients = fields.get("mps_processes")
    mps_pids = {process["pid"] for process in clients or ()}
    for name in ("processes", "mps_processes"):
        if fields.get(name) is not None:
            fields[name] = tuple(
                GpuProcess(
                    process["pid"],
                    process["gpu_memory_mb"],
                    "M+C" if process["pid"] in mps_pids else "C",
                )
                for process in fields[name]
            )
    return Gpu(**fields)


def find_doubt(gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    """Say what NVML says of a GPU that cannot be true; empty where all can; pure.

    Args:
        gpu: The GPU.
        gpus: All that NVML shows, this one among them.
    """
    who = f"GPU {gpu.nvml_index} (nvml_index)"
    if gpu.uuid is None:
        return f"{who} has no readable UUID"
    if not UUID.fullmatch(gpu.uuid):
        return f"{who} has the UUID {gpu.uuid!r}, which is none"
    if [other.uuid for other in gpus].count(gpu.uuid) > 1:
        return f"{who} has the same UUID as another, {gpu.uuid}"
    total, used = gpu.gpu_memory_total_mb, gpu.gpu_memory_used_mb
    if total is not None and total <= 0:
        return f"{who} has a gpu_memory of {total} MiB"
    if total is not None and used is not None and used > total:
        return f"{who} uses {used} MiB of a gpu_memory of {total} MiB"
    return ""
