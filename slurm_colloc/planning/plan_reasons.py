"""Why a plan looks as it does, in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import asdict
from slurm_colloc.model.measured_curve import KnownCurve
from slurm_colloc.model.measurement import may_be_measured
from slurm_colloc.model.plan import (
    Capacity,
    KnownBy,
    PackPlan,
    Plan,
    Policy,
    UsageProfile,
    is_watched,
)
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.explanation import (
    MemberExplanation,
    PackExplanation,
    PlanExplanation,
    SeatExplanation,
)
from slurm_colloc.planning.hard_limits import Limits, Subject, compute_usable_gpu_memory_mb
from slurm_colloc.planning.job_needs import (
    Question,
    are_timed,
    build_load,
    build_subject,
    has_only_rate,
    has_power,
    has_run_s,
)
from slurm_colloc.planning.pack_pricing import SETUP_S, Pricing
from slurm_colloc.planning.pair_reasons import explain_pairs
from slurm_colloc.planning.plan_packs import ask

_J_PER_WH = 3600
_Number = TypeVar("_Number", int, float)


def build_explanation(  # noqa: PLR0917 - what plan() was given, and its answer
    plan: Plan,
    jobs: Sequence[Job],
    profiles: Mapping[int, UsageProfile],
    capacity: Capacity,
    policy: Policy,
    calibration: Calibration | None = None,
    labels: Sequence[str] | None = None,
    *,
    curves: Sequence[KnownCurve] = (),
) -> PlanExplanation:
    """Explain a plan, given all that it was made of.

    Args:
        plan: The plan.
        jobs: What came in one call, in the user's order.
        profiles: What is known of a job's solo use, by index into `jobs`.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        calibration: How jobs slow each other down on that GPU; None where that is unknown.
        labels: What the jobs are called in sentences; see `explain_pairs`.
        curves: What earlier packs there have measured.
    """
    question = ask(jobs, profiles, capacity, policy, calibration, curves=curves)
    pairs, left_out = explain_pairs(plan, question, labels)
    # Of no limits: it only tells what energy the work of each job takes.
    subjects = [build_subject(question, index) for index in range(len(jobs))]
    pricing = Pricing(subjects, Limits(), calibration)
    packs = tuple(_explain_pack(pack, question, pricing) for pack in plan.packs)
    return PlanExplanation(packs, pairs, left_out, plan.reasons, plan.packs_at_once)


def _is_measured(pack: PackPlan, question: Question) -> bool:
    """How many run at once is found out as it starts, by the rule that its runner goes by."""
    policy = question.policy
    if pack.degree < 2 or pack.layout:
        return False
    if pack.request is not None and not is_watched(pack.request.host_memory_mb):
        return False
    if not any(may_be_measured(question.jobs[member.job_index]) for member in pack.members):
        return False
    # Jobs of known rate and unknown activity ask for no time on top, and are measured all the same.
    return policy.measures or (not pack.known and policy.measure_s > 0)


def _explain_pack(pack: PackPlan, question: Question, pricing: Pricing) -> PackExplanation:
    subjects = pricing.subjects
    members = tuple(
        _explain_member(pack, place, question, subjects[member.job_index])
        for place, member in enumerate(pack.members)
    )
    running = members[: pack.degree]
    slowdowns = [member.slowdown for member in running]
    known = [slowdown for slowdown in slowdowns if slowdown]
    return PackExplanation(
        members=members,
        mode=pack.mode,
        degree=pack.degree,
        is_measured=_is_measured(pack, question),
        known=pack.known,
        normalised_progress=(
            sum(1.0 / slowdown for slowdown in known) if len(known) == len(running) else None
        ),
        gpu_memory_mb=_sum_known([member.gpu_memory_mb for member in running]),
        gpu_memory_usable_mb=compute_usable_gpu_memory_mb(question.capacity.gpu_memory_mb),
        sm_activity=_sum_known([member.sm_activity for member in running]),
        dram_activity=_sum_known([member.dram_activity for member in running]),
        pcie_share=_sum_known([member.pcie_share for member in running]),
        disk_share=_sum_known([member.disk_share for member in running]),
        predicted_finish_s=(
            None
            if pack.predicted_finish_s is None
            else pack.predicted_finish_s + SETUP_S[pack.mode]
        ),
        energy_wh=_compute_energy_wh(pack, question, pricing),
        time_limit_s=pack.request.time_limit_s if pack.request else None,
        reasons=pack.reasons,
        layout=_explain_layout(pack, question.jobs),
        gpus=pack.request.gpus if pack.request else max(member.gpus for member in pack.members),
        slurm_job=pack.slurm_job,
        cpus=pack.request.cpus if pack.request else None,
        host_memory_mb=pack.request.host_memory_mb if pack.request else None,
        open_for=pack.open_for,
    )


def _explain_layout(pack: PackPlan, jobs: Sequence[Job]) -> tuple[SeatExplanation, ...]:
    """Who sits where: the members that start at once, each on an instance of its word."""
    free = [
        (member.instance, jobs[member.job_index].number) for member in pack.members[: pack.degree]
    ]
    seats = []
    for instance in pack.layout:
        mine = [one for one in free if one[0] == instance.word][: instance.places]
        for one in mine:
            free.remove(one)
        numbers = tuple(number for _, number in mine)
        seats.append(
            SeatExplanation(
                **asdict(instance),
                number=numbers[0] if numbers else None,
                others=numbers[1:],
            )
        )
    return tuple(seats)


def _compute_energy_wh(pack: PackPlan, question: Question, pricing: Pricing) -> float | None:
    """What `--goal=energy` counts of a pack, in watt hours; None where a figure is unknown."""
    indices = [member.job_index for member in pack.members]
    subjects = [pricing.subjects[index] for index in indices]
    if not are_timed(question, subjects) or not has_power(question, indices):
        return None
    if any(subject.load is None for subject in subjects):
        return None
    finish_s = pack.predicted_finish_s
    if finish_s is None:
        if len(subjects) > 1:
            return None
        finish_s = subjects[0].run_s
    key = tuple(pricing.kind_of[index] for index in indices)
    energy_j = pricing.compute_pack_energy_j(key, finish_s, pack.mode)
    return None if energy_j is None else energy_j / _J_PER_WH


def _explain_member(
    pack: PackPlan, place: int, question: Question, subject: Subject
) -> MemberExplanation:
    planned = pack.members[place]
    job = question.jobs[planned.job_index]
    profile = question.profiles.get(planned.job_index, UsageProfile())
    slowdown, rate = planned.predicted_slowdown, planned.solo_steps_per_s
    load = build_load(profile, question.calibration)
    tells_length = pack.known or has_only_rate(profile)
    return MemberExplanation(
        job_index=planned.job_index,
        number=job.number,
        name=job.name,
        known_by=profile.known_by,
        slowdown=slowdown,
        max_slowdown=planned.max_slowdown,
        solo_steps_per_s=rate,
        predicted_steps_per_s=rate / slowdown if rate is not None and slowdown else None,
        run_s=subject.run_s if tells_length and has_run_s(profile) else None,
        thread_percentage=planned.thread_percentage,
        gpu_memory_mb=planned.gpu_memory_limit_mb or subject.gpu_memory_mb,
        sm_activity=load.sm / slowdown if load and slowdown else None,
        dram_activity=load.dram / slowdown if load and slowdown else None,
        pcie_share=(
            load.pcie / slowdown if load and slowdown and profile.pcie_share is not None else None
        ),
        disk_share=(
            load.disk / slowdown if load and slowdown and profile.disk_share is not None else None
        ),
        cpus=planned.cpus,
        wall_limit_s=planned.wall_limit_s,
        gpu_memory_by=_find_gpu_memory_source(job, profile),
        instance=planned.instance,
    )


def _find_gpu_memory_source(job: Job, profile: UsageProfile) -> str | None:
    if job.gpu_memory_mb is not None:
        return KnownBy.STATED.value
    return profile.gpu_memory_by.value if profile.gpu_memory_peak_mb else None


def _sum_known(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
