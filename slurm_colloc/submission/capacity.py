"""What one GPU of the requested partition brings with it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_colloc.model.plan import Capacity
from slurm_colloc.slurm.formats import NodeShape


def compute_capacity(
    shapes: Sequence[NodeShape],
    partitions: str | None,
    gpu_type: str | None,
    gpu_memory_mb: int | None,
) -> Capacity:
    """The smallest share per GPU over the nodes on which a pack may land.

    Args:
        shapes: The kinds of nodes of all partitions.
        partitions: The value of `--partition` (a comma separated list), None for the default.
        gpu_type: The GPU type asked for, None for any.
        gpu_memory_mb: Memory of one GPU, as the settings say.
    """
    names = set(partitions.split(",")) if partitions else None
    chosen = [
        shape
        for shape in shapes
        if (shape.partition in names if names is not None else shape.is_default)
    ]
    shares = []
    for shape in chosen:
        matching = sum(n for kind, n in shape.gpus if gpu_type is None or kind == gpu_type)
        everything = sum(n for _, n in shape.gpus)
        if matching and everything:
            shares.append((shape.cpus // everything, shape.host_memory_mb // everything))
    return Capacity(
        cpus_per_gpu=min((cpus for cpus, _ in shares), default=None),
        host_memory_mb_per_gpu=min((memory for _, memory in shares), default=None),
        gpu_memory_mb=gpu_memory_mb,
        time_limit_max_s=_least(shape.time_limit_max_s for shape in chosen),
        time_limit_default_s=_least(shape.time_limit_default_s for shape in chosen),
    )


def _least(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known, default=None)
