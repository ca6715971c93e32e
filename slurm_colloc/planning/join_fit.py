"""Whether a job may join a pack that is already there, and how it would stand in it; pure.

A pack that waits is planned anew with the job in it, and asks Slurm for what it then needs. One
that runs has what Slurm gave it, and members whose limits stand: the job gets a free place of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import (
    Capacity,
    MemberPlan,
    PackPlan,
    PackRequest,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.planning.hard_limits import Setting, Subject
from slurm_colloc.planning.job_needs import (
    Need,
    Question,
    build_limits,
    build_subject,
    choose_bound,
    choose_gpu_memory_mb,
    compute_needs,
)
from slurm_colloc.planning.pack_request import (
    compute_overload,
    compute_thread_percentage,
    compute_wall_limit_s,
    find_cut_gpu,
)
from slurm_colloc.planning.plan_packs import compute_reason_to_run_alone
from slurm_colloc.planning.unknown_packs import (
    build_unknown_pack,
    compute_refusal,
    is_open_ended,
    make_room,
)


def compute_reason_not_to_join(job: Job, policy: Policy) -> str:
    """Say why a job joins no pack, and why none joins its own; empty if it may."""
    if job.chain:
        return "it goes on in further Slurm jobs (--chain)"
    reason = compute_reason_to_run_alone(replace(job, came_together=True), policy)
    if not reason and job.gpus > 1:
        return f"it asks for {job.gpus} GPUs, and only jobs of one GPU join each other"
    return reason


def merge_policies(pack: Policy, call: Policy) -> Policy:
    """The policy of a pack with a joiner in it: the narrower of both, and time to measure either.

    How much slower jobs may get is theirs: see `settle_bound`.
    """
    degree = min(pack.degree, call.degree)
    size = pack.pack_size
    if size is None and (pack.degree_is_asked or call.degree_is_asked):
        size = pack.degree
    caps = [cap for cap in (pack.pack_time_max_s, call.pack_time_max_s) if cap is not None]
    return replace(
        pack,
        degree=degree,
        pack_size=None if size is None else max(size, degree),
        measure_s=max(pack.measure_s, call.measure_s),
        degree_is_asked=pack.degree_is_asked or call.degree_is_asked,
        degree_max=min(pack.degree_max, call.degree_max),
        pack_time_max_s=min(caps, default=None),
    )


def settle_bound(new: Job, pack: Policy, call: Policy) -> Job:
    """A joiner with the slowdown that it accepts: by its own call's policy, not by the pack's."""
    if new.max_slowdown is not None or call.slowdown_bound == pack.slowdown_bound:
        return new
    return replace(new, max_slowdown=call.slowdown_bound)


def plan_pending_join(question: Question) -> PackPlan | str:
    """Plan a waiting pack with one more job.

    Args:
        question: What planning is asked, of the jobs that are in it and, behind them, the new one;
            by the policy of pack and job (see `merge_policies`).

    Returns:
        The pack with all of them, members in this order; or the limits that they would break.
    """
    jobs, policy = question.jobs, question.policy
    subjects = find_known(question)
    if subjects:
        return _plan_known_join(question, subjects)
    if not is_open_ended(policy):
        if len(jobs) > policy.degree and (policy.pack_size or 0) <= policy.degree:
            return f"all {policy.degree} places are taken"
        return _plan_unknown_join(question, None)
    # As many may be in it as there are places; how many run at once is measured.
    _, room = make_room(question, compute_needs(question, range(len(jobs))), policy.degree_max)
    places = room or policy.degree
    if len(jobs) > places:
        return f"all {places} places are taken"
    degree = max(policy.degree, len(jobs))
    question = replace(question, policy=replace(policy, degree=degree))
    return _plan_unknown_join(question, len(jobs))


def find_known(question: Question) -> list[Subject]:
    """The jobs, if the loads of all are known; else none."""
    if question.calibration is None or len(question.profiles) < len(question.jobs):
        return []
    from slurm_colloc.planning.known_packs import is_known

    subjects = [build_subject(question, index) for index in range(len(question.jobs))]
    return subjects if all(is_known(subject) for subject in subjects) else []


def _plan_unknown_join(question: Question, places: int | None) -> PackPlan | str:
    """The pack of jobs of which not all are known, with so many places; or what they would break.

    Args:
        question: What planning is asked, of the jobs of this pack alone.
        places: None for as many as may run by the degree.
    """
    indices = range(len(question.jobs))
    needs = compute_needs(question, indices)
    refusal = compute_refusal(needs, question, find_cut_gpu(question, indices))
    return refusal or build_unknown_pack(question, needs, "", places)


def _plan_known_join(question: Question, subjects: Sequence[Subject]) -> PackPlan | str:
    from slurm_colloc.planning.known_packs import build_known_pack, weigh

    weighing = weigh(question, subjects)
    members = range(len(subjects))
    priced = weighing.pricing.price(members)
    if priced is None:
        broken = weighing.find_broken(members, [job.name for job in question.jobs])
        return "; ".join(b.text for b in broken)
    return build_known_pack(question, subjects, priced)


@dataclass(frozen=True)
class RunningPack:
    """What a running pack has.

    Attributes:
        request: What Slurm gave it.
        degree: Its places.
        time_left_s: Until its time limit; None for no limit.
        plans: The plans of its members that have not ended.
        mode: The sharing mode that holds in it.
    """

    request: PackRequest
    degree: int
    time_left_s: int | None
    plans: tuple[MemberPlan, ...]
    mode: SharingMode


def plan_running_join(pack: RunningPack, question: Question) -> MemberPlan | str:
    """Give a job a free place of a running pack, or say which limit is in the way.

    Args:
        pack: What the pack has.
        question: As for `plan_pending_join`; of the capacity only the GPU memory counts.
    """
    new, policy = question.jobs[-1], question.policy
    subjects = find_known(question)
    present = [_read_need(question, index, plan) for index, plan in enumerate(pack.plans)]
    (need,) = compute_needs(question, [len(present)])
    if new.host_memory_mb is None and pack.request.host_memory_mb is not None:
        # A place's part of what the pack has.
        share_mb = pack.request.host_memory_mb // max(1, pack.degree)
        need = replace(need, host_memory_mb=share_mb)
    degree = pack.degree if is_open_ended(policy) else min(pack.degree, policy.degree)
    if subjects:
        degree = min(pack.degree, build_limits(question, subjects).members or pack.degree)
        if subjects[-1].host_memory_mb is not None:
            need = replace(need, host_memory_mb=subjects[-1].host_memory_mb)
        present = [
            replace(old, gpu_memory_mb=subject.gpu_memory_mb)
            for old, subject in zip(present, subjects[:-1], strict=True)
        ]
    refusal = _find_overload(pack, [*present, need], degree, question.capacity)
    if refusal:
        return refusal
    # The node knows better how many may run at once where that is measured.
    percentage = compute_thread_percentage(pack.degree, pack.mode) if subjects else None
    slowdown = by_model = None
    if subjects:
        predicted = _predict_join(pack, question, subjects, _find_setting(pack, percentage))
        if isinstance(predicted, str):
            return predicted
        slowdown, by_model = predicted
    wall_s = compute_wall_limit_s(need, degree, policy, slowdown)
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
        percentage,
        max_slowdown=choose_bound(new, policy),
        solo_steps_per_s=question.profiles.get(len(present), UsageProfile()).steps_per_s,
        predicted_slowdown=slowdown,
        model_slowdown=by_model,
    )


def _find_overload(
    pack: RunningPack, needs: Sequence[Need], degree: int, capacity: Capacity
) -> str:
    """What of a running pack does not suffice for all of these, with both numbers, or ''."""
    if len(needs) > degree:
        return f"all {degree} places are taken"
    given = Capacity(
        cpus_per_gpu=pack.request.cpus,
        host_memory_mb_per_gpu=pack.request.host_memory_mb,
        gpu_memory_mb=capacity.gpu_memory_mb,
    )
    return compute_overload(needs, len(needs), given)


def _find_setting(pack: RunningPack, percentage: int | None) -> Setting:
    """How a running pack shares with one more member.

    The thread limits of those that run cannot be changed any more.
    """
    limits = [plan.thread_percentage or percentage for plan in pack.plans]
    if pack.mode is not SharingMode.MPS:
        limits = [None] * len(pack.plans)
    return Setting(pack.mode, (*limits, percentage))


def _predict_join(
    pack: RunningPack, question: Question, subjects: Sequence[Subject], setting: Setting
) -> tuple[float | None, float | None] | str:
    """How slow the new one gets, also by the model alone; or whose bound that would break."""
    from slurm_colloc.planning.broken_limits import find_too_slow, predict_setting
    from slurm_colloc.planning.pack_prediction import predict_by_model

    slowdowns = predict_setting(subjects, setting, question.calibration)
    if slowdowns is None:
        return None, None
    bounds = [plan.max_slowdown for plan in pack.plans]
    bounded = [
        subject if bound is None else replace(subject, max_slowdown=bound)
        for subject, bound in zip(subjects, [*bounds, None], strict=True)
    ]
    slow = find_too_slow([job.name for job in question.jobs], bounded, slowdowns)
    if slow is not None:
        return slow.text
    plain = predict_by_model(question, subjects, setting)
    return slowdowns[-1], None if plain is None else plain[-1]


def _read_need(question: Question, index: int, plan: MemberPlan) -> Need:
    """What a member of a running pack was given, and what it takes of the GPU's memory.

    That is less than its limit where only its first seconds had the peak.
    """
    job, profile = question.jobs[index], question.profiles.get(index)
    return Need(
        plan.job_index,
        plan.cpus,
        plan.host_memory_mb,
        choose_gpu_memory_mb(job, profile) or plan.gpu_memory_limit_mb,
        job.time_limit_s,
        job.max_slowdown,
    )
