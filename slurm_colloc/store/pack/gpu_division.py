"""division.json: how the GPUs of a Slurm job on a node are divided among its GPU sets there.

It lies in the directory of the pack of the node's first set, and is written before any runner there
begins: one process divides, so that no two sets are ever given the same GPU or CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record

_NAME = "division.json"


@dataclasses.dataclass(frozen=True)
class GpuSetShare:
    """What one GPU set has of its Slurm job.

    Attributes:
        gpus: Its GPUs, as CUDA_VISIBLE_DEVICES takes them: by UUID where NVML tells.
        slurm_gpus: The same as Slurm's indices (SLURM_JOB_GPUS).
        cpus: Its CPUs; none where members are not bound.
        host_memory_mb: What its members may use together; None where Slurm sets no limit.
        problem: Why nothing can run on it; empty where it can.
    """

    gpus: tuple[str, ...] = ()
    slurm_gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    host_memory_mb: int | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class GpuDivision:
    """The shares of all GPU sets.

    Attributes:
        restarts: How often Slurm had restarted the job when it was written; a division of another
            start does not count.
        node: The node's name.
        shares: One for each GPU set of the node, in their order.
        is_near: Each set's CPUs are those nearest to its GPUs, by the kernel.
        notes: What could not be told, a sentence each.
    """

    restarts: int = 0
    node: str = ""
    shares: tuple[GpuSetShare, ...] = ()
    is_near: bool = False
    notes: tuple[str, ...] = ()


def read_division(pack: Path) -> GpuDivision | None:
    """Read division.json; None if there is none.

    Args:
        pack: The directory of the first GPU set's pack.

    Raises:
        StateError: It is damaged or cannot be read.
    """
    return read_record(pack / _NAME, GpuDivision)


def read_problem(pack: Path, number: int, restarts: int) -> str:
    """Why nothing can run in a GPU set; empty where it can, and where no division of now says it.

    Args:
        pack: The directory of the pack of the node's first GPU set.
        number: The set's number on the node.
        restarts: How often Slurm has restarted the job.
    """
    with contextlib.suppress(StateError):
        division = read_division(pack)
        if division is not None and division.restarts == restarts:
            return "".join(share.problem for share in division.shares[number : number + 1])
    return ""


def write_division(pack: Path, division: GpuDivision) -> None:
    """Write division.json.

    Args:
        pack: The directory of the first GPU set's pack.
        division: What it says.

    Raises:
        StateError: It cannot be written.
    """
    write_json(pack / _NAME, dataclasses.asdict(division))
