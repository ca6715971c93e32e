"""Where jobs may land: what one GPU brings with it there, and whether what was measured holds.

Also: the name of the cluster on which csub is called, at the price of one question an hour.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import Capacity, QosTable, UserLimits
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.accounting import read_qos
from slurm_colloc.slurm.slurm_commands import (
    NodeShape,
    SlurmAccess,
    ask_cluster_name,
    describe_client,
    read_cluster_name,
)
from slurm_colloc.store.calibrations import match_slugs
from slurm_colloc.store.kept_answers import keep, read_kept
from slurm_colloc.store.profiles import slug_gpu_model

# ---- The name of the cluster on which csub is called, at the price of one question an hour -------


@dataclass(frozen=True)
class ClusterName:
    """As Slurm has told it."""

    name: str


def find_cluster(root: Path, environ: Mapping[str, str] | None = None) -> str:
    """The cluster's name; empty where it is not known, and then no pack is taken for one of it.

    Args:
        root: The state directory, where the answer is kept.
        environ: The environment; None for this process's.
    """
    environ = os.environ if environ is None else environ
    if name := read_cluster_name(environ):
        return name
    client = describe_client(environ)
    if not client:
        return ""
    place = f"cluster-of-{client.partition(':')[0]}"
    if kept := read_kept(root, place, client, ClusterName):
        return kept.name
    if name := ask_cluster_name():
        keep(root, place, client, ClusterName(name))
        return name
    # These commands do not change their cluster; only that they answer is not certain.
    old = read_kept(root, place, client, ClusterName, math.inf)
    return "" if old is None else old.name


# ----
# Where jobs may land: what one GPU brings with it there, and whether what was measured holds.

_NARROWING = ("constraint", "exclude", "nodefile", "reservation")
"""Options by which a user chooses nodes, so that a GPU type on top might leave none."""


@dataclass(frozen=True)
class Destination:
    """Where a job may land.

    Attributes:
        capacity: What one GPU brings with it there.
        gpu_types: Of which types GPUs are there, None among them for those without a type; none
            where the job asks for a type, or nothing is known.
        gpu_types_elsewhere: Those of all other nodes that Slurm showed.
        gpu_memory_most_mb: Memory of the largest GPU there; None where unknown.
        shapes: The kinds of nodes there.
        max_time_s: How long a job may run there by its partition, where no QoS lifts that; None for
            no limit.
        reasons: What is not known of it and should be, a sentence each.
    """

    capacity: Capacity
    gpu_types: tuple[str | None, ...] = ()
    gpu_types_elsewhere: tuple[str | None, ...] = ()
    gpu_memory_most_mb: int | None = None
    shapes: tuple[NodeShape, ...] = ()
    max_time_s: int | None = None
    reasons: tuple[str, ...] = ()


NODES_KEPT_S = 60.0
"""How long the kinds of nodes stand for the next submissions, so that each asks Slurm once less."""


@dataclass(frozen=True)
class NodeShapes:
    """The kinds of nodes of all partitions."""

    shapes: tuple[NodeShape, ...]


class Destinations:
    """Finds out where jobs may land; Slurm is asked about the same nodes once.

    Args:
        settings: The settings, for the GPUs' memory and the site's cap on time.
        slurm: Slurm; None where packs run without it.
    """

    def __init__(self, settings: Settings, slurm: SlurmAccess | None) -> None:
        self._settings = settings
        self._slurm = slurm
        self._shapes: dict[str | None, Sequence[NodeShape]] = {}

    def _list_nodes(self, slurm: SlurmAccess, job: Job) -> Sequence[NodeShape]:
        root, group = self._settings.state_path, dict(job.group)
        nodelist = group.get("nodelist")
        cluster = find_cluster(root) if nodelist is None else ""
        kept = read_kept(root, "nodes", cluster, NodeShapes, NODES_KEPT_S) if cluster else None
        if kept is not None:
            # What is not there may have come since: none is refused by an old answer.
            there = choose_shapes(kept.shapes, group.get("partition"))
            if job.gpu_type in (None, *list_gpu_types(there)):
                return kept.shapes
        found = slurm.list_nodes(nodelist)
        if cluster:
            keep(root, "nodes", cluster, NodeShapes(tuple(found)))
        return found

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
            self._shapes[nodelist] = self._list_nodes(self._slurm, job)
        shapes = self._shapes[nodelist]
        types = list_gpu_types(choose_shapes(shapes, partition)) if job.gpu_type is None else ()
        memories = [self._settings.gpu_memory_mb(kind) for kind in types or (job.gpu_type,)]
        known = [memory for memory in memories if memory is not None]
        is_known = len(known) == len(memories)
        capacity = compute_capacity(
            shapes, partition, job.gpu_type, min(known) if is_known else None
        )
        # It asks by Slurm's commands, which only a call with jobs that may share has to wait for.

        max_wall_s, unknown = look_up_max_wall_s(
            group,
            self._settings.state_path,
            find_cluster(self._settings.state_path),
            max_time_s=capacity.time_limit_max_s,
        )
        # A QoS may lift the partition's limit, and an administrator gives another QoS sooner.
        partition_max_s = capacity.time_limit_max_s
        is_bound = (
            partition_max_s is not None and max_wall_s is not None and max_wall_s <= partition_max_s
        )
        limits = [max_wall_s, self._settings.caps.pack_time_s]
        return Destination(
            replace(
                capacity,
                time_limit_max_s=min((s for s in limits if s is not None), default=None),
                limits=look_up_user_limits(
                    group, self._settings.state_path, find_cluster(self._settings.state_path)
                ),
            ),
            types,
            tuple(kind for kind in list_gpu_types(shapes) if kind not in types),
            max(known) if is_known else None,
            tuple(choose_shapes(shapes, partition)),
            partition_max_s if is_bound else None,
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


@dataclass(frozen=True)
class GpuMatch:
    """Whether what was measured on a GPU model holds where jobs that ask for no type may land.

    Attributes:
        gpu_type: The type to ask for, so that it holds; None where nothing needs to be asked.
        is_other: It does not hold, or that is not known: another GPU model may be given.
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
    also = f" along with {narrowing[0]}" if narrowing else ""
    return GpuMatch(
        is_other=True,
        reason=f"GPUs there are of several types ({names}) and none is asked for{also}: of what "
        f"was measured on {models} no more than the GPU memory is taken over "
        "(--gres=gpu:TYPE:1 lets csub plan by it)",
    )


