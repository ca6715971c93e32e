"""What one GPU of the requested partition brings with it, and of which types GPUs are; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_colloc.model.plan import Capacity
from slurm_colloc.slurm.formats import NodeShape


def choose_shapes(shapes: Sequence[NodeShape], partitions: str | None) -> list[NodeShape]:
    """The kinds of nodes of a comma separated list of partitions, None for the default one."""
    names = set(partitions.split(",")) if partitions else None
    return [
        shape
        for shape in shapes
        if (shape.partition in names if names is not None else shape.is_default)
    ]


def list_gpu_types(shapes: Iterable[NodeShape]) -> tuple[str | None, ...]:
    """The GPU types of these nodes; None among them where Slurm gives GPUs no type."""
    found = {kind for shape in shapes for kind, count in shape.gpus if count}
    return tuple(sorted(found, key=lambda kind: kind or ""))


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
    chosen = choose_shapes(shapes, partitions)
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
