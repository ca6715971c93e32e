"""What one GPU has for a pack of known jobs, by node, site, user and sharing mode; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.plan import Policy, Rule, SharingMode
from slurm_colloc.planning.job_needs import Question, are_timed
from slurm_colloc.planning.limits.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.planning.priced_packs import Limits, Subject


def build_limits(question: Question, subjects: Sequence[Subject]) -> Limits:
    """What one GPU has for a pack of jobs whose load is known.

    How long a pack may last counts only where earlier runs tell how long jobs take: `--time` is
    what a job may take at most, and Slurm's own limit cuts that off.
    """
    capacity, policy = question.capacity, question.policy
    members = policy.degree_max
    if policy.degree_is_asked or capacity.gpu_memory_mb is None:
        # It is not known how many fit into an unknown GPU's memory.
        members = min(members, policy.degree)
    if policy.pack_size is not None:
        members = min(members, policy.pack_size)
    finish_s = None
    longest_s = capacity.time_limit_max_s
    if longest_s is not None and are_timed(question, subjects):
        finish_s = float(max(1, longest_s - policy.start_margin_s))
    modes = list_modes(policy)
    limits = Limits(
        cpus=capacity.cpus_per_gpu,
        host_memory_mb=capacity.host_memory_mb_per_gpu,
        gpu_memory_mb=compute_usable_gpu_memory_mb(capacity.gpu_memory_mb),
        members=max(1, members),
        finish_s=finish_s,
        has_instances=set(modes) == {SharingMode.MIG},
    )
    if SharingMode.MIG not in modes:
        return limits
    # Only packs with MIG instances wait for it.
    from slurm_colloc.planning.mig.planned_gpu import find_planned_gpu

    gpu = find_planned_gpu(question, [subject.index for subject in subjects])
    return dataclasses.replace(limits, instance_rooms_mb=gpu.equal_rooms_mb)


def list_modes(policy: Policy) -> tuple[SharingMode, ...]:
    """The sharing modes that may be chosen from; rules of others have one."""
    modes = policy.modes if policy.rule is Rule.CSUB and policy.modes else (policy.mode,)
    return tuple(mode for mode in modes if mode is not SharingMode.EXCLUSIVE)