def describe_asked_type(gpu_type: str) -> str:
    """Why a pack asks for a GPU type that its user did not name."""
    return (
        f"asks for {gpu_type}, on which its members were measured; --gres=gpu:TYPE:1 names another"
    )


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
    counts = []
    for shape in chosen:
        matching = sum(n for kind, n in shape.gpus if gpu_type is None or kind == gpu_type)
        everything = sum(n for _, n in shape.gpus)
        if matching and everything:
            shares.append((shape.cpus // everything, shape.host_memory_mb // everything))
            counts.append(matching)
    return Capacity(
        cpus_per_gpu=min((cpus for cpus, _ in shares), default=None),
        host_memory_mb_per_gpu=min((memory for _, memory in shares), default=None),
        gpu_memory_mb=gpu_memory_mb,
        time_limit_max_s=_least(shape.time_limit_max_s for shape in chosen),
        time_limit_default_s=_least(shape.time_limit_default_s for shape in chosen),
        gpus_per_node=min(counts, default=None),
        gives_whole_nodes=bool(chosen) and all(shape.is_given_whole for shape in chosen),
    )


def _least(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known, default=None)


_UNKNOWN_KEPT_S = 60


def look_up_max_wall_s(
    group: Mapping[str, str],
    root: Path,
    cluster: str,
    *,
    max_time_s: int | None = None,
    now: float | None = None,
) -> tuple[int | None, str]:
    """The MaxWall that holds for a job, or MaxTime of its partition where that is shorter.

    Args:
        group: The options of sbatch that all jobs of a pack share.
        root: The state directory, which keeps the answer.
        cluster: The cluster's name; empty where it is not known.
        max_time_s: MaxTime of its partition, which a QoS may lift; None for no limit.
        now: Seconds since the epoch; None for the clock's.

    Returns:
        It in seconds, None where there is none; and why it is not known, empty where it is.
    """
    table = _look_up_qos(root, cluster, now)
    asked = (group.get("qos"), group.get("account"), group.get("partition"))
    lifts = table.lifts_max_time(*asked)
    limits = (table.find_max_wall_s(*asked), None if lifts else max_time_s)
    return min((limit for limit in limits if limit is not None), default=None), table.unknown


def look_up_user_limits(group: Mapping[str, str], root: Path, cluster: str) -> UserLimits:
    """How much the user may have at the same time; as `look_up_max_wall_s`."""
    asked = (group.get("qos"), group.get("account"), group.get("partition"))
    return _look_up_qos(root, cluster, None).find_user_limits(*asked)


def _look_up_qos(root: Path, cluster: str, now: float | None) -> QosTable:
    # No answer is kept under the minute in which it was none: the next minute asks again.
    minute = int((time.time() if now is None else now) // _UNKNOWN_KEPT_S)
    failed = f"{cluster} at minute {minute}"
    kept = (read_kept(root, "qos", about, QosTable) for about in (cluster, failed))
    table = next(filter(None, kept), None)
    if table is None:
        table = read_qos(cluster=cluster)
        keep(root, "qos", failed if table.unknown else cluster, table)
    return table
