"""Packs with more members than places: those above the degree wait in them (`--pack-size`).

Which members run at once depends on which ends first. So each member is predicted alongside the
heaviest of the others, and that has to keep its bound; what a pack of like jobs comes to is then
hardly more than what was predicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import PackPlan, Policy
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.broken_limits import Weighing, find_too_slow, predict_setting
from slurm_colloc.planning.hard_limits import Setting, Subject
from slurm_colloc.planning.job_needs import Need, Question, label_jobs
from slurm_colloc.planning.pack_prediction import (
    build_lone,
    build_prediction,
    describe_setting,
    describe_sources,
    forget_packs,
)
from slurm_colloc.planning.pack_pricing import SETUP_S, SLACK
from slurm_colloc.planning.pack_request import build_pack, choose_degree, find_cut_gpu
from slurm_colloc.planning.unknown_packs import fill_packs

_ALIKE = 0.1
"""Loads whose figures differ by no more than this, of the whole GPU, its power limit and its share
of the node's CPUs, or of the time of a step, are those of like jobs."""
_KINDS_MOST = 16
"""Kinds of jobs up to which the heaviest neighbours are sought for each of them."""
_SAME_GPU_TIME = 0.05
"""How much longer GPUs may be held for the sake of fewer packs, relatively."""
_UNLIKE = "only similar jobs can take each other's places, and these differ"


@dataclass(frozen=True)
class _Filled:
    """A pack with waiting members.

    Attributes:
        needs: What the members need, in start order.
        members: The same as the search looks at them.
        at_once: How many run at the same time.
        slowdowns: Of the members, each alongside the heaviest of the others.
        ends_s: Seconds until each ends, if it begins when a place is free.
        reason: Why it has no further member.
    """

    needs: list[Need]
    members: list[Subject]
    at_once: int
    slowdowns: tuple[float, ...]
    ends_s: list[float]
    reason: str


def plan_waiting(
    question: Question, weighing: Weighing, parts: Sequence[Sequence[int]]
) -> list[PackPlan] | str:
    """Packs in which members wait for a place.

    Args:
        question: What planning is asked.
        weighing: The jobs of known load.
        parts: The packs without waiting members that were made of them; the largest of them says
            how many run at once, and how they share.

    Returns:
        The packs; or why none can wait, empty where that was not asked for.
    """
    policy, subjects = question.policy, weighing.subjects
    degree = max(len(members) for members in parts)
    if not policy.pack_size or policy.pack_size <= degree or degree == 1:
        return ""
    widest = next(members for members in parts if len(members) == degree)
    priced = weighing.pricing.price(widest)
    assert priced is not None
    if (
        len({s.max_slowdown for s in subjects}) > 1
        or len(set(priced.setting.percentages)) > 1
        or not _are_alike(question, subjects)
    ):
        return _UNLIKE
    setting, finish_s = priced.setting, weighing.limits.finish_s
    size = policy.pack_size
    while size > degree:
        asked = replace(policy, degree=degree, pack_size=size)
        filled = _fill(question, asked, subjects, setting)
        if isinstance(filled, str):
            return filled
        cuts = [_count_in_time(pack, setting, finish_s) for pack in filled]
        if cuts == [len(pack.members) for pack in filled]:
            # The GPUs of a pack that has several are held until the last of its members ends.
            dear = not policy.has_gpu_sets and _tell_dear(filled, setting, weighing, parts)
            if dear:
                return dear
            late = "" if size == policy.pack_size else _tell_late(size, finish_s)
            return [_build(question, asked, pack, setting, late) for pack in filled]
        size = min(
            count for count, pack in zip(cuts, filled, strict=True) if count < len(pack.members)
        )
    return _tell_late(degree, finish_s)


def _tell_dear(
    filled: Sequence[_Filled],
    setting: Setting,
    weighing: Weighing,
    parts: Sequence[Sequence[int]],
) -> str:
    """That packs in which members wait hold the GPU much longer than those in which none does."""
    prices = [weighing.pricing.price(members) for members in parts]
    apart_s = sum(priced.gpu_s for priced in prices if priced is not None)
    held_s = sum(
        pack.members[0].run_s
        if len(pack.members) == 1
        else max(pack.ends_s) + SETUP_S[setting.mode]
        for pack in filled
    )
    if held_s <= apart_s * (1.0 + _SAME_GPU_TIME):
        return ""
    return f"so they would take {held_s:.0f} s of GPU time, {apart_s:.0f} s as they are"


def _tell_late(most: int, finish_s: float | None) -> str:
    return f"with more than {most} members a pack may last longer than {finish_s or 0:.0f} s"


def _are_alike(question: Question, subjects: Sequence[Subject]) -> bool:
    """Whether jobs can take each other's places: what they take of a GPU is about the same."""
    loads = [subject.load for subject in subjects if subject.load is not None]
    if len(loads) < len(subjects):
        return False
    columns = [
        [load.engine for load in loads],
        [load.sm for load in loads],
        [load.dram for load in loads],
        [load.pcie for load in loads],
        [load.disk for load in loads],
        [load.sensitivity for load in loads],
        [load.pressure for load in loads],
    ]
    calibration, cpus = question.calibration, question.capacity.cpus_per_gpu
    if calibration is not None and calibration.power_limit_w:
        columns.append([load.power_w / calibration.power_limit_w for load in loads])
    if cpus:
        columns.append([load.cpu_cores / cpus for load in loads])
    return all(max(column) - min(column) <= _ALIKE for column in columns)


