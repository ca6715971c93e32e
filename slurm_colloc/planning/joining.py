"""Whether one more job fits into a pack that is already there; pure.

A pack that waits is planned anew with the job in it, and asks Slurm for what it then needs. A pack
that runs has what it has: the job gets a place only where one is free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, MemberPlan, PackPlan, PackRequest, Policy
from slurm_colloc.planning.grouping import (
    Need,
    build_pack,
    compute_need,
    compute_overload,
    compute_reason_to_run_alone,
    compute_refusal,
    compute_thread_percentage,
    compute_wall_limit_s,
)


@dataclasses.dataclass(frozen=True)
class RunningPack:
    """What a running pack has.

    Attributes:
        request: What Slurm gave it.
        degree: Its places.
        time_left_s: Until its time limit; None for no limit.
        plans: The plans of its members that have not ended.
        jobs: The same members' jobs.
        place_cpus: CPUs of its smallest place.
    """

    request: PackRequest
    degree: int
    time_left_s: int | None
    plans: tuple[MemberPlan, ...]
    jobs: tuple[Job, ...]
    place_cpus: int


def compute_reason_not_to_join(job: Job, policy: Policy) -> str:
    """Say why a job joins no pack, and why nobody joins its own; empty if it may."""
    return compute_reason_to_run_alone(dataclasses.replace(job, came_together=True), policy)


def merge_policies(pack: Policy, call: Policy) -> Policy:
    """The policy of a pack with a joiner in it: the narrower of both, and time to probe either."""
    degree = min(pack.degree, call.degree)
    size = pack.pack_size if pack.pack_size is not None else pack.degree
    caps = [cap for cap in (pack.pack_time_max_s, call.pack_time_max_s) if cap is not None]
    return dataclasses.replace(
        pack,
        degree=degree,
        pack_size=max(size, degree),
        slowdown_bound=min(pack.slowdown_bound, call.slowdown_bound),
        probe_s=max(pack.probe_s, call.probe_s),
        pack_time_max_s=min(caps, default=None),
    )


def plan_pending_join(
    present: Sequence[Job], new: Job, capacity: Capacity, policy: Policy
) -> PackPlan | str:
    """Plan a waiting pack with one more job.

    Args:
        present: The jobs that are in it.
        new: The job that is to join.
        capacity: What one GPU brings with it.
        policy: How far sharing may go, of pack and job (see `merge_policies`).

    Returns:
        The pack with all of them, members in this order; or the limit that they would break.
    """
    if len(present) + 1 > policy.degree and (policy.pack_size or 0) <= policy.degree:
        return f"all {policy.degree} places are taken"
    jobs = [*present, new]
    needs = [compute_need(job, index, capacity, policy) for index, job in enumerate(jobs)]
    refusal = compute_refusal(needs, capacity, policy)
    return refusal or build_pack(jobs, needs, capacity, policy, "")


def plan_running_join(
    pack: RunningPack, new: Job, capacity: Capacity, policy: Policy
) -> MemberPlan | str:
    """Give a job a free place of a running pack, or say which limit is in the way.

    Args:
        pack: What the pack has.
        new: The job that is to join.
        capacity: What one GPU brings with it; its GPU memory counts here.
        policy: How far sharing may go, of pack and job (see `merge_policies`).
    """
    present = [_read_need(job, plan) for job, plan in zip(pack.jobs, pack.plans, strict=True)]
    need = compute_need(new, len(present), capacity, policy)
    degree = min(pack.degree, policy.degree)
    if len(present) + 1 > degree:
        return f"all {degree} places are taken"
    if need.cpus > pack.place_cpus:
        return f"it needs {need.cpus} CPUs, a place of the pack has {pack.place_cpus}"
    given = Capacity(
        cpus_per_gpu=pack.request.cpus,
        host_memory_mb_per_gpu=pack.request.host_memory_mb,
        gpu_memory_mb=capacity.gpu_memory_mb,
    )
    overload = compute_overload([*present, need], len(present) + 1, given)
    if overload:
        return overload
    wall_s = compute_wall_limit_s(need, degree, policy)
    if pack.time_left_s is not None:
        if wall_s is None:
            return f"it has no --time, and the pack ends in {pack.time_left_s} s"
        wanted = wall_s + policy.start_margin_s
        if wanted > pack.time_left_s:
            return f"it needs {wanted} s, the pack ends in {pack.time_left_s} s"
    return MemberPlan(
        need.index,
        need.cpus,
        need.host_memory_mb,
        wall_s,
        need.gpu_memory_mb,
        compute_thread_percentage(pack.degree, policy.mode),
    )


def _read_need(job: Job, plan: MemberPlan) -> Need:
    """What a member of a running pack was given."""
    return Need(plan.job_index, plan.cpus, plan.host_memory_mb, job.gpu_memory_mb, job.time_limit_s)
