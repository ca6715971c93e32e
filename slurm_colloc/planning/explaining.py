"""Why a plan looks as it does, in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, PackPlan, Plan, Policy, UsageProfile
from slurm_colloc.planning.apart import explain_pairs
from slurm_colloc.planning.explanation import MemberExplanation, PackExplanation, PlanExplanation
from slurm_colloc.planning.grouping import ask
from slurm_colloc.planning.limits import compute_usable_gpu_memory_mb
from slurm_colloc.planning.needs import Question, build_load, build_subject, has_run_s


def build_explanation(  # noqa: PLR0917 - what plan() was given, and its answer
    plan: Plan,
    jobs: Sequence[Job],
    profiles: Mapping[int, UsageProfile],
    capacity: Capacity,
    policy: Policy,
    calibration: Calibration | None = None,
) -> PlanExplanation:
    """Explain a plan, given all that it was made of.

    Args:
        plan: The plan.
        jobs: What came in one call, in the user's order.
        profiles: What is known of a job's solo use, by index into `jobs`.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        calibration: How jobs slow each other down on that GPU; None where that is unknown.
    """
    question = ask(jobs, profiles, capacity, policy, calibration)
    pairs, left_out = explain_pairs(plan, question)
    return PlanExplanation(
        tuple(_explain_pack(pack, question) for pack in plan.packs), pairs, left_out, plan.reasons
    )


def _explain_pack(pack: PackPlan, question: Question) -> PackExplanation:
    members = tuple(_explain_member(pack, place, question) for place in range(len(pack.members)))
    running = members[: pack.degree]
    slowdowns = [member.slowdown for member in running]
    known = [slowdown for slowdown in slowdowns if slowdown]
    return PackExplanation(
        members=members,
        mode=pack.mode,
        degree=pack.degree,
        start_degree=pack.start_degree,
        known=pack.known,
        normalised_progress=(
            sum(1.0 / slowdown for slowdown in known) if len(known) == len(running) else None
        ),
        gpu_memory_mb=_sum_ints([member.gpu_memory_mb for member in running]),
        gpu_memory_usable_mb=compute_usable_gpu_memory_mb(question.capacity.gpu_memory_mb),
        sm_activity=_sum_floats([member.sm_activity for member in running]),
        dram_activity=_sum_floats([member.dram_activity for member in running]),
        predicted_finish_s=pack.predicted_finish_s,
        time_limit_s=pack.request.time_limit_s if pack.request else None,
        reasons=pack.reasons,
    )


def _explain_member(pack: PackPlan, place: int, question: Question) -> MemberExplanation:
    planned = pack.members[place]
    job = question.jobs[planned.job_index]
    profile = question.profiles.get(planned.job_index, UsageProfile())
    slowdown, rate = planned.predicted_slowdown, planned.solo_steps_per_s
    load = build_load(profile)
    subject = build_subject(question, planned.job_index)
    return MemberExplanation(
        job_index=planned.job_index,
        number=job.number,
        name=job.name,
        known_by=profile.known_by,
        slowdown=slowdown,
        max_slowdown=planned.max_slowdown,
        solo_steps_per_s=rate,
        predicted_steps_per_s=rate / slowdown if rate is not None and slowdown else None,
        run_s=subject.run_s if pack.known and has_run_s(profile) else None,
        thread_percentage=planned.thread_percentage,
        gpu_memory_mb=planned.gpu_memory_limit_mb or subject.gpu_memory_mb,
        sm_activity=load.sm / slowdown if load and slowdown else None,
        dram_activity=load.dram / slowdown if load and slowdown else None,
        cpus=planned.cpus,
        wall_limit_s=planned.wall_limit_s,
    )


def _sum_ints(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_floats(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
