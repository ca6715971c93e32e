"""MIG under `--share=auto`: only for jobs that would run alone because of what MPS does not hold.

That is a known culprit, whose fault would end its neighbours, and a job of known load for which
MPS would break a bound on slowdowns that an instance keeps. Loaded only where a site's nodes make
instances.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import MIG_INSTANCES_MAX, PackPlan, SharingMode
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.instance_packs import (
    build_instance_pack,
    merge_parts,
    plan_known,
    plan_seats,
)
from slurm_colloc.planning.job_needs import Question, build_subject, label_jobs
from slurm_colloc.planning.known_packs import build_needs, is_known, weigh
from slurm_colloc.planning.unknown_packs import fill_packs

_CULPRIT = (
    "MIG: under MPS a fault of these jobs would end their neighbours; in a MIG instance it ends "
    "only its own member"
)


def find_walled(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Packs on MIG instances for jobs that would all run alone; those that find no other are left.

    Args:
        question: What planning is asked.
        indices: Jobs that Slurm may be asked for together, each of which would run alone.
    """
    walled = _ask_with_walls(question)
    culprits = [index for index in indices if question.jobs[index].needs_wall]
    packs = _pack_culprits(walled, culprits)
    others = [index for index in indices if not question.jobs[index].needs_wall]
    return packs + _pack_slowed(question, walled, others)


def _ask_with_walls(question: Question) -> Question:
    """The same question where MIG is what is asked for."""
    policy = replace(
        question.policy,
        mode=SharingMode.MIG,
        modes=(SharingMode.MIG,),
        measures=False,
        degree_max=min(question.policy.degree_max, MIG_INSTANCES_MAX),
        degree=min(question.policy.degree, MIG_INSTANCES_MAX),
    )
    return replace(question, policy=policy)


def _pack_culprits(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    packs = []
    for needs, _ in fill_packs(question, indices) if len(indices) > 1 else ():
        subjects = [build_subject(question, need.index) for need in needs]
        planned = plan_seats(question, subjects) if len(subjects) > 1 else None
        if planned is not None:
            packs.append(build_instance_pack(question, needs, subjects, planned, notes=[_CULPRIT]))
    return packs


def _pack_slowed(question: Question, walled: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Jobs of known load that MPS would slow down too much, where an instance would not."""
    subjects = [build_subject(walled, index) for index in indices]
    subjects = [subject for subject in subjects if is_known(subject)]
    if len(subjects) < 2 or question.calibration is None:
        return []
    weighing = weigh(question, [build_subject(question, subject.index) for subject in subjects])
    limits = weigh(walled, subjects).limits
    alone = [(position,) for position in range(len(subjects))]
    labels = label_jobs((job.name, job.number) for job in question.jobs)
    names = [labels[subject.index] for subject in subjects]
    packs = []
    for part in merge_parts(walled, subjects, alone, limits, always=True):
        broken = weighing.find_broken(part, names) if len(part) > 1 else ()
        slow = next((one for one in broken if one.constraint == "slowdown"), None)
        members = sorted((subjects[i] for i in part), key=lambda s: (-s.run_s, s.index))
        planned = plan_known(walled, members) if slow is not None else None
        if slow is None or planned is None:
            continue
        source = _describe_source(question, members)
        note = f"MIG, as MPS would break a bound that instances keep: {slow.text}; {source}"
        needs = build_needs(walled, members)
        packs.append(build_instance_pack(walled, needs, members, planned, notes=[note]))
    return packs


def _describe_source(question: Question, members: Sequence[Subject]) -> str:
    """What the slowdown by MPS rests on: packs in which it was measured, or the model."""
    loads = [member.load for member in members if member.load is not None]
    if not any(load.sensitivity or load.pressure for load in loads):
        return "by the model of what each takes alone; no earlier pack has measured it"
    uncorrected = [
        replace(
            member,
            load=member.load and replace(member.load, sensitivity=0.0, pressure=0.0),
        )
        for member in members
    ]
    priced = weigh(question, uncorrected).price_freely(range(len(members)))
    by_model = "" if priced is None else f"; the model alone says {max(priced.slowdowns):.2f}"
    return f"as measured in earlier packs{by_model}"
