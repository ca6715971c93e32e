"""plan(): which jobs share a GPU.

Jobs that came together and agree in everything that Slurm must be asked once for may share. Those
whose loads are known are divided by what the contention model predicts, those of whose kind a
curve is known by that, the others by what the user said: as long as CPUs, host memory and GPU
memory fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.model.job import Job, ShareRequest
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.measured_curve import KnownCurve
from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    PackPlan,
    Plan,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.model.quantities import format_count
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.gpu_set_packs import group_by_slurm_job, number_slurm_jobs
from slurm_colloc.planning.hard_limits import GPU_MEMORY_SHARE
from slurm_colloc.planning.job_needs import (
    Need,
    Question,
    choose_time_limit_s,
    compute_need,
    compute_needs,
)
from slurm_colloc.planning.pack_request import build_lone_pack, compute_overload
from slurm_colloc.planning.unknown_packs import plan_unknown

__all__ = [
    "GPU_MEMORY_SHARE",
    "Need",
    "compute_need",
    "compute_overload",
    "compute_reason_to_run_alone",
    "explain_gpu_count",
    "plan",
]

TIME_RATIO = 4
"""Jobs share where the time limit of one is at most so many times that of the other: a pack asks
for the longest, and a short job is not to wait in the queue like a long one."""
SHORT_S = 600
"""Shorter time limits count as this: below it, the queue makes no difference between jobs."""

_NOBODY = "no job that could share its GPU was submitted with it"


def plan(
    jobs: Sequence[Job],
    profiles: Mapping[int, UsageProfile],
    capacity: Capacity,
    policy: Policy,
    calibration: Calibration | None = None,
    *,
    curves: Sequence[KnownCurve] = (),
) -> Plan:
    """Divide jobs into packs.

    Args:
        jobs: What came in one call, in the user's order.
        profiles: What is known of a job's solo use, by index into `jobs`.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        calibration: How jobs slow each other down on that GPU; None where that is unknown, and
            then loads are of no use.
        curves: What earlier packs on that GPU model have measured of how many run at once best.

    Returns:
        A plan in which every job is in exactly one pack. Packs are in order of their first job.
    """
    question = ask(jobs, profiles, capacity, policy, calibration, curves=curves)
    policy = question.policy
    lone: list[PackPlan] = []
    buckets = find_buckets(question)
    shared = {index for indices in buckets for index in indices}
    for index, job in enumerate(jobs):
        if index not in shared:
            why = compute_reason_to_run_alone(job, policy)
            lone.append(build_lone_pack(index, job, why))
    packs = number_slurm_jobs([lone, *(_plan_bucket(question, indices) for indices in buckets)])
    if policy.may_cut:
        packs = _add_walls(question, packs)
    ordered = tuple(sorted(packs, key=find_first))
    if policy.goal is Goal.ENERGY:
        from slurm_colloc.planning.power_limit import limit_pack

        ordered = tuple(limit_pack(question, pack) for pack in ordered)
    packs_at_once = None
    reasons: list[str] = []
    if policy.running_limit is not None:
        widest = max(map(_count_running, group_by_slurm_job(ordered)), default=1)
        packs_at_once = max(1, policy.running_limit // widest)
        reasons.append(
            f"at most {format_count(policy.running_limit, 'member')} at the same time: "
            f"{format_count(packs_at_once, 'pack')} of degree {widest}"
        )
    late = [job for job in jobs if asks_over_max_time(job, capacity)]
    if late:
        reasons.append(_describe_late(late, capacity))
    if len(buckets) > 1:
        reasons.append(describe_groups(len(buckets)))
    return Plan(ordered, packs_at_once, tuple(reasons))


def _add_walls(question: Question, packs: Sequence[PackPlan]) -> list[PackPlan]:
    """The packs, with MIG instances for jobs that would run alone because MPS does not hold them.

    Only where the site's nodes make instances, and in a call of several jobs.
    """
    lone = [pack.members[0].job_index for pack in packs if len(pack.members) == 1]
    jobs = list(question.jobs)
    for index in lone:
        if jobs[index].needs_wall:
            jobs[index] = replace(jobs[index], alone_because="")
    freed = replace(question, jobs=jobs)
    buckets: dict[object, list[int]] = {}
    for index, key in find_keys(freed).items():
        if index in lone:
            buckets.setdefault(key, []).append(index)
    found: list[PackPlan] = []
    for indices in buckets.values():
        if len(indices) > 1:
            from slurm_colloc.planning.walled_packs import find_walled

            found += find_walled(freed, indices)
    walled = {member.job_index for pack in found for member in pack.members}
    return [pack for pack in packs if pack.members[0].job_index not in walled] + found


def describe_groups(count: int) -> str:
    """Why jobs of one call are not all planned together."""
    return (
        f"{count} groups: jobs share a pack only if partition, account, QoS, "
        "GPU type, constraint and the options passed to sbatch are equal, "
        f"time limits differ by no more than {TIME_RATIO} times, "
        "and none asks for more than MaxTime or all do"
    )


def ask(
    jobs: Sequence[Job],
    profiles: Mapping[int, UsageProfile],
    capacity: Capacity,
    policy: Policy,
    calibration: Calibration | None = None,
    *,
    curves: Sequence[KnownCurve] = (),
) -> Question:
    """What planning is asked, with `%limit` of an array counted into the degree."""
    limit = policy.running_limit
    if limit is not None:
        policy = replace(
            policy, degree=min(policy.degree, limit), degree_max=min(policy.degree_max, limit)
        )
    return Question(jobs, profiles, capacity, policy, calibration, curves)


def find_buckets(question: Question) -> list[list[int]]:
    """The jobs that may share, those together that may share with each other."""
    buckets: dict[object, list[int]] = {}
    for index, key in find_keys(question).items():
        buckets.setdefault(key, []).append(index)
    return list(buckets.values())


@dataclass(frozen=True)
class BucketKey:
    """What jobs must agree in to share.

    Attributes:
        group: What Slurm must be asked once for.
        gpu_type: The GPU type.
        is_over: They ask for more than MaxTime.
        longest_s: The longest time limit of the jobs that are so grouped by duration, in seconds;
            None where they have none.
    """

    group: object
    gpu_type: str | None
    is_over: bool
    longest_s: int | None


def find_keys(question: Question) -> dict[int, BucketKey]:
    """What jobs that may share agree in, by index; those of equal keys may share.

    By duration they are grouped from the longest on, so that the order of the call is of no
    consequence.
    """
    keys = {
        index: BucketKey(
            job.group,
            job.gpu_type,
            asks_over_max_time(job, question.capacity),
            _round_up(choose_time_limit_s(job, question.capacity)),
        )
        for index, job in enumerate(question.jobs)
        if not compute_reason_to_run_alone(job, question.policy)
    }
    alike: dict[BucketKey, set[int]] = {}
    for key in keys.values():
        if key.longest_s is not None:
            alike.setdefault(replace(key, longest_s=None), set()).add(key.longest_s)
    longest: dict[BucketKey, BucketKey] = {}
    for common, limits_s in alike.items():
        top_s = 0
        for limit_s in sorted(limits_s, reverse=True):
            if limit_s * TIME_RATIO < top_s or not top_s:
                top_s = limit_s
            own = replace(common, longest_s=limit_s)
            longest[own] = replace(common, longest_s=top_s)
    return {index: longest.get(key, key) for index, key in keys.items()}


def _round_up(limit_s: int | None) -> int | None:
    return None if limit_s is None else max(SHORT_S, limit_s)


def asks_over_max_time(job: Job, capacity: Capacity) -> bool:
    """Whether Slurm will not start a job for its time limit: then no other may wait with it."""
    limit_s = capacity.time_limit_max_s
    return limit_s is not None and (job.is_unlimited or (job.time_limit_s or 0) > limit_s)


def _describe_late(late: Sequence[Job], capacity: Capacity) -> str:
    """That Slurm does not start jobs that ask for more than MaxTime."""
    first = late[0]
    asked = "no time limit" if first.is_unlimited else f"{first.time_limit_s} s"
    others = f" and {format_count(len(late) - 1, 'more job')}" if len(late) > 1 else ""
    return (
        f"{first.name}{others}: {asked} is asked for, MaxTime here is "
        f"{capacity.time_limit_max_s} s, so Slurm will not start it"
    )


def compute_reason_to_run_alone(job: Job, policy: Policy) -> str:
    """Say why a job gets an allocation of its own, or an empty string if it may share."""
    if job.alone_because:
        return job.alone_because
    if not job.came_together:
        return "a single script runs alone unless another joins it, or it joins one (--join)"
    reason = explain_gpu_count(job, policy)
    if reason:
        return reason
    if policy.degree == 1 and (policy.pack_size or 1) == 1 and not policy.has_gpu_sets:
        if policy.mode is SharingMode.EXCLUSIVE:
            return "each job gets a GPU of its own (share=exclusive)"
        return "the degree is 1"
    if policy.pack_time_max_s is not None:
        if job.is_unlimited:
            return f"it asks for no time limit, packs get {policy.pack_time_max_s} s here"
        if (job.time_limit_s or 0) > policy.pack_time_max_s:
            return f"it asks for {job.time_limit_s} s, packs get {policy.pack_time_max_s} s here"
    return ""


def explain_gpu_count(job: Job, policy: Policy) -> str:
    """Why a job may not share for the number of its GPUs; empty where it may."""
    if not job.gpus:
        return "it asks for no GPU"
    if job.gpus == 1:
        return ""
    if policy.mode is SharingMode.MIG:
        return f"it asks for {job.gpus} GPUs, and MIG instances are parts of one"
    if not (policy.measures or policy.degree_is_asked):
        return f"it asks for {job.gpus} GPUs, and nothing measures here whether sharing them pays"
    return ""


def find_first(pack: PackPlan) -> int:
    """The first job of a pack, in the user's order."""
    return min(member.job_index for member in pack.members)


def _count_running(packs: Sequence[PackPlan]) -> int:
    """How many members the packs of one Slurm job run at once."""
    return sum(pack.degree for pack in packs)


def _plan_bucket(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    if len(indices) == 1:
        # It gets what it asked for: no share of a node, no stretched time.
        return [build_lone_pack(indices[0], question.jobs[indices[0]], _NOBODY)]
    has_several = question.policy.has_gpu_sets or any(
        question.jobs[index].gpus > 1 for index in indices
    )
    if has_several:
        from slurm_colloc.planning.gpu_set_packs import plan_gpu_sets

        return plan_gpu_sets(question, indices, _plan_alike)
    return _plan_alike(question, indices)


def _plan_alike(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Packs of jobs that may share with each other, each on GPUs of its own."""
    layout = ShareRequest.parse(question.policy.share).layout
    if layout and question.policy.mode is SharingMode.MIG:
        from slurm_colloc.planning.instance_packs import plan_on_layout

        return plan_on_layout(question, compute_needs(question, indices), layout)
    if question.calibration is None or not question.profiles:
        return plan_unknown(question, indices)
    # What needs no search does without loading it.
    from slurm_colloc.planning.known_packs import plan_by_loads

    return plan_by_loads(question, indices)
