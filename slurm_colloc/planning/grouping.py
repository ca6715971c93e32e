"""plan(): which jobs share a GPU.

Grouping is by what the user said: jobs that came together and agree in everything that Slurm
must be asked once for share, as long as CPUs, host memory and stated GPU memory fit.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import (
    WATCHED_FROM_MB,
    Capacity,
    MemberPlan,
    PackPlan,
    PackRequest,
    Plan,
    Policy,
    SharingMode,
    UsageProfile,
)

GPU_MEMORY_SHARE = 0.95
"""Part of a GPU's memory that stated needs may fill; the rest is for contexts."""

RUNNER_HOST_MEMORY_MB = 64
SRUN_HOST_MEMORY_MB = 16
"""What the batch step itself needs: the runner, and a waiting srun for each running member."""


@dataclasses.dataclass(frozen=True)
class Need:
    """A job with its defaults filled in.

    Attributes:
        index: Its index into the jobs.
        cpus: CPUs, at least 1.
        host_memory_mb: Host memory in MB; None where nothing is known of it.
        gpu_memory_mb: GPU memory in MB; None where nothing is known of it.
        time_limit_s: Its time alone in seconds; None for no limit.
    """

    index: int
    cpus: int
    host_memory_mb: int | None
    gpu_memory_mb: int | None
    time_limit_s: int | None


