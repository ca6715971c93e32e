"""Packs of jobs whose loads are known: by what the contention model predicts of them."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from slurm_colloc.model.plan import KnownBy, PackPlan, Policy, Rule, SharingMode, UsageProfile
from slurm_colloc.planning import rivals, search
from slurm_colloc.planning.declining import Declining
from slurm_colloc.planning.describing import describe_setting, describe_sources
from slurm_colloc.planning.limits import is_borrowed
from slurm_colloc.planning.needs import Need, Question, build_limits, build_subject
from slurm_colloc.planning.request import (
    SLOWDOWN_MARGIN,
    Prediction,
    build_lone_pack,
    build_pack,
    choose_degree,
)
from slurm_colloc.planning.subject import Priced, Setting, Subject
from slurm_colloc.planning.unknown import fill_packs, plan_unknown
from slurm_colloc.planning.weighing import Weighing, predict_setting

_MEASURED = (KnownBy.EXACT, KnownBy.FAMILY)
"""Who is known so is not probed: the node finds the same profile."""
_UNKNOWN_ALONE = "what it takes of a GPU is not known yet, and no other such job came with it"


def plan_by_loads(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Pack jobs that may share with each other, as far as their loads are known."""
    rule = question.policy.rule
    if rule is Rule.FIRST_FIT:
        return plan_unknown(dataclasses.replace(question, profiles={}), indices)
    subjects = [build_subject(question, index) for index in indices]
    if rule is not Rule.CSUB:
        return _plan_by_rival(question, subjects)
    known = [s for s in subjects if is_known(s) and question.calibration is not None]
    unknown = [s.index for s in subjects if not (is_known(s) and question.calibration is not None)]
    packs = _plan_known(question, known) if known else []
    if len(unknown) == 1 and known:
        job = question.jobs[unknown[0]]
        packs.append(build_lone_pack(unknown[0], job, _UNKNOWN_ALONE))
    elif unknown:
        packs += plan_unknown(question, unknown)
    return packs


def is_known(subject: Subject) -> bool:
    """Whether a job's load is known, and so is what it may take of the GPU's memory."""
    return subject.load is not None and subject.gpu_memory_mb is not None


def choose_modes(policy: Policy) -> tuple[SharingMode, ...]:
    """The sharing modes that may be chosen from."""
    modes = policy.modes or (policy.mode,)
    return tuple(mode for mode in modes if mode is not SharingMode.EXCLUSIVE)


def weigh(question: Question, subjects: Sequence[Subject]) -> Weighing:
    """The jobs of known load of a call that may share with each other."""
    return Weighing(
        subjects,
        build_limits(question, subjects),
        question.calibration,
        goal=question.policy.goal,
        modes=choose_modes(question.policy),
    )


def _plan_known(question: Question, subjects: Sequence[Subject]) -> list[PackPlan]:
    weighing = weigh(question, subjects)
    parts = search.partition(weighing.pricing)
    queue = _plan_queue(question, weighing, parts)
    if queue is not None:
        return queue
    declining = Declining(weighing, [question.jobs[s.index].name for s in subjects], parts)
    packs = []
    for members in parts:
        if len(members) == 1:
            packs.append(_build_lone(question, subjects[members[0]], declining.explain(members[0])))
            continue
        order = sorted(members, key=lambda i: (-subjects[i].run_s, subjects[i].index))
        priced = weighing.pricing.price(order)
        assert priced is not None
        is_full = len(order) == weighing.limits.members and len(parts) > 1
        closing = f"full with {len(order)} members" if is_full else ""
        packs.append(build_known_pack(question, [subjects[i] for i in order], priced, closing))
    return packs


_ALIKE = 0.1
"""Loads whose activities differ by no more than this, of the whole GPU, are those of like jobs."""


def _are_alike(subjects: Sequence[Subject]) -> bool:
    """Whether jobs can take each other's places: what they take of a GPU is about the same."""
    loads = [subject.load for subject in subjects if subject.load is not None]
    return len(loads) == len(subjects) and all(
        max(shares) - min(shares) <= _ALIKE
        for shares in (
            [load.engine for load in loads],
            [load.sm for load in loads],
            [load.dram for load in loads],
        )
    )


