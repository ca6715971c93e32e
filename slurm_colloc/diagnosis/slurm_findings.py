"""The nodes that Slurm has, and how it is set up, judged; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.diagnosis.findings import Finding, green, red, unknown, yellow
from slurm_colloc.slurm.slurm_nodes import NodeState

_ASK = "ask the administrators"


@dataclass(frozen=True)
class Partition:
    """Where a job would run.

    Attributes:
        name: Its name; empty where none was named and Slurm has no default.
        nodes: Its nodes.
        others_with_gpus: Other partitions that have GPUs.
    """

    name: str
    nodes: tuple[NodeState, ...] = ()
    others_with_gpus: tuple[str, ...] = ()

    @property
    def usable(self) -> tuple[NodeState, ...]:
        """Nodes that take jobs."""
        return tuple(node for node in self.nodes if node.is_usable)

    @property
    def gpus(self) -> int:
        """GPUs of its nodes."""
        return sum(node.gpus for node in self.nodes)


def choose_partition(nodes: Sequence[NodeState], asked: str) -> Partition:
    """The partition of a job that asks for one, or for none.

    Args:
        nodes: All nodes.
        asked: What `--partition` says, names with commas between; empty for the default.
    """
    names = set(asked.split(",")) if asked else {n.partition for n in nodes if n.is_default}
    others = {node.partition for node in nodes if node.gpus} - names
    chosen = {node.name: node for node in nodes if node.partition in names}
    return Partition(
        asked or ",".join(sorted(names)), tuple(chosen.values()), tuple(sorted(others))
    )


def judge_nodes(nodes: Sequence[NodeState] | None, partition: Partition | None) -> Finding:
    """There are nodes that take jobs."""
    if partition is None:
        return unknown("nodes", "Slurm did not say which nodes there are")
    if not partition.nodes:
        known = sorted({node.partition for node in nodes or ()})
        what = f"there is no partition {partition.name}"
        if not partition.name:
            what = "Slurm has no default partition"
        return red("nodes", what, f"name one with --partition: {', '.join(known) or _ASK}")
    usable, count = len(partition.usable), len(partition.nodes)
    values = {"partition": partition.name, "nodes": count, "usable": usable}
    down = [node for node in partition.nodes if not node.is_usable]
    told = "; ".join(
        f"{node.name} {node.state}{f' ({node.reason})' if node.reason else ''}" for node in down[:3]
    )
    more = f" and {len(down) - 3} more" if len(down) > 3 else ""
    if not usable:
        return red(
            "nodes",
            f"no node of partition {partition.name} takes jobs: {told}{more}",
            f"choose another partition with --partition, or {_ASK}; sinfo -R shows all reasons",
            **values,
        )
    what = f"{usable} of {count} in partition {partition.name} take jobs"
    return green("nodes", f"{what} (not {told}{more})" if down else what, **values)


def judge_gres(config: Mapping[str, str] | None, partition: Partition | None) -> Finding:
    """Slurm gives GPUs."""
    if partition is None or not partition.nodes:
        return unknown("gres", "Slurm did not say which nodes there are")
    types = (config or {}).get("GresTypes", "")
    values = {"gres_types": types or None, "gpus": partition.gpus, "partition": partition.name}
    if partition.gpus:
        having = sum(node.gpus > 0 for node in partition.nodes)
        count = "1 GPU" if partition.gpus == 1 else f"{partition.gpus} GPUs"
        return green(
            "gres",
            f"{count} on {having} of {len(partition.nodes)} nodes of partition {partition.name}",
            **values,
        )
    if partition.others_with_gpus:
        return yellow(
            "gres",
            f"Slurm has no GPU in partition {partition.name}",
            "nothing can be shared there: every job runs alone, as with sbatch",
            f"look at a partition with GPUs: --partition={partition.others_with_gpus[0]}",
            **values,
        )
    return red(
        "gres",
        f"Slurm knows of no GPU on any node (GresTypes={types or '(null)'})",
        f"{_ASK} to name the GPUs in slurm.conf (GresTypes=gpu, Gres=gpu:N) and gres.conf; until "
        "then every job runs alone, as with sbatch",
        **values,
    )


@dataclass(frozen=True)
class _Wish:
    """A setting of Slurm's that members are better off with."""

    name: str
    wanted: str
    lost: str


_WISHES = (
    _Wish("ProctrackType", "proctrack/cgroup", "processes that leave their session may outlive it"),
    _Wish("TaskPlugin", "task/cgroup", "the kernel limits nothing of a job"),
    _Wish("ConstrainCores", "yes", "a job may use more CPUs than its own"),
    _Wish("ConstrainRAMSpace", "yes", "a member may use more host memory than its limit"),
    _Wish("ConstrainDevices", "yes", "a program may use a GPU that is another job's"),
)


def judge_cgroup(config: Mapping[str, str] | None) -> Finding:
    """Slurm's limits are enforced."""
    if config is None:
        return unknown("cgroup", "the controller did not say how it is set up")
    values = {wish.name: config.get(wish.name) for wish in _WISHES}
    missing = [wish for wish in _WISHES if wish.wanted not in _split(config.get(wish.name, ""))]
    # Without the plugin what cgroup.conf says has no effect.
    if any(wish.name == "TaskPlugin" for wish in missing):
        missing = [wish for wish in missing if not wish.name.startswith("Constrain")]
    if not missing:
        return green("cgroup", "CPUs, host memory and GPUs of a job are limited", **values)
    shown = ", ".join(f"{wish.name}={config.get(wish.name, '(none)')}" for wish in missing)
    return yellow("cgroup", shown, "; ".join(wish.lost for wish in missing), "", **values)


def _split(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",")]
