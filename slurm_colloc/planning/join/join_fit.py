"""Whether a job may join a pack that is already there, and fits into one that waits; pure.

A pack that waits is planned anew with the job in it, and asks Slurm for what it then needs. One
that runs has what it has: see `planning.join.free_place`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, PackPlan, Policy, Rule, UsageProfile
from slurm_colloc.planning.job_needs import Question, build_subject, compute_need
from slurm_colloc.planning.pack_request import find_cut_gpu
from slurm_colloc.planning.plan_packs import compute_reason_to_run_alone
from slurm_colloc.planning.priced_packs import Subject
from slurm_colloc.planning.unknown_packs import build_unknown_pack, compute_refusal


def compute_reason_not_to_join(job: Job, policy: Policy) -> str:
    """Say why a job joins no pack, and why none joins its own; empty if it may."""
    if policy.rule is not Rule.CSUB:
        return f"the rule {policy.rule} makes its pack, and does not allow joining"
    reason = compute_reason_to_run_alone(dataclasses.replace(job, came_together=True), policy)
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
    return dataclasses.replace(
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
    return dataclasses.replace(new, max_slowdown=call.slowdown_bound)


def plan_pending_join(
    present: Sequence[Job],
    new: Job,
    capacity: Capacity,
    policy: Policy,
    *,
    profiles: Mapping[int, UsageProfile] | None = None,
    calibration: Calibration | None = None,
) -> PackPlan | str:
    """Plan a waiting pack with one more job.

    Args:
        present: The jobs that are in it.
        new: The job that is to join.
        capacity: What one GPU brings with it.
        policy: How far sharing may go, of pack and job (see `merge_policies`).
        profiles: What is known of the jobs' solo use: those present by their index, the new one
            after them.
        calibration: How jobs slow each other down on that GPU.

    Returns:
        The pack with all of them, members in this order; or the limits that they would break.
    """
    jobs = [*present, new]
    question = Question(jobs, profiles or {}, capacity, policy, calibration)
    subjects = find_known(question)
    if subjects:
        return _plan_known_join(question, subjects)
    mixture = find_mixture(question)
    if mixture:
        return mixture
    if len(jobs) > policy.degree and (policy.pack_size or 0) <= policy.degree:
        return f"all {policy.degree} places are taken"
    needs = [
        compute_need(
            job,
            index,
            capacity,
            policy,
            profile=question.profiles.get(index),
        )
        for index, job in enumerate(jobs)
    ]
    refusal = compute_refusal(needs, question, find_cut_gpu(question, range(len(jobs))))
    return refusal or build_unknown_pack(question, needs, "")


def find_known(question: Question) -> list[Subject]:
    """The jobs, if the loads of all are known; else none."""
    if question.calibration is None or len(question.profiles) < len(question.jobs):
        return []
    from slurm_colloc.planning.known_packs import is_known

    subjects = [build_subject(question, index) for index in range(len(question.jobs))]
    return subjects if all(is_known(subject) for subject in subjects) else []


def find_mixture(question: Question) -> str:
    """Why jobs of known and of unknown load are not put together; empty where they are not both."""
    if question.calibration is None or not question.profiles:
        return ""
    from slurm_colloc.planning.known_packs import is_known
    from slurm_colloc.planning.limits.broken_limits import build_unknown

    known = [is_known(build_subject(question, index)) for index in range(len(question.jobs))]
    if not any(known):
        return ""
    return build_unknown(question.jobs[known.index(False)].name).text


def _plan_known_join(question: Question, subjects: Sequence[Subject]) -> PackPlan | str:
    from slurm_colloc.planning.known_packs import build_known_pack, weigh

    weighing = weigh(question, subjects)
    members = range(len(subjects))
    priced = weighing.pricing.price(members)
    if priced is None:
        broken = weighing.find_broken(members, [job.name for job in question.jobs])
        return "; ".join(b.text for b in broken)
    return build_known_pack(question, subjects, priced)