def plan(
    jobs: Sequence[Job],
    profiles: Mapping[int, UsageProfile],
    capacity: Capacity,
    policy: Policy,
) -> Plan:
    """Divide jobs into packs.

    Args:
        jobs: What came in one call, in the user's order.
        profiles: What is known of a job's solo use, by index into `jobs`; not looked at by this
            grouping, which trusts only what the user said.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.

    Returns:
        A plan in which every job is in exactly one pack. Packs are in order of their first job.
    """
    del profiles
    if policy.running_limit is not None:
        policy = dataclasses.replace(policy, degree=min(policy.degree, policy.running_limit))
    packs: list[tuple[int, PackPlan]] = []
    buckets: dict[tuple[object, ...], list[int]] = {}
    for index, job in enumerate(jobs):
        why_alone = compute_reason_to_run_alone(job, policy)
        if why_alone:
            packs.append((index, _build_lone_pack(index, job, why_alone)))
        else:
            buckets.setdefault((job.group, job.gpu_type), []).append(index)
    for indices in buckets.values():
        if len(indices) == 1:
            # It gets what it asked for: no share of a node, no stretched time.
            reason = "no job came with it that could share its GPU"
            packs.append((indices[0], _build_lone_pack(indices[0], jobs[indices[0]], reason)))
            continue
        for chosen, closing_reason in _fill_packs(jobs, indices, capacity, policy):
            packs.append(
                (chosen[0].index, build_pack(jobs, chosen, capacity, policy, closing_reason))
            )
    packs.sort(key=lambda entry: entry[0])
    ordered = tuple(pack for _, pack in packs)
    packs_at_once = None
    reasons: list[str] = []
    if policy.running_limit is not None:
        widest = max((pack.degree for pack in ordered), default=1)
        packs_at_once = max(1, policy.running_limit // widest)
        reasons.append(
            f"at most {policy.running_limit} members at the same time: "
            f"{packs_at_once} packs of degree {widest}"
        )
    if len(buckets) > 1:
        reasons.append(
            f"{len(buckets)} groups: jobs share a pack only where partition, account, QoS, "
            "GPU type, constraint and the options passed to sbatch are equal"
        )
    return Plan(ordered, packs_at_once, tuple(reasons))


def compute_reason_to_run_alone(job: Job, policy: Policy) -> str:
    """Say why a job gets an allocation of its own, or an empty string if it may share."""
    if job.alone_because:
        return job.alone_because
    if not job.came_together:
        return "a single script runs alone unless another joins it, or it joins one (--join)"
    if job.gpus != 1:
        return (
            f"it asks for {job.gpus} GPUs, a pack shares one" if job.gpus else "it asks for no GPU"
        )
    if policy.degree == 1 and (policy.pack_size or 1) == 1:
        return "the degree is 1"
    if policy.pack_time_max_s is not None and (job.time_limit_s or 0) > policy.pack_time_max_s:
        return f"it asks for {job.time_limit_s} s, packs get {policy.pack_time_max_s} s here"
    return ""


def _build_lone_pack(index: int, job: Job, reason: str) -> PackPlan:
    member = MemberPlan(
        job_index=index,
        cpus=job.cpus,
        host_memory_mb=None,
        wall_limit_s=job.time_limit_s,
        gpu_memory_limit_mb=None,
    )
    return PackPlan(
        members=(member,),
        degree=1,
        mode=SharingMode.EXCLUSIVE,
        request=None,
        group=job.group,
        predicted_slowdown=None,
        reasons=(f"{job.name} runs alone: {reason}",),
    )


def compute_need(job: Job, index: int, capacity: Capacity, policy: Policy) -> Need:
    """What a job needs: as it was asked for, else its share of what one GPU brings with it."""
    host_memory_mb = job.host_memory_mb
    if host_memory_mb is None and capacity.host_memory_mb_per_gpu is not None:
        host_memory_mb = max(1, capacity.host_memory_mb_per_gpu // policy.degree)
    time_limit_s = job.time_limit_s or capacity.time_limit_default_s
    return Need(index, job.cpus, host_memory_mb, job.gpu_memory_mb, time_limit_s)


def _fill_packs(
    jobs: Sequence[Job], indices: Sequence[int], capacity: Capacity, policy: Policy
) -> list[tuple[list[Need], str]]:
    """First fit in the user's order; each pack comes with the reason why it was closed."""
    packs: list[tuple[list[Need], str]] = []
    for index in indices:
        need = compute_need(jobs[index], index, capacity, policy)
        for position, (members, _) in enumerate(packs):
            refusal = compute_refusal([*members, need], capacity, policy)
            if not refusal:
                members.append(need)
                break
            packs[position] = (members, refusal)
        else:
            packs.append(([need], ""))
    return packs


def compute_refusal(members: Sequence[Need], capacity: Capacity, policy: Policy) -> str:
    """Name the limit that these members would break together, with both numbers, or ''."""
    size = policy.pack_size or policy.degree
    if len(members) > size:
        return f"full with {size} members"
    at_once = 1 if policy.pack_size and policy.pack_size > policy.degree else len(members)
    refusal = compute_overload(members, min(at_once, policy.degree), capacity)
    if refusal:
        return refusal
    limit = capacity.time_limit_max_s
    degree = choose_degree(members, capacity, policy)
    if limit is not None and len(members) > degree:
        span = _compute_makespan_s(members, degree, policy)
        if span is not None and span + policy.start_margin_s + policy.probe_s > limit:
            return f"{len(members)} members need {span} s one after the other, MaxTime is {limit} s"
    return ""


def compute_overload(members: Sequence[Need], at_once: int, capacity: Capacity) -> str:
    """Name the resource of which the largest `at_once` members need more than there is, or ''."""
    cpus = sum(heapq.nlargest(at_once, (need.cpus for need in members)))
    if capacity.cpus_per_gpu is not None and cpus > capacity.cpus_per_gpu:
        return f"{at_once} at once need {cpus} CPUs, the GPU's share is {capacity.cpus_per_gpu}"
    memory = sum(heapq.nlargest(at_once, (need.host_memory_mb or 0 for need in members)))
    share = capacity.host_memory_mb_per_gpu
    if share is not None and memory > share:
        return f"{at_once} at once need {memory} MB of host memory, the GPU's share is {share} MB"
    gpu_memory = sum(heapq.nlargest(at_once, (need.gpu_memory_mb or 0 for need in members)))
    if capacity.gpu_memory_mb is not None:
        usable = int(capacity.gpu_memory_mb * GPU_MEMORY_SHARE)
        if gpu_memory > usable:
            return f"{at_once} at once need {gpu_memory} MB of GPU memory, {usable} MB are usable"
    return ""


def choose_degree(members: Sequence[Need], capacity: Capacity, policy: Policy) -> int:
    """The largest number of members that may run at once, at least 1."""
    for degree in range(min(policy.degree, len(members)), 1, -1):
        if not compute_overload(members, degree, capacity):
            return degree
    return 1


def compute_wall_limit_s(need: Need, degree: int, policy: Policy) -> int | None:
    """A member's wall limit in seconds: its time alone, stretched where it shares."""
    if need.time_limit_s is None:
        return None
    return round(need.time_limit_s * (policy.slowdown_bound if degree > 1 else 1.0))


def compute_thread_percentage(degree: int, mode: SharingMode) -> int | None:
    """MPS thread limit of each of `degree` equal members, in per cent; None without MPS.

    Twice the equal share: on an H200 that gave the highest throughput for small, medium and large
    trainings (docs/benchmarks.md, "Thread limits").
    """
    if mode is not SharingMode.MPS or degree < 2:
        return None
    return min(100, 200 // degree)


def _compute_makespan_s(members: Sequence[Need], degree: int, policy: Policy) -> int | None:
    """When the last member would end if each used its whole wall limit; None if one has none."""
    ends = [0] * degree
    for need in members:
        wall = compute_wall_limit_s(need, degree, policy)
        if wall is None:
            return None
        heapq.heapreplace(ends, ends[0] + wall)
    return max(ends)


def build_pack(
    jobs: Sequence[Job],
    needs: Sequence[Need],
    capacity: Capacity,
    policy: Policy,
    closing_reason: str,
) -> PackPlan:
    """The pack of these jobs, which keep every limit together."""
    degree = choose_degree(needs, capacity, policy)
    host_memory_mb = _compute_host_memory_mb(needs, degree, capacity, policy)
    if degree == 1 or (host_memory_mb is not None and host_memory_mb < WATCHED_FROM_MB):
        # Nobody is probed where nobody waits for it, or nothing is measured.
        policy = dataclasses.replace(policy, probe_s=0)
    time_limit_s, cap_s, time_reason = _compute_time(needs, degree, capacity, policy)
    mode = policy.mode if degree > 1 else SharingMode.EXCLUSIVE
    members = []
    for need in needs:
        wall = compute_wall_limit_s(need, degree, policy)
        if wall is not None and cap_s is not None:
            wall = min(wall, cap_s)
        members.append(
            MemberPlan(
                need.index,
                need.cpus,
                need.host_memory_mb,
                wall,
                need.gpu_memory_mb,
                compute_thread_percentage(degree, mode),
            )
        )
    cpus = sum(heapq.nlargest(degree, (need.cpus for need in needs)))
    first = jobs[needs[0].index]
    reasons = [f"{len(needs)} members, {degree} at once, {cpus} CPUs"]
    if closing_reason:
        reasons.append(f"no further member: {closing_reason}")
    if any(need.gpu_memory_mb is None for need in needs):
        reasons.append("GPU memory was not stated for all members and is not checked")
    elif capacity.gpu_memory_mb is None:
        reasons.append("the GPU's memory is unknown here, the stated needs are not checked")
    if time_reason:
        reasons.append(time_reason)
    return PackPlan(
        members=tuple(members),
        degree=degree,
        mode=mode,
        request=PackRequest(
            gpus=1,
            gpu_type=first.gpu_type,
            cpus=cpus,
            host_memory_mb=host_memory_mb,
            time_limit_s=time_limit_s,
        ),
        group=first.group,
        predicted_slowdown=None,
        reasons=tuple(reasons),
    )


def _compute_host_memory_mb(
    needs: Sequence[Need], degree: int, capacity: Capacity, policy: Policy
) -> int | None:
    amounts = [need.host_memory_mb for need in needs if need.host_memory_mb is not None]
    if len(amounts) < len(needs):
        return None
    members = sum(heapq.nlargest(degree, amounts))
    wanted = members + RUNNER_HOST_MEMORY_MB + SRUN_HOST_MEMORY_MB * degree
    share = capacity.host_memory_mb_per_gpu
    # The overhead never pushes a pack over its share: its members seldom peak together.
    if wanted >= WATCHED_FROM_MB:
        wanted += policy.monitor_mb
    return wanted if share is None else max(members, min(wanted, share))


def _compute_time(
    needs: Sequence[Need], degree: int, capacity: Capacity, policy: Policy
) -> tuple[int | None, int | None, str]:
    """The pack's time limit, a cap on each member's wall limit, and a reason where there is one."""
    span = _compute_makespan_s(needs, degree, policy)
    if span is None:
        return None, None, "no --time was given: Slurm's default limits the whole pack"
    margin_s = policy.start_margin_s + policy.probe_s
    wanted = span + margin_s
    limit = capacity.time_limit_max_s
    longest = max(need.time_limit_s or 0 for need in needs)
    if limit is None or wanted <= limit or longest > limit:
        return wanted, None, ""
    cap = max(1, limit - margin_s)
    reason = (
        f"the pack asks for the partition's MaxTime of {limit} s; {wanted} s would allow "
        f"every member its time stretched by {policy.slowdown_bound:g}"
    )
    return limit, cap if len(needs) <= degree else None, reason
