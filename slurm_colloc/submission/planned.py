"""The plan of a call: what is known of its jobs, what a GPU brings, and what waits in the queue."""

from __future__ import annotations

import dataclasses

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, PackPlan, Plan, Policy, Rule
from slurm_colloc.model.waits import WaitTable
from slurm_colloc.planning.grouping import plan
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.access import SlurmAccess
from slurm_colloc.submission.collect import Call
from slurm_colloc.submission.knowledge import Knowledge, gather_knowledge
from slurm_colloc.submission.output_files import refuse_shared_files
from slurm_colloc.submission.policy import choose_policy, read_capacity

_CHOSEN_AMONG_MOST = 100
"""For more jobs no second plan is made: it would take as long as the first."""


@dataclasses.dataclass(frozen=True)
class Planning:
    """What a call was planned with, and what came of it.

    Attributes:
        plan: The plan.
        jobs: The jobs, in the user's order.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        knowledge: What is known of the jobs.
        waits: How long requests wait in the partition; None where that was not asked.
    """

    plan: Plan
    jobs: tuple[Job, ...]
    capacity: Capacity
    policy: Policy
    knowledge: Knowledge
    waits: WaitTable | None = None


def make_plan(call: Call, settings: Settings, slurm: SlurmAccess | None) -> Plan:
    """Plan a call; see `plan_call`."""
    return plan_call(call, settings, slurm).plan


def plan_call(
    call: Call,
    settings: Settings,
    slurm: SlurmAccess | None,
    policy: Policy | None = None,
    *,
    looks_at_queue: bool = False,
) -> Planning:
    """Plan a call; asks Slurm about its nodes, and how long jobs wait, only if something may share.

    Args:
        call: The call.
        settings: The settings.
        slurm: Slurm; None where packs run without it.
        policy: Another policy than the call's own.
        looks_at_queue: Also ask how long jobs wait where that changes nothing.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        NoPackPossible: A job asks for more GPU memory than the GPU has.
        UsageProblem: Two members would write one file, or an option has a wrong value.
    """
    jobs = [candidate.job for candidate in call.candidates]
    capacity = Capacity()
    first = next((job for job in jobs if job.came_together and job.gpus == 1), None)
    if first is not None:
        capacity = read_capacity(first, settings, slurm)
    for job in jobs:
        if (
            job.gpu_memory_mb
            and capacity.gpu_memory_mb
            and job.gpu_memory_mb > capacity.gpu_memory_mb
        ):
            raise NoPackPossible(
                f"{job.script_name}: --gpu-mem={job.gpu_memory_mb}M is more than the GPU's "
                f"{capacity.gpu_memory_mb} MB",
                hint="ask for another GPU type, or for less",
            )
    knowledge = gather_knowledge(call.candidates, settings)
    if capacity.gpu_memory_mb is None and first is not None:
        # As the monitor saw it; what the site says comes first.
        capacity = dataclasses.replace(capacity, gpu_memory_mb=knowledge.gpu_memory_mb)
    policy = policy or choose_policy(call, settings)
    chosen = _plan(jobs, knowledge, capacity, policy)
    waits = None
    smaller = _choose_smaller(chosen, policy) if slurm is not None else None
    if slurm is not None and (smaller is not None or looks_at_queue):
        from slurm_colloc.submission.waits import look_up_waits

        waits = look_up_waits(dict(jobs[0].group).get("partition"), settings.state_path)
        if smaller is not None and waits.cells:
            from slurm_colloc.planning.queueing import choose_by_queue

            other = _plan(jobs, knowledge, capacity, smaller)
            chosen, reason = choose_by_queue((chosen, other), waits)
            if reason:
                policy = smaller
                chosen = dataclasses.replace(chosen, reasons=(*chosen.reasons, reason))
    if knowledge.reasons or knowledge.problems:
        told = (*chosen.reasons, *knowledge.reasons, *(f"ignored: {p}" for p in knowledge.problems))
        chosen = dataclasses.replace(chosen, reasons=told)
    refuse_shared_files(
        jobs[member.job_index]
        for pack in chosen.packs
        if pack.request is not None and (slurm is not None or len(pack.members) > 1)
        for member in pack.members
    )
    return Planning(chosen, tuple(jobs), capacity, policy, knowledge, waits)


def _plan(jobs: list[Job], knowledge: Knowledge, capacity: Capacity, policy: Policy) -> Plan:
    chosen = plan(jobs, knowledge.profiles, capacity, policy, knowledge.calibration)
    packs = tuple(_complete_lone(pack, knowledge) for pack in chosen.packs)
    return dataclasses.replace(chosen, packs=packs)


def _choose_smaller(chosen: Plan, policy: Policy) -> Policy | None:
    """The policy for packs half as large, where a shorter time limit may be worth them.

    None where nothing is predicted of the plan, or the user has said how it is to be.
    """
    largest = max((pack.degree for pack in chosen.packs), default=1)
    jobs = sum(len(pack.members) for pack in chosen.packs)
    if policy.rule is not Rule.CSUB or policy.degree_is_asked or policy.pack_size is not None:
        return None
    if largest < 2 or jobs > _CHOSEN_AMONG_MOST:
        return None
    if any(pack.predicted_finish_s is None for pack in chosen.packs):
        return None
    return dataclasses.replace(policy, degree_max=-(-largest // 2))


def _complete_lone(pack: PackPlan, knowledge: Knowledge) -> PackPlan:
    """A job alone with what is known of it: its rate, for those that join it, and its end."""
    if len(pack.members) > 1:
        return pack
    (member,) = pack.members
    profile = knowledge.profiles.get(member.job_index)
    if profile is None:
        return pack
    if member.solo_steps_per_s is None:
        member = dataclasses.replace(member, solo_steps_per_s=profile.steps_per_s)
    return dataclasses.replace(
        pack,
        members=(member,),
        predicted_finish_s=pack.predicted_finish_s or profile.run_s,
    )
