"""Leaves out the nodes of which a GPU is slow, where the user asks for it: `--avoid-slow`.

A user can choose nodes, and no GPU of a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import SlurmError, UsageProblem
from slurm_colloc.model.gpu_pace import GpuPace
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.slurm.slurm_commands import NodeState, expand_node_list, list_node_states
from slurm_colloc.store.gpu_paces import read_paces
from slurm_colloc.submission.jobs.call_jobs import Call


@dataclass(frozen=True)
class Exclusion:
    """Nodes that are left out for a job.

    Attributes:
        words: What `--exclude` is to say; the user's own words first. Empty for nothing.
        told: What is left out, or why nothing is, a sentence each.
    """

    words: str = ""
    told: tuple[str, ...] = ()


def leave_out_slow_nodes(call: Call, root: Path, *, is_asked: bool) -> tuple[Call, list[str]]:
    """A call whose jobs stay away from slow GPUs, and what is to be said of that.

    Args:
        call: The call.
        root: The state directory.
        is_asked: By an option of the call, not by the settings alone.

    Raises:
        UsageProblem: `--nodelist` names such a node, and the option was given.
    """
    slow = [pace for pace in read_paces(root) if pace.is_slow]
    if not slow or not any(candidate.job.gpus for candidate in call.candidates):
        return call, []
    try:
        nodes = list_node_states()
    except SlurmError as error:
        return call, [f"no node is left out, because Slurm did not say which there are: {error}"]
    told: dict[str, None] = {}
    candidates = []
    for candidate in call.candidates:
        job = candidate.job
        found = choose_exclusion(dict(job.group), slow, nodes, is_asked=is_asked)
        told.update(dict.fromkeys(found.told))
        if job.gpus and found.words:
            group = tuple(sorted({**dict(job.group), "exclude": found.words}.items()))
            candidate = replace(candidate, job=replace(job, group=group))  # noqa: PLW2901
        candidates.append(candidate)
    return replace(call, candidates=tuple(candidates)), list(told)


def choose_exclusion(
    group: Mapping[str, str],
    slow: Sequence[GpuPace],
    nodes: Sequence[NodeState],
    *,
    is_asked: bool,
) -> Exclusion:
    """What is to be left out for a job; pure.

    Args:
        group: Its options for Slurm.
        slow: Slow GPUs.
        nodes: All nodes.
        is_asked: By an option of the call; else who names a node has it.

    Raises:
        UsageProblem: `--nodelist` names such a node, and the option was given.
    """
    partitions = set(group["partition"].split(",")) if group.get("partition") else None
    there = {
        node.name
        for node in nodes
        if node.gpus and (node.is_default if partitions is None else node.partition in partitions)
    }
    own = group.get("exclude", "")
    named = set(expand_node_list(group.get("nodelist", "")))
    by_node = {pace.node: pace for pace in slow if pace.node in there}
    if is_asked and (wanted := [name for name in by_node if name in named]):
        raise UsageProblem(
            f"--avoid-slow leaves out {wanted[0]}, which --nodelist names: "
            f"{by_node[wanted[0]].describe()}",
            hint="leave out one of the two options",
        )
    left_out = [n for n in by_node if n not in named and n not in expand_node_list(own)]
    if not left_out:
        return Exclusion()
    names = ",".join(left_out)
    why = f"because one of its GPUs is slow: {'; '.join(by_node[n].describe() for n in left_out)}"
    if not named and not there - set(left_out) - set(expand_node_list(own)):
        return Exclusion(
            "", (f"{names} is not left out, though it is slow: no other node is left",)
        )
    return Exclusion(
        ",".join(filter(None, (own, names))), (f"{names} is left out (--exclude), {why}",)
    )