def _plan_queue(
    question: Question, weighing: Weighing, parts: Sequence[Sequence[int]]
) -> list[PackPlan] | None:
    """Packs in which members wait for a place; None where nobody asked, or jobs are unlike.

    Only like jobs can take each other's places without changing what was predicted.
    """
    policy, subjects = question.policy, weighing.subjects
    degree = max(len(members) for members in parts)
    if not policy.pack_size or policy.pack_size <= degree or degree == 1:
        return None
    if len({s.max_slowdown for s in subjects}) > 1 or not _are_alike(subjects):
        return None
    widest = next(members for members in parts if len(members) == degree)
    priced = weighing.pricing.price(widest)
    assert priced is not None
    setting = priced.setting
    percentage = setting.percentages[0]
    if len(set(setting.percentages)) > 1:
        return None
    position = {subject.index: subject for subject in subjects}
    packs = []
    asked = dataclasses.replace(policy, degree=degree)
    queued = dataclasses.replace(question, policy=asked)
    for needs, reason in fill_packs(queued, [s.index for s in subjects]):
        chosen = [position[need.index] for need in needs]
        if len(chosen) == 1:
            packs.append(_build_lone(question, chosen[0], "the packs before it are full"))
            continue
        at_once = choose_degree(needs, question.capacity, asked)
        running = Setting(setting.mode, (percentage,) * at_once)
        slowdowns = predict_setting(chosen[:at_once], running, question.calibration)
        if slowdowns is None or at_once == 1:
            return None
        worst = max(slowdowns)
        ends = [0.0] * at_once
        for subject in chosen:
            heapq.heapreplace(ends, ends[0] + subject.run_s * worst)
        prediction = _predict(
            question,
            chosen,
            Setting(setting.mode, (percentage,) * len(chosen)),
            (worst,) * len(chosen),
            max(ends),
        )
        plain = predict_by_model(question, chosen[:at_once], running)
        prediction = dataclasses.replace(
            prediction,
            degree=at_once,
            model_slowdowns=(max(plain),) * len(chosen) if plain else None,
            reasons=(
                describe_setting(
                    at_once, setting.mode, (percentage,), slowdowns, [chosen[0].max_slowdown]
                ),
                *describe_sources(question, chosen),
            ),
        )
        packs.append(
            build_pack(
                question.jobs, needs, question.capacity, asked, reason, prediction=prediction
            )
        )
    return packs


def _predict(
    question: Question,
    members: Sequence[Subject],
    setting: Setting,
    slowdowns: tuple[float, ...] | None,
    finish_s: float | None,
) -> Prediction:
    """What is known of a pack in which all members run at once."""
    profiles = [question.profiles.get(member.index, UsageProfile()) for member in members]
    reasons: list[str] = []
    if slowdowns is not None:
        count, limits = len(members), setting.percentages
        bounds = [member.max_slowdown for member in members]
        text = describe_setting(count, setting.mode, limits, slowdowns, bounds)
        reasons = [text, *describe_sources(question, members)]
    return Prediction(
        len(members),
        setting.mode,
        setting.percentages,
        slowdowns,
        tuple(profile.steps_per_s for profile in profiles),
        finish_s,
        tuple(reasons),
        may_probe=any(profile.known_by not in _MEASURED for profile in profiles),
        model_slowdowns=predict_by_model(question, members, setting) if slowdowns else None,
        is_borrowed=any(is_borrowed(profile, question.calibration) for profile in profiles),
    )


def predict_by_model(
    question: Question, members: Sequence[Subject], setting: Setting
) -> tuple[float, ...] | None:
    """Slowdowns without what earlier packs of the jobs showed; None where they showed nothing."""
    if not any(s.load and (s.load.sensitivity or s.load.pressure) for s in members):
        return None
    plain = [
        dataclasses.replace(
            subject, load=dataclasses.replace(subject.load, sensitivity=0.0, pressure=0.0)
        )
        if subject.load
        else subject
        for subject in members
    ]
    return predict_setting(plain, setting, question.calibration)


