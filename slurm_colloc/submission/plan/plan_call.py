"""The plan of a call: what is known of its jobs, what a GPU brings, and what waits in the queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import PackPlan, Plan, Policy, Rule, SharingMode
from slurm_colloc.model.queue_waits import WaitTable, build_wait_table
from slurm_colloc.planning.gpu_sets.gpus_per_pack import (
    choose_gpus_per_pack,
    widen_for_limit,
)
from slurm_colloc.planning.gpu_sets.slurm_jobs import number_slurm_jobs
from slurm_colloc.planning.plan_packs import ask, describe_groups, find_buckets, find_first, plan
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.accounting import read_history
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.learned.kept_answers import keep, read_kept
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.jobs.output_files import refuse_shared_files
from slurm_colloc.submission.plan.known_jobs import Knowledge
from slurm_colloc.submission.plan.planned_pack import PlannedPack, add_candidates
from slurm_colloc.submission.plan.split_call import Part, divide_call
from slurm_colloc.submission.plan.target_nodes import Destinations, describe_asked_type

_CHOSEN_AMONG_MOST = 100
"""For more jobs no second plan is made: it would take as long as the first."""


@dataclasses.dataclass(frozen=True)
class PlannedPart:
    """A part of a call, and its plan.

    Attributes:
        part: The part.
        plan: Its plan, whose members are counted among the jobs of the part.
        policy: How far sharing may go in it.
        waits: How long requests wait in its partition; None where that was not asked.
    """

    part: Part
    plan: Plan
    policy: Policy
    waits: WaitTable | None = None


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """The plan of a call, and what it was made with.

    Attributes:
        plan: The plan, whose members are counted among the jobs of the call.
        packs: Its packs, each with its members' jobs.
        jobs: The jobs, in the user's order.
        policy: How far sharing may go.
        parts: The parts of the call, in order of their first jobs.
    """

    plan: Plan
    packs: tuple[PlannedPack, ...]
    jobs: tuple[Job, ...]
    policy: Policy
    parts: tuple[PlannedPart, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with files that were passed over, a sentence each."""
        return _gather(planned.part.knowledge.problems for planned in self.parts)

    def find_part(self, pack: PackPlan) -> PlannedPart:
        """The part to which a pack of the plan belongs."""
        if len(self.parts) == 1:
            return self.parts[0]
        first = pack.members[0].job_index
        return next(planned for planned in self.parts if first in planned.part.indices)


def plan_call(
    call: Call,
    policy: Policy,
    settings: Settings,
    slurm: SlurmAccess | None,
    *,
    looks_at_queue: bool = False,
) -> CallPlan:
    """Plan a call; asks Slurm about its nodes, and how long jobs wait, only if something may share.

    Args:
        call: The call.
        policy: How far sharing may go.
        settings: The settings.
        slurm: Slurm; None where packs run without it.
        looks_at_queue: Also ask how long jobs wait where that changes nothing.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        NoPackPossible: A job asks for more GPU memory than the GPU has.
        UsageProblem: Two members would write one file, or an option has a wrong value.
    """
    parts = divide_call(
        call.candidates,
        settings,
        Destinations(settings, slurm),
        keeps_whole=call.array is not None and call.array.limit is not None,
        gpus_asked=policy.gpus_asked,
    )
    planned = tuple(
        _plan_part(part, policy, settings, slurm, looks_at_queue=looks_at_queue) for part in parts
    )
    chosen = _merge(planned, policy)
    packs = add_candidates(chosen.packs, call.candidates)
    refuse_shared_files(
        [
            candidate.job
            for pack in packs
            if pack.plan.request is not None and (slurm is not None or len(pack.candidates) > 1)
            for candidate in pack.candidates
        ]
    )
    jobs = tuple(candidate.job for candidate in call.candidates)
    return CallPlan(chosen, packs, jobs, policy, planned)


def _plan_part(
    part: Part,
    policy: Policy,
    settings: Settings,
    slurm: SlurmAccess | None,
    *,
    looks_at_queue: bool,
) -> PlannedPart:
    choice = choose_gpus_per_pack(part.jobs, part.capacity, policy)
    policy = dataclasses.replace(policy, gpus_per_pack=choice.gpus)
    chosen = _plan(part, policy)
    is_open = policy.gpus_asked == "auto" and policy.mode is not SharingMode.MIG
    if is_open and not policy.has_gpu_sets:
        wider = widen_for_limit(chosen, part.capacity)
        if wider is not None:
            choice, policy = wider, dataclasses.replace(policy, gpus_per_pack=wider.gpus)
            chosen = _plan(part, policy)
    if choice.reason and any(pack.request is not None for pack in chosen.packs):
        chosen = dataclasses.replace(chosen, reasons=(*chosen.reasons, choice.reason))
    waits = None
    smaller = _choose_smaller(chosen, policy) if slurm is not None else None
    if slurm is not None and (smaller is not None or looks_at_queue):
        waits = look_up_waits(dict(part.jobs[0].group).get("partition"), settings.state_path)
        if smaller is not None and waits.cells:
            from slurm_colloc.planning.predict.queue_gain import choose_by_queue

            other = _plan(part, smaller)
            chosen, reason = choose_by_queue((chosen, other), waits)
            if reason:
                policy = smaller
                chosen = dataclasses.replace(chosen, reasons=(*chosen.reasons, reason))
    return PlannedPart(part, chosen, policy, waits)


