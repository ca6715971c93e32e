"""Packs of jobs whose loads are unknown, but of which a pack has measured how many run at once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.plan import Goal, PackPlan, SharingMode, UsageProfile
from slurm_colloc.planning.job_needs import Question, choose_bound, choose_gpu_memory_mb
from slurm_colloc.planning.known_degree import KnownDegree, find_degree
from slurm_colloc.planning.limits.hard_limits import compute_host_memory_limit_mb
from slurm_colloc.planning.pack_request import build_lone_pack
from slurm_colloc.planning.unknown_packs import (
    UNSTATED_HOST_MEMORY_MB,
    build_unknown_pack,
    fill_packs,
    is_open_ended,
    make_room,
    plan_unknown,
)


def plan_by_curves(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Pack jobs of unknown load by what earlier packs measured of their kinds, else as unknown.

    Where a curve is known, as many start at once as made the most progress within the accepted
    slowdown; CPUs, host memory and GPU memory limit that as ever.
    """
    left = list(indices)
    packs: list[PackPlan] = []
    for chosen, known in choose_groups(question, indices):
        packs += _plan_group(question, chosen, known)
        left = [index for index in left if index not in chosen]
    return packs + plan_unknown(question, left) if left else packs


def choose_groups(
    question: Question, indices: Sequence[int]
) -> Iterator[tuple[list[int], KnownDegree]]:
    """All of the jobs where their mix was measured, else those of each kind that was.

    Args:
        question: What planning is asked.
        indices: Jobs of unknown load that may share with each other.
    """
    policy = question.policy
    curves = [curve for curve in question.curves if curve.mode is policy.mode]
    if not curves or not is_open_ended(policy) or policy.goal is not Goal.THROUGHPUT:
        return
    if policy.mode is SharingMode.MIG or policy.has_gpu_sets or question.capacity.gpus > 1:
        return
    by_family: dict[str, list[int]] = {}
    for index in indices:
        job, profile = question.jobs[index], question.profiles.get(index)
        is_sized = job.gpus == 1 and choose_gpu_memory_mb(job, profile) is not None
        family = profile.family if profile is not None and is_sized else ""
        by_family.setdefault(family, []).append(index)
    bound = min(choose_bound(question.jobs[index], policy) for index in indices)

    def find(chosen: Mapping[str, Sequence[int]]) -> KnownDegree | None:
        rates = {
            family: profile.steps_per_s
            for family, members in chosen.items()
            if (profile := question.profiles.get(members[0])) is not None and profile.steps_per_s
        }
        kinds = Counter({family: len(members) for family, members in chosen.items()})
        return find_degree(curves, kinds, bound, rates)

    if "" not in by_family and (known := find(by_family)) is not None:
        yield list(indices), known
        return
    for family, members in by_family.items():
        # A few of each of several kinds share better as a mix of which nothing is known.
        is_enough = len(members) >= min(policy.degree, len(indices))
        if family and is_enough and (known := find({family: members})) is not None:
            yield members, known


def _plan_group(question: Question, indices: Sequence[int], known: KnownDegree) -> list[PackPlan]:
    told = known.describe()
    degree = min(known.degree, question.policy.degree_max, _find_host_room(question, indices))
    if degree < 2:
        return [build_lone_pack(index, question.jobs[index], told) for index in indices]
    profiles = dict(question.profiles)
    rates = {rate.family: rate.steps_per_s for rate in known.curve.rates_alone}
    for index in indices:
        if profiles[index].steps_per_s is None:
            rate = rates.get(profiles[index].family)
            profiles[index] = dataclasses.replace(profiles[index], steps_per_s=rate)
    question = dataclasses.replace(
        question, profiles=profiles, policy=dataclasses.replace(question.policy, degree=degree)
    )
    filled = fill_packs(question, indices)
    packs = []
    for needs, reason in filled:
        most = len(indices) if len(filled) > 1 else len(needs)
        # Beyond the largest degree that was measured there may be more room.
        widened, places = make_room(question, needs, most if known.is_open else min(most, degree))
        packs.append(build_unknown_pack(question, widened, reason, places, told))
    return packs


def _find_host_room(question: Question, indices: Sequence[int]) -> int:
    """How many of these one GPU's share of host memory holds, by what each is likely to take."""
    share_mb = question.capacity.host_memory_mb_per_gpu
    if share_mb is None or all(question.jobs[index].host_memory_mb for index in indices):
        # What is stated is checked as any need.
        return len(indices)
    likely = (
        question.jobs[index].host_memory_mb
        or compute_host_memory_limit_mb(question.profiles.get(index, UsageProfile()))
        or UNSTATED_HOST_MEMORY_MB
        for index in indices
    )
    return max(question.policy.degree, share_mb // max(likely))
