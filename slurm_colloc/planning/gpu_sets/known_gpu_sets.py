"""GPU sets of jobs whose loads are known: the packs of the search, fitted to a node's GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from slurm_colloc.model.plan import PackPlan, Rule, UsageProfile
from slurm_colloc.planning.job_needs import Question

Planner = Callable[[Question, Sequence[int]], list[PackPlan]]
"""Makes packs of jobs that may share with each other, by what is known of them."""

_IDLE_SHARE = 0.1
"""GPUs of this part and more are not to stay idle for the sake of the least GPU time."""
_KINDS_MOST = 16
"""Of more different jobs none is tried in another's place: only like jobs wait for each other."""


def tells_of_exchange(profile: UsageProfile) -> bool:
    """Whether it is known what a job of several GPUs exchanges between them."""
    return profile.nvlink_share is not None or profile.pcie_share is not None


def goes_by_loads(question: Question, indices: Sequence[int]) -> bool:
    """Whether packs are made by loads or by a rule of others, and not dealt out.

    The model knows no members of different numbers of GPUs.
    """
    if question.policy.rule is not Rule.CSUB:
        return True
    if any(question.jobs[index].gpus != question.capacity.gpus for index in indices):
        return False
    is_known = any(index in question.profiles for index in indices)
    return is_known and question.calibration is not None


def fit_known_packs(
    question: Question,
    indices: Sequence[int],
    packs: Sequence[PackPlan],
    sets: int,
    plan_alike: Planner,
) -> list[PackPlan]:
    """The packs for about as many GPU sets.

    There are fewer members in each where GPUs would stay idle that the Slurm job has anyway, and
    some wait where like jobs are in a few packs too many; otherwise there are more Slurm jobs.

    Args:
        question: What planning is asked.
        indices: The jobs.
        packs: Those that cost least.
        sets: How many there are to be.
        plan_alike: Makes packs.
    """
    # Only here is a search loaded.
    from slurm_colloc.planning.known_packs import ask_as_pack

    policy, each = question.policy, -(-len(indices) // sets)
    if policy.rule is Rule.CSUB and sets - len(packs) >= _IDLE_SHARE * sets:
        narrow = dataclasses.replace(
            policy, degree=min(policy.degree, each), degree_max=min(policy.degree_max, each)
        )
        packs = plan_alike(dataclasses.replace(question, policy=narrow), indices)
    elif len(packs) > sets and _may_wait(question, indices):
        waiting = dataclasses.replace(policy, pack_size=each)
        found = plan_alike(dataclasses.replace(question, policy=waiting), indices)
        packs = min(packs, found, key=len)
    if policy.gpus_per_pack * policy.nodes_per_pack > question.capacity.gpus:
        packs = [ask_as_pack(question, pack) if pack.request is None else pack for pack in packs]
    # Sets that end at about the same time are to be in one Slurm job.
    return sorted(packs, key=lambda pack: -(pack.predicted_finish_s or 0.0))


def _may_wait(question: Question, indices: Sequence[int]) -> bool:
    policy = question.policy
    if policy.rule is not Rule.CSUB or policy.pack_size is not None:
        return False
    return len({question.profiles.get(index) for index in indices}) <= _KINDS_MOST