def _fill(
    question: Question, policy: Policy, subjects: Sequence[Subject], setting: Setting
) -> list[_Filled] | str:
    """Fill packs in the user's order; or say whose bound would be broken."""
    by_index = {subject.index: subject for subject in subjects}
    queued = replace(question, policy=policy)
    labels = label_jobs((job.name, job.number) for job in question.jobs)
    packs = []
    for needs, reason in fill_packs(queued, [s.index for s in subjects]):
        members = [by_index[need.index] for need in needs]
        if len(members) == 1:
            packs.append(_Filled(needs, members, 1, (1.0,), [0.0], reason))
            continue
        at_once = choose_degree(
            needs, question.capacity, policy, find_cut_gpu(queued, [s.index for s in members])
        )
        if at_once == 1:
            return "by their stated needs, no two of its members fit at once"
        slowdowns = _predict_beside_heaviest(members, at_once, setting, question.calibration)
        if slowdowns is None:
            return _UNLIKE
        slow = find_too_slow([labels[member.index] for member in members], members, slowdowns)
        if slow is not None:
            return slow.text
        places = [0.0] * at_once
        ends_s = []
        for member, slowdown in zip(members, slowdowns, strict=True):
            ends_s.append(places[0] + member.run_s * slowdown)
            heapq.heapreplace(places, ends_s[-1])
        packs.append(_Filled(needs, members, at_once, slowdowns, ends_s, reason))
    return packs


def _predict_beside_heaviest(
    members: Sequence[Subject], at_once: int, setting: Setting, calibration: Calibration | None
) -> tuple[float, ...] | None:
    """Each member's slowdown alongside the heaviest of the others; None where one is unknown.

    Heavy is who slows a member down: how far it does is asked of that many of it with the member,
    or where there are many kinds, with the first. In 1,500 random packs of like jobs that found
    the worst neighbours in 99.5 %, and was at most 2 % off.
    """
    running = Setting(setting.mode, (setting.percentages[0],) * at_once)
    kinds = {_name_kind(member): member for member in members}
    order: list[Subject] = []
    slowdowns: dict[tuple[object, ...], float] = {}
    for name, kind in kinds.items():
        if not order or len(kinds) <= _KINDS_MOST:
            weights: dict[tuple[object, ...], float] = {}
            for other_name, other in kinds.items():
                found = predict_setting([kind, *[other] * (at_once - 1)], running, calibration)
                if found is None:
                    return None
                weights[other_name] = found[0]
            ranked = [(-weights[_name_kind(member)], i) for i, member in enumerate(members)]
            order = [members[i] for _, i in heapq.nsmallest(at_once, ranked)]
        # It is not alongside itself.
        names = [_name_kind(member) for member in order]
        own = names.index(name) if name in names else at_once - 1
        found = predict_setting([kind, *order[:own], *order[own + 1 :]], running, calibration)
        if found is None:
            return None
        slowdowns[name] = found[0]
    return tuple(slowdowns[_name_kind(member)] for member in members)


def _name_kind(subject: Subject) -> tuple[object, ...]:
    """What of a job counts for slowdowns."""
    return subject.load, subject.cpus


def _count_in_time(pack: _Filled, setting: Setting, finish_s: float | None) -> int:
    """How many of a pack's members, from the first on, end in time with the margin on top."""
    if finish_s is None or len(pack.members) == 1:
        return len(pack.members)
    margin = max(member.margin for member in pack.members)
    latest_s = finish_s * (1.0 + SLACK) / (1.0 + margin) - SETUP_S[setting.mode]
    late = (place for place, end_s in enumerate(pack.ends_s) if end_s > latest_s)
    return next(late, len(pack.members))


def _build(
    question: Question, policy: Policy, pack: _Filled, setting: Setting, late: str
) -> PackPlan:
    """The pack as it is planned; `late` is why full ones are no larger, where time is why."""
    members, at_once = pack.members, pack.at_once
    if len(members) == 1:
        return build_lone(question, members[0], "the packs before it are full")
    limit = setting.percentages[0]
    whole = Setting(setting.mode, (limit,) * len(members))
    prediction = build_prediction(question, members, whole, pack.slowdowns, max(pack.ends_s))
    plain, alone = forget_packs(members), None
    if plain:
        alone = _predict_beside_heaviest(plain, at_once, setting, question.calibration)
    slowest = sorted(pack.slowdowns, reverse=True)[:at_once]
    reason = late if late and len(members) == policy.pack_size else pack.reason
    prediction = replace(
        prediction,
        degree=at_once,
        model_slowdowns=alone,
        reasons=(
            describe_setting(at_once, setting.mode, (limit,), slowest, [members[0].max_slowdown]),
            *describe_sources(question, members),
        ),
    )
    return build_pack(
        question.jobs, pack.needs, question.capacity, policy, reason, prediction=prediction
    )