def build_known_pack(
    question: Question, members: Sequence[Subject], priced: Priced, closing_reason: str = ""
) -> PackPlan:
    """The pack of these members, in their order, in the setting that was chosen for it."""
    prediction = _predict(question, members, priced.setting, priced.slowdowns, priced.duration_s)
    return build_pack(
        question.jobs,
        build_needs(question, members),
        question.capacity,
        question.policy,
        closing_reason,
        prediction=prediction,
    )


def build_needs(question: Question, members: Sequence[Subject]) -> list[Need]:
    """What members of known load need; those who stated no host memory share what is left of it."""
    share = question.capacity.host_memory_mb_per_gpu
    unstated = [m for m in members if question.jobs[m.index].host_memory_mb is None]
    room = 0
    if share is not None and unstated:
        # What was measured says what fits together. It is no limit: it was measured while the job
        # was alone, often early in its run, so nobody is ended by it while there is room.
        taken = sum(member.host_memory_mb or 0 for member in members)
        room = max(0, share - taken) // len(unstated)
    needs = []
    for member in members:
        job = question.jobs[member.index]
        host_memory_mb = job.host_memory_mb
        if host_memory_mb is None and share is not None:
            host_memory_mb = (member.host_memory_mb or 0) + room
        needs.append(
            Need(
                member.index,
                member.cpus,
                host_memory_mb,
                member.gpu_memory_mb,
                job.time_limit_s or question.capacity.time_limit_default_s,
                job.max_slowdown,
            )
        )
    return needs


def _build_lone(question: Question, subject: Subject, reason: str) -> PackPlan:
    """A job of known load that runs alone, and as fast as that."""
    job = question.jobs[subject.index]
    pack = build_lone_pack(subject.index, job, reason)
    member = dataclasses.replace(
        pack.members[0],
        predicted_slowdown=1.0,
        solo_steps_per_s=question.profiles.get(subject.index, UsageProfile()).steps_per_s,
        max_slowdown=subject.max_slowdown,
    )
    return dataclasses.replace(
        pack,
        members=(member,),
        predicted_slowdown=(1.0,),
        predicted_finish_s=subject.run_s,
        known=is_known(subject),
    )


def _plan_by_rival(question: Question, subjects: Sequence[Subject]) -> list[PackPlan]:
    """Packs by a rule of others, which knows no bound on slowdowns; predicted where it can be."""
    policy = question.policy
    limits = build_limits(question, subjects)
    parts = rivals.partition(policy.rule, subjects, limits, question.capacity.gpu_memory_mb)
    packs = []
    for members in parts:
        if len(members) == 1:
            reason = f"the rule {policy.rule} puts nobody beside it"
            packs.append(_build_lone(question, subjects[members[0]], reason))
            continue
        chosen = [subjects[i] for i in members]
        setting = Setting(policy.mode, (None,) * len(chosen))
        slowdowns = predict_setting(chosen, setting, question.calibration)
        finish_s = None
        if slowdowns is not None:
            finish_s = max(s.run_s * d for s, d in zip(chosen, slowdowns, strict=True))
        prediction = _predict(question, chosen, setting, slowdowns, finish_s)
        told = f"the rule {policy.rule} put them together"
        prediction = dataclasses.replace(prediction, reasons=(told, *prediction.reasons))
        # What no bound was heeded for is not ended at one either.
        bound = max(policy.slowdown_bound, SLOWDOWN_MARGIN * max(slowdowns or (1.0,)))
        lenient = dataclasses.replace(policy, slowdown_bound=bound)
        needs = [
            dataclasses.replace(need, max_slowdown=max(bound, need.max_slowdown or bound))
            for need in build_needs(question, chosen)
        ]
        packs.append(
            build_pack(question.jobs, needs, question.capacity, lenient, "", prediction=prediction)
        )
    return packs
