"""How many GPUs a pack has: as its user said, else what the queue gives soonest; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Plan, Policy, SharingMode

EXCLUSIVE = "exclusive"
"""The option of sbatch by which jobs ask for a node of their own."""


@dataclasses.dataclass(frozen=True)
class GpuChoice:
    """How many GPUs a pack has.

    Attributes:
        gpus: How many.
        reason: Why, in a sentence; empty where it is one, as usual.
    """

    gpus: int
    reason: str = ""


def choose_gpus_per_pack(jobs: Sequence[Job], capacity: Capacity, policy: Policy) -> GpuChoice:
    """How many GPUs a pack of these jobs has on a node, as far as user and nodes say.

    Args:
        jobs: Jobs for which Slurm is asked in one way.
        capacity: What one GPU brings with it where they may land.
        policy: How far sharing may go.

    Raises:
        NoPackPossible: A job asks for more GPUs than a pack is to have.
    """
    asked, node = policy.gpus_asked, capacity.gpus_per_node
    if asked.isdigit():
        why = _describe(int(asked), "--gpus-per-pack", policy.nodes_per_pack)
        return _check(GpuChoice(int(asked), why), jobs)
    if policy.mode is SharingMode.MIG:
        return GpuChoice(1)
    is_exclusive = any(name == EXCLUSIVE for job in jobs for name, _ in job.group)
    has_nodes = policy.nodes_per_pack > 1
    if asked == "auto" and not (capacity.gives_whole_nodes or is_exclusive or has_nodes):
        return GpuChoice(1)
    if node is None:
        return GpuChoice(1, "how many GPUs a node has is not known here, so each pack has one")
    why = "--gpus-per-pack=node"
    if asked == "auto" and has_nodes:
        why = f"--nodes-per-pack={policy.nodes_per_pack}"
    elif asked == "auto":
        why = "--exclusive" if is_exclusive else "whole nodes are given there"
    return GpuChoice(node, _describe(node, why, policy.nodes_per_pack))


def _check(choice: GpuChoice, jobs: Sequence[Job]) -> GpuChoice:
    largest = max(jobs, key=lambda job: job.gpus, default=None)
    if largest is not None and largest.gpus > choice.gpus and not largest.alone_because:
        raise NoPackPossible(
            f"{largest.script_name}: it asks for {largest.gpus} GPUs, and a pack is to have "
            f"{choice.gpus} (--gpus-per-pack)",
            hint=f"give --gpus-per-pack={largest.gpus} or more",
        )
    return choice


def _describe(gpus: int, why: str, nodes: int = 1) -> str:
    if nodes > 1:
        return f"a pack has {gpus} GPU{'s' * (gpus > 1)} of each of {nodes} nodes: {why}"
    return f"a pack has {gpus} GPUs: {why}" if gpus > 1 else ""


def widen_for_limit(chosen: Plan, capacity: Capacity) -> GpuChoice | None:
    """More GPUs for each pack, where a limit lets fewer Slurm jobs run at once than there are.

    Args:
        chosen: The plan with packs of one GPU.
        capacity: What one GPU brings with it, and the user's limits; a pack has no more GPUs than
            a node.

    Returns:
        How many; None where one is enough.
    """
    limits, node = capacity.limits, capacity.gpus_per_node
    jobs_at_once = limits.jobs_at_once
    packs = sum(pack.request is not None for pack in chosen.packs)
    if node is None or not jobs_at_once or packs <= jobs_at_once:
        return None
    most = min(packs, limits.gpus_at_once or packs)
    # Rounded down where GPUs are limited: a job that asks for more would never start.
    each = -(-packs // jobs_at_once) if most == packs else most // jobs_at_once
    gpus = min(node, limits.gpus_per_job or node, each)
    if gpus < 2:
        return None
    few = "one Slurm job" if jobs_at_once == 1 else f"{jobs_at_once} Slurm jobs"
    why = f"QoS or account let {few} run at once, and there is work for {packs} GPUs"
    return GpuChoice(gpus, _describe(gpus, why))
