"""Requests that no node of the partition can ever hold; pure.

Slurm takes many of them and lets them wait for ever, with the reasons PartitionConfig or
PartitionTimeLimit (squeue(1), JOB REASON CODES), unless the site sets EnforcePartLimits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.job import Job
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.slurm.output_formats import NodeShape

_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_CPUS = ("cpus-per-task", "cpus-per-gpu")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def refuse_impossible(
    job: Job,
    shapes: Sequence[NodeShape],
    *,
    max_time_s: int | None = None,
    name_place: Callable[..., str] | None = None,
) -> None:
    """Refuse a job that would wait for ever.

    Args:
        job: The job. Of one with several GPUs, tasks or nodes only the time is looked at: it may
            get several nodes, and sbatch itself refuses what they cannot hold.
        shapes: The kinds of nodes on which it may land. None of them tells nothing: a partition
            that is not there is named by sbatch itself.
        max_time_s: How long a job may run there by its partition; None for no limit.
        name_place: What to call the job, by names of options of which one is wrong; None for its
            script's name.

    Raises:
        NoPackPossible: No node there can hold it, or none may for so long.
    """
    if not shapes:
        return
    where = _name_partitions(shapes)
    name = name_place or (lambda *_: job.script_name)
    if job.gpus <= 1 and not job.alone_because:
        _refuse_too_large(job, shapes, where, name)
    if max_time_s is not None and job.time_limit_s is not None and job.time_limit_s > max_time_s:
        raise NoPackPossible(
            f"{name('time')}: it asks for --time={format_time_limit(job.time_limit_s)}, and "
            f"{where} allows {format_time_limit(max_time_s)} at most",
            hint="give a shorter --time, or another partition",
        )


def refuse_large_pack(gpus: int, gpu_type: str | None, shapes: Sequence[NodeShape]) -> None:
    """Refuse a number of GPUs for each pack that no node has.

    Args:
        gpus: How many.
        gpu_type: Of which type; None for any.
        shapes: The kinds of nodes on which packs may land; none of them tells nothing.

    Raises:
        NoPackPossible: No node there has so many.
    """
    most = find_gpus_most(gpu_type, shapes)
    if most is not None and gpus > most:
        raise NoPackPossible(
            f"--gpus-per-pack={gpus}, and a node of {_name_partitions(shapes)} has "
            f"{_count(most, 'GPU')} at most",
            hint="ask for fewer, or for node; --nodes-per-pack adds those of other nodes",
        )


def find_gpus_most(gpu_type: str | None, shapes: Sequence[NodeShape]) -> int | None:
    """GPUs of the node that has the most; None where none is known to have any."""
    return max((_count_gpus(shape, gpu_type) for shape in shapes), default=0) or None


def _refuse_too_large(
    job: Job, shapes: Sequence[NodeShape], where: str, name: Callable[..., str]
) -> None:
    counts = {shape: _count_gpus(shape, job.gpu_type) for shape in shapes}
    if job.gpus > max(counts.values()):
        kind = f" of type {job.gpu_type}" if job.gpu_type else ""
        raise NoPackPossible(
            f"{name(*_GPUS)}: it asks for a GPU{kind}, and no node of {where} has any",
            hint="sinfo -o '%P %c %m %G' shows what each partition has",
        )
    usable = [shape for shape, count in counts.items() if count >= job.gpus]
    cpus = max(shape.cpus for shape in usable)
    if job.cpus > cpus:
        raise NoPackPossible(
            f"{name(*_CPUS)}: it asks for {_count(job.cpus, 'CPU')}, and a node of {where} "
            f"has {cpus} at most",
            hint="ask for fewer, or for another partition",
        )
    memory = max(shape.host_memory_mb for shape in usable)
    if job.host_memory_mb is not None and job.host_memory_mb > memory:
        raise NoPackPossible(
            f"{name(*_MEMORY)}: it asks for {job.host_memory_mb} MB of host memory, and a node of "
            f"{where} has {memory} MB at most",
            hint="ask for less, or for another partition",
        )


def _count_gpus(shape: NodeShape, gpu_type: str | None) -> int:
    return sum(count for kind, count in shape.gpus if gpu_type is None or kind == gpu_type)


def _name_partitions(shapes: Sequence[NodeShape]) -> str:
    names = list(dict.fromkeys(shape.partition for shape in shapes))
    return f"partition{'s' * (len(names) > 1)} {', '.join(names)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
