"""Where jobs may land: what one GPU brings with it there, and whether what was measured holds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.access import SlurmAccess
from slurm_colloc.slurm.cluster import read_cluster_name
from slurm_colloc.slurm.formats import NodeShape
from slurm_colloc.store.calibrations import match_slugs
from slurm_colloc.store.profiles import slug_gpu_model
from slurm_colloc.submission.capacity import choose_shapes, compute_capacity, list_gpu_types

_NARROWING = ("constraint", "exclude", "nodefile", "reservation")
"""Options by which a user chooses nodes, so that a GPU type on top might leave none."""


@dataclasses.dataclass(frozen=True)
class Destination:
    """Where a job may land.

    Attributes:
        capacity: What one GPU brings with it there.
        gpu_types: Of which types GPUs are there, None among them for those without a type; none
            where the job asks for a type, or nothing is known.
        gpu_types_elsewhere: Those of all other nodes that Slurm showed.
        gpu_memory_most_mb: Memory of the largest GPU there; None where unknown.
        reasons: What is not known of it and should be, a sentence each.
    """

    capacity: Capacity
    gpu_types: tuple[str | None, ...] = ()
    gpu_types_elsewhere: tuple[str | None, ...] = ()
    gpu_memory_most_mb: int | None = None
    reasons: tuple[str, ...] = ()


class Destinations:
    """Finds out where jobs may land; Slurm is asked about the same nodes once.

    Args:
        settings: The settings, for the GPUs' memory and the site's cap on time.
        slurm: Slurm; None where packs run without it.
    """

    def __init__(self, settings: Settings, slurm: SlurmAccess | None) -> None:
        self._settings = settings
        self._slurm = slurm
        self._shapes: dict[str | None, list[NodeShape]] = {}

    def read(self, job: Job) -> Destination:
        """Where a job may land.

        Raises:
            SlurmUnreachable: Slurm does not answer.
        """
        if self._slurm is None:
            memory = self._settings.gpu_memory_mb(job.gpu_type)
            return Destination(Capacity(gpu_memory_mb=memory), gpu_memory_most_mb=memory)
        group = dict(job.group)
        nodelist, partition = group.get("nodelist"), group.get("partition")
        if nodelist not in self._shapes:
            self._shapes[nodelist] = self._slurm.list_nodes(nodelist)
        shapes = self._shapes[nodelist]
        types = list_gpu_types(choose_shapes(shapes, partition)) if job.gpu_type is None else ()
        memories = [self._settings.gpu_memory_mb(kind) for kind in types or (job.gpu_type,)]
        known = [memory for memory in memories if memory is not None]
        is_known = len(known) == len(memories)
        capacity = compute_capacity(
            shapes, partition, job.gpu_type, min(known) if is_known else None
        )
        # It asks by Slurm's commands, which only a call with jobs that may share has to wait for.
        from slurm_colloc.submission.qos import look_up_max_wall_s

        max_wall_s, unknown = look_up_max_wall_s(
            group,
            self._settings.state_path,
            read_cluster_name(os.environ),
            max_time_s=capacity.time_limit_max_s,
        )
        limits = [max_wall_s, self._settings.caps.pack_time_s]
        return Destination(
            dataclasses.replace(
                capacity, time_limit_max_s=min((s for s in limits if s is not None), default=None)
            ),
            types,
            tuple(kind for kind in list_gpu_types(shapes) if kind not in types),
            max(known) if is_known else None,
            (f"how long a job may run by its QoS is not known: {unknown}",) if unknown else (),
        )


def read_capacity(job: Job, settings: Settings, slurm: SlurmAccess | None) -> Capacity:
    """Ask Slurm what one GPU brings with it on the nodes where a job may land.

    Args:
        job: The job.
        settings: The settings, for the GPU's memory and the site's cap on time.
        slurm: Slurm; None where packs run without it.

    Raises:
        SlurmUnreachable: Slurm does not answer.
    """
    return Destinations(settings, slurm).read(job).capacity


@dataclasses.dataclass(frozen=True)
class GpuMatch:
    """Whether what was measured on a GPU model holds where jobs that ask for no type may land.

    Attributes:
        gpu_type: The type to ask for, so that it holds; None where nothing needs to be asked.
        is_other: It does not hold, or nobody can say: another GPU model may be given.
        reason: Why not, in a sentence.
    """

    gpu_type: str | None = None
    is_other: bool = False
    reason: str = ""


def match_gpu_type(
    gpu_models: Sequence[str], destination: Destination, group: Mapping[str, str]
) -> GpuMatch:
    """Find the GPU type of what was measured; pure.

    On GPUs of one type all holds, unless the type of what was measured is another one of the
    cluster: a type may have any name.

    Args:
        gpu_models: NVML's names of the models on which was measured.
        destination: Where the jobs may land; they ask for no type.
        group: Their options for Slurm.
    """
    types = destination.gpu_types
    if not gpu_models or not types:
        return GpuMatch()
    slugs = [slug_gpu_model(model) for model in gpu_models]
    matching = [kind for kind in types if kind and len(match_slugs(kind, slugs)) == len(slugs)]
    models = ", ".join(gpu_models)
    if len(types) == 1:
        others = destination.gpu_types_elsewhere
        is_other = not matching and any(kind and match_slugs(kind, slugs) for kind in others)
        if types[0] is None or not is_other:
            return GpuMatch()
        return GpuMatch(
            is_other=True,
            reason=f"GPUs are of type {types[0]} there: of what was measured on {models} no more "
            "than the GPU memory is taken over",
        )
    narrowing = [f"--{name}" for name in _NARROWING if name in group]
    if len(matching) == 1 and not narrowing:
        return GpuMatch(matching[0])
    names = ", ".join(kind or "without a type" for kind in types)
    beside = f" beside {narrowing[0]}" if narrowing else ""
    return GpuMatch(
        is_other=True,
        reason=f"GPUs there are of several types ({names}) and none is asked for{beside}: of what "
        f"was measured on {models} no more than the GPU memory is taken over "
        "(--gres=gpu:TYPE:1 lets csub plan by it)",
    )


def describe_asked_type(gpu_type: str) -> str:
    """Why a pack asks for a GPU type that its user did not name."""
    return (
        f"asks for {gpu_type}, on which its members were measured; --gres=gpu:TYPE:1 names another"
    )
