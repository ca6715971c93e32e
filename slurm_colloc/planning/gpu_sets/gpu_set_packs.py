"""Packs over several GPUs: a plan for each GPU set, as for a pack of one GPU, and what they share.

A GPU set is planned as a pack is: with the CPUs and host memory that its GPUs bring with them.
GPU memory and degree are those of one GPU, because a member has a place on each GPU that it uses.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_colloc.model.plan import Capacity, Goal, PackPlan, Policy, SharingMode
from slurm_colloc.planning.gpu_sets.known_gpu_sets import (
    Planner,
    fit_known_packs,
    goes_by_loads,
    tells_of_exchange,
)
from slurm_colloc.planning.gpu_sets.spread import Demand, choose_spread, deal, place_sets
from slurm_colloc.planning.job_needs import Need, Question, compute_needs
from slurm_colloc.planning.pack_request import build_lone_pack, choose_degree
from slurm_colloc.planning.unknown_packs import (
    build_unknown_pack,
    find_late,
    is_open_ended,
    make_room,
)

SEVERAL_GPUS_DEGREE = 2
"""Jobs of several GPUs that share a GPU set, where nothing is known of them: their neighbours wait
whenever they exchange gradients, so the runner begins with few and measures whether that pays."""

_NO_OTHER = "no other job that needs as many GPUs was submitted with it"


def plan_gpu_sets(
    question: Question, indices: Sequence[int], plan_alike: Planner
) -> list[PackPlan]:
    """Spread jobs over GPU sets, and those over Slurm jobs.

    Args:
        question: What planning is asked; its policy says how many GPUs a pack has.
        indices: Jobs that may share with each other, whatever number of GPUs they need.
        plan_alike: Makes packs by what is known of jobs.
    """
    jobs, gpus_per_pack = question.jobs, question.policy.gpus_per_pack
    if sum(jobs[i].gpus for i in indices) <= gpus_per_pack * question.policy.nodes_per_pack:
        # Each job can have GPUs of its own.
        policy = dataclasses.replace(question.policy, mixes_gpus=False)
        question = dataclasses.replace(question, policy=policy)
    together = max(jobs[i].gpus for i in indices) if question.policy.mixes_gpus else None
    kinds: dict[int, list[int]] = {}
    for index in indices:
        kinds.setdefault(together or jobs[index].gpus, []).append(index)
    if question.policy.has_gpu_sets:
        return _spread(question, kinds, gpus_per_pack, plan_alike)
    # Each set is a Slurm job.
    packs: list[PackPlan] = []
    for gpus, chosen in kinds.items():
        if len(chosen) == 1:
            packs.append(build_lone_pack(chosen[0], jobs[chosen[0]], _NO_OTHER))
        elif gpus == 1:
            packs += plan_alike(question, chosen)
        else:
            packs += _spread(question, {gpus: chosen}, gpus, plan_alike)
    return packs


def _spread(
    question: Question, kinds: Mapping[int, Sequence[int]], gpus_per_pack: int, plan_alike: Planner
) -> list[PackPlan]:
    """The GPU sets for jobs of several kinds, which lie in the same Slurm jobs.

    Args:
        question: What planning is asked.
        kinds: The jobs, by the GPUs of a set for them.
        gpus_per_pack: GPUs of a Slurm job on each of its nodes.
        plan_alike: Makes packs by what is known of jobs.
    """
    limit, nodes = question.policy.running_limit, question.policy.nodes_per_pack
    if limit is not None:
        gpus_per_pack = max(*kinds, min(gpus_per_pack, limit * min(kinds)), 1)
        nodes = max(1, min(nodes, limit * min(kinds) // gpus_per_pack))
        question = _limit_running(question, limit, nodes * gpus_per_pack // min(kinds))
    own = {gpus: _ask_of_sets(question, gpus) for gpus in kinds}
    planned = {
        gpus: plan_alike(own[gpus], chosen)
        for gpus, chosen in kinds.items()
        if goes_by_loads(own[gpus], chosen)
    }
    demands = {
        gpus: Demand(len(chosen), len(chosen) / len(planned[gpus]))
        if gpus in planned
        else Demand(_count_loads(question, chosen, gpus), _count_places(own[gpus].policy))
        for gpus, chosen in kinds.items()
    }
    # With one set to a Slurm job, as many as are filled.
    waits = question.policy.goal is not Goal.LATENCY and nodes * gpus_per_pack >= 2 * min(kinds)
    # What cannot run at the same time anyway might as well wait here.
    most = 1 if limit is not None else question.capacity.limits.jobs_at_once
    # Who asks for several nodes is given them, as far as there are jobs for their GPUs.
    gpus_most = sum(gpus * demand.jobs for gpus, demand in demands.items())
    least = min(nodes, -(-gpus_most // gpus_per_pack))
    while True:
        spread = choose_spread(
            demands,
            gpus_per_pack,
            least_nodes=least,
            most_nodes=None if most is None else most * nodes,
            waits=waits,
        )
        filled = {
            gpus: fit_known_packs(own[gpus], chosen, planned[gpus], spread.sets[gpus], plan_alike)
            if gpus in planned
            else deal_jobs(own[gpus], chosen, spread.sets[gpus], -(-spread.nodes // nodes))
            for gpus, chosen in kinds.items()
        }
        if not waits or not any(_is_late(own[gpus], packs) for gpus, packs in filled.items()):
            break
        wider = choose_spread(demands, gpus_per_pack, least_nodes=spread.nodes + 1)
        if wider.sets == spread.sets:
            break
        least = wider.nodes
    packs = [pack for gpus in sorted(filled, reverse=True) for pack in filled[gpus]]
    return _number(packs, gpus_per_pack, spread.nodes, nodes)


def scale_capacity(capacity: Capacity, gpus: int) -> Capacity:
    """What a set of several GPUs brings with it."""
    cpus, memory_mb = capacity.cpus_per_gpu, capacity.host_memory_mb_per_gpu
    return dataclasses.replace(
        capacity,
        gpus=gpus,
        cpus_per_gpu=None if cpus is None else cpus * gpus,
        host_memory_mb_per_gpu=None if memory_mb is None else memory_mb * gpus,
    )


def _ask_of_sets(question: Question, gpus: int) -> Question:
    """The same question, of GPU sets of so many GPUs."""
    policy, profiles = question.policy, question.profiles
    degree = 1 if policy.goal is Goal.LATENCY and is_open_ended(policy) else policy.degree
    degree_max = policy.degree_max
    if gpus > 1:
        profiles = {index: p for index, p in profiles.items() if tells_of_exchange(p)}
    if gpus > 1 and not policy.mixes_gpus:
        degree = choose_set_degree(policy, gpus)
        # Each member is a client on every GPU.
        degree_max = max(degree, degree_max // gpus) if profiles else degree
    return dataclasses.replace(
        question,
        profiles=profiles,
        policy=dataclasses.replace(policy, degree=degree, degree_max=degree_max),
        capacity=scale_capacity(question.capacity, gpus),
    )


def choose_set_degree(policy: Policy, gpus: int) -> int:
    """How many jobs share a GPU set of so many GPUs, all of which they need, at first."""
    is_open = gpus > 1 and not policy.degree_is_asked
    return min(policy.degree, SEVERAL_GPUS_DEGREE) if is_open else policy.degree


def _limit_running(question: Question, limit: int, sets: int) -> Question:
    """`%limit` of an array counts over all sets: rather more GPUs with fewer members each."""
    most = max(1, limit // sets)
    policy = question.policy
    policy = dataclasses.replace(
        policy, degree=min(policy.degree, most), degree_max=min(policy.degree_max, most)
    )
    return dataclasses.replace(question, policy=policy)


def _count_places(policy: Policy) -> int:
    """Members of a GPU set, those that its user lets wait among them."""
    return policy.pack_size or policy.degree


def _count_loads(question: Question, indices: Sequence[int], gpus: int) -> int:
    """How many jobs of a whole set these come to."""
    return -(-sum(question.jobs[index].gpus for index in indices) // gpus)


def deal_jobs(
    question: Question, indices: Sequence[int], sets: int, slurm_jobs: int
) -> list[PackPlan]:
    """Deal jobs of which nothing is known out to GPU sets, the longest first.

    Args:
        question: What planning is asked.
        indices: The jobs, at least as many as sets.
        sets: How many GPU sets.
        slurm_jobs: Over how many Slurm jobs.
    """
    needs = compute_needs(question, indices)
    order = sorted(needs, key=lambda need: (-need.gpus, -(need.time_limit_s or float("inf"))))
    dealt = deal([need.gpus for need in order], sets, min(slurm_jobs, sets))
    ordered = [sorted((order[at] for at in hand), key=lambda need: need.index) for hand in dealt]
    waits = any(
        len(hand) > choose_degree(hand, question.capacity, question.policy) for hand in ordered
    )
    # Without anyone that waits room is only of use where a GPU is lost.
    has_room = waits or slurm_jobs > 1 or question.capacity.gives_whole_nodes
    most = len(indices) if has_room and sets > 1 else 0
    return [_build(question, hand, most) for hand in ordered]


def _build(question: Question, hand: list[Need], most: int) -> PackPlan:
    is_alike = all(need.gpus == question.capacity.gpus for need in hand)
    if not most or not is_alike or question.policy.mode is SharingMode.EXCLUSIVE:
        return build_unknown_pack(question, hand, "")
    widened, places = make_room(question, hand, most)
    return build_unknown_pack(question, widened, "", places)


def _is_late(question: Question, packs: Sequence[PackPlan]) -> bool:
    """Whether members may wait for so long in one of the packs that MaxTime would end them."""
    for pack in packs:
        needs = compute_needs(question, [member.job_index for member in pack.members])
        if find_late(needs, question) is not None:
            return True
    return False


def _number(
    packs: Sequence[PackPlan], gpus_per_pack: int, nodes: int, nodes_per_pack: int
) -> list[PackPlan]:
    """The packs with the Slurm job and the node of each; one that is alone in its job has none."""
    sizes = [1 if pack.request is None else pack.request.gpus for pack in packs]
    numbers = place_sets(sizes, gpus_per_pack, min(nodes, len(packs)))
    places = [divmod(number, nodes_per_pack) for number in numbers]
    counts = Counter(job for job, _ in places)
    return [
        dataclasses.replace(pack, slurm_job=job, node=node) if counts[job] > 1 else pack
        for pack, (job, node) in zip(packs, places, strict=True)
    ]