def _plan(part: Part, policy: Policy) -> Plan:
    knowledge = part.knowledge
    chosen = plan(
        part.jobs,
        knowledge.profiles,
        part.capacity,
        policy,
        knowledge.calibration,
        curves=knowledge.curves,
    )
    packs = (_complete_lone(pack, knowledge) for pack in chosen.packs)
    if part.asks_for is not None:
        packs = (
            _settle_asked_type(
                pack,
                part.asks_for,
                in_array=part.jobs[pack.members[0].job_index].array_task is not None,
            )
            for pack in packs
        )
    return dataclasses.replace(chosen, packs=tuple(packs))


def _settle_asked_type(pack: PackPlan, gpu_type: str, *, in_array: bool) -> PackPlan:
    """A pack of several asks for the GPUs of its profiles, and says so; a job alone for any.

    A task alone asks as the packs of its array do, so that the array stays one Slurm job.
    """
    if pack.request is None:
        return pack
    if len(pack.members) == 1 and pack.slurm_job is None and not in_array:
        return dataclasses.replace(pack, request=dataclasses.replace(pack.request, gpu_type=None))
    return dataclasses.replace(pack, reasons=(*pack.reasons, describe_asked_type(gpu_type)))


def _merge(parts: Sequence[PlannedPart], policy: Policy) -> Plan:
    """The plan of a call, of those of its parts; packs are in order of their first job."""
    packs = number_slurm_jobs(_list_packs(planned) for planned in parts)
    limits = [p.plan.packs_at_once for p in parts if p.plan.packs_at_once is not None]
    groups = [
        len(find_buckets(ask(planned.part.jobs, {}, planned.part.capacity, policy)))
        for planned in parts
    ]
    # Said once, of the whole call.
    of_parts = set(map(describe_groups, groups))
    reasons = [r for r in _gather(planned.plan.reasons for planned in parts) if r not in of_parts]
    if sum(groups) > 1:
        reasons.append(describe_groups(sum(groups)))
    reasons += _gather((*p.part.reasons, *p.part.knowledge.reasons) for p in parts)
    reasons += (f"ignored: {p}" for p in _gather(p.part.knowledge.problems for p in parts))
    return Plan(tuple(sorted(packs, key=find_first)), min(limits, default=None), tuple(reasons))


def _list_packs(planned: PlannedPart) -> Sequence[PackPlan]:
    """The packs of a part, with their members counted among all jobs of the call."""
    indices = planned.part.indices
    if indices == tuple(range(len(indices))):
        return planned.plan.packs
    return [_renumber(pack, indices) for pack in planned.plan.packs]


def _renumber(pack: PackPlan, indices: Sequence[int]) -> PackPlan:
    members = (
        dataclasses.replace(member, job_index=indices[member.job_index]) for member in pack.members
    )
    return dataclasses.replace(pack, members=tuple(members))


def _gather(texts: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    """Each text once, in order."""
    return tuple(dict.fromkeys(text for several in texts for text in several))


def _choose_smaller(chosen: Plan, policy: Policy) -> Policy | None:
    """The policy for packs half as large, where a shorter time limit may be worth them.

    None where nothing is predicted of the plan, or the user has said how it is to be.
    """
    largest = max((pack.degree for pack in chosen.packs), default=1)
    jobs = sum(len(pack.members) for pack in chosen.packs)
    if policy.rule is not Rule.CSUB or policy.degree_is_asked or policy.pack_size is not None:
        return None
    if policy.has_gpu_sets:
        return None
    if largest < 2 or jobs > _CHOSEN_AMONG_MOST:
        return None
    if any(pack.predicted_finish_s is None for pack in chosen.packs):
        return None
    return dataclasses.replace(policy, degree_max=-(-largest // 2), is_small_for_queue=True)


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


def look_up_waits(partition: str | None, root: Path) -> WaitTable:
    """How long requests wait in a partition, as far as Slurm's accounting tells.

    Args:
        partition: The partition; None for the default one, of which all partitions tell.
        root: The state directory, which keeps the answer.
    """
    name = f"of-{partition or ''}"
    kept = read_kept(root, name, partition, WaitTable)
    if kept is not None:
        return kept
    jobs, unknown = read_history(partition)
    table = WaitTable(0, {}, unknown) if unknown else build_wait_table(jobs)
    keep(root, name, partition, table)
    return table
