"""Packs over several GPUs: a plan for each GPU set, as for a pack of one GPU, and what they share.

Also: GPU sets of jobs whose loads are known: the packs of the search, fitted to a node's GPUs;
which packs of a plan are GPU sets of one Slurm job; how many GPU sets jobs are spread over, and
which sets are on one node; how many GPUs a pack has: as its user said, else what the queue gives
soonest.

A GPU set is planned as a pack is: with the CPUs and host memory that its GPUs bring with them.
GPU memory and degree are those of one GPU, because a member has a place on each GPU that it uses.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    PackPlan,
    Plan,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.planning.job_needs import Need, Question, compute_needs
from slurm_colloc.planning.pack_request import build_lone_pack, choose_degree
from slurm_colloc.planning.unknown_packs import (
    build_unknown_pack,
    find_late,
    is_open_ended,
    make_room,
)

# ---- GPU sets of jobs whose loads are known: the packs of the search, fitted to a node's GPUs ----

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
    """Whether packs are made by loads, and not dealt out.

    The model knows no members of different numbers of GPUs.
    """
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
    if sets - len(packs) >= _IDLE_SHARE * sets:
        narrow = replace(
            policy, degree=min(policy.degree, each), degree_max=min(policy.degree_max, each)
        )
        packs = plan_alike(replace(question, policy=narrow), indices)
    elif len(packs) > sets and _may_wait(question, indices):
        waiting = replace(policy, pack_size=each)
        found = plan_alike(replace(question, policy=waiting), indices)
        packs = min(packs, found, key=len)
    if policy.gpus_per_pack > question.capacity.gpus:
        packs = [ask_as_pack(question, pack) if pack.request is None else pack for pack in packs]
    # Sets that end at about the same time are to be in one Slurm job.
    return sorted(packs, key=lambda pack: -(pack.predicted_finish_s or 0.0))


def _may_wait(question: Question, indices: Sequence[int]) -> bool:
    policy = question.policy
    if policy.pack_size is not None:
        return False
    return len({question.profiles.get(index) for index in indices}) <= _KINDS_MOST


# ---- Which packs of a plan are GPU sets of one Slurm job -----------------------------------------


def number_slurm_jobs(groups: Iterable[Sequence[PackPlan]]) -> list[PackPlan]:
    """The packs of several groups, with Slurm jobs that are numbered through all of them."""
    found: list[PackPlan] = []
    unused = itertools.count()
    for packs in groups:
        numbers: dict[int, int] = {}
        for pack in packs:
            if pack.slurm_job is None:
                found.append(pack)
                continue
            if pack.slurm_job not in numbers:
                numbers[pack.slurm_job] = next(unused)
            found.append(replace(pack, slurm_job=numbers[pack.slurm_job]))
    return found


class _InSlurmJob(Protocol):
    @property
    def slurm_job(self) -> int | None: ...


_Pack = TypeVar("_Pack", bound=_InSlurmJob)


def group_by_slurm_job(packs: Iterable[_Pack]) -> list[list[_Pack]]:
    """The packs of each Slurm job, or element of an array, in order of their first."""
    groups: dict[object, list[_Pack]] = {}
    for place, pack in enumerate(packs):
        key = ("alone", place) if pack.slurm_job is None else pack.slurm_job
        groups.setdefault(key, []).append(pack)
    return list(groups.values())


# ---- How many GPU sets jobs are spread over, and which sets are on one node; pure arithmetic -----


@dataclass(frozen=True)
class Demand:
    """Jobs that need equally many GPUs.

    Attributes:
        jobs: How many there are.
        degree: How many of them share a GPU set, on average.
    """

    jobs: int
    degree: float


@dataclass(frozen=True)
class Spread:
    """Over how much jobs are spread.

    Attributes:
        nodes: Nodes, each of which has a Slurm job of its own.
        sets: GPU sets over all of them, by the GPUs of one.
    """

    nodes: int
    sets: Mapping[int, int]


def choose_spread(
    demands: Mapping[int, Demand],
    gpus_per_pack: int,
    *,
    least_nodes: int = 1,
    most_nodes: int | None = None,
    waits: bool = True,
) -> Spread:
    """How many nodes and GPU sets there are to be.

    As many nodes as the places come nearest to: rather some members wait than that a second one
    is half empty. In them the GPUs go to those of whom most would share one.

    Args:
        demands: The jobs, by the GPUs of one; none needs more than a pack has on a node.
        gpus_per_pack: GPUs of a Slurm job.
        least_nodes: Nodes at least.
        most_nodes: Nodes at most, unless there are to be more at least; None for any number.
        waits: Members may wait; otherwise there are places for all.
    """
    wanted = sum(gpus * demand.jobs / demand.degree for gpus, demand in demands.items())
    nearest = math.floor(wanted / gpus_per_pack + 0.5)
    nearest = nearest if most_nodes is None else min(nearest, most_nodes)
    nodes = max(1, least_nodes, nearest if waits else math.ceil(wanted / gpus_per_pack))
    while True:
        targets = _share_out(demands, nodes * gpus_per_pack)
        placed = _count_placed(targets, gpus_per_pack, nodes)
        if all(placed.get(gpus) for gpus in demands):
            return Spread(nodes, placed)
        nodes += 1


def _share_out(demands: Mapping[int, Demand], gpus: int) -> dict[int, int]:
    """How many sets of each kind GPUs are enough for: one of each, then where most would share."""
    sets = dict.fromkeys(demands, 1)
    left = gpus - sum(demands)
    # The most members to a set first; of equally many the larger set.
    queue = [(float(-demand.jobs), -size) for size, demand in demands.items()]
    heapq.heapify(queue)
    while queue:
        _, negative = heapq.heappop(queue)
        size = -negative
        if size > left or sets[size] >= demands[size].jobs:
            continue
        sets[size] += 1
        left -= size
        heapq.heappush(queue, (-demands[size].jobs / sets[size], negative))
    return sets


def _count_placed(sets: Mapping[int, int], gpus_per_pack: int, nodes: int) -> dict[int, int]:
    """How many of the sets find room on so many nodes; the largest first."""
    sizes = [size for size in sorted(sets, reverse=True) for _ in range(sets[size])]
    placed: dict[int, int] = {}
    for size, _ in _place(sizes, gpus_per_pack, nodes):
        placed[size] = placed.get(size, 0) + 1
    return placed


def _place(sizes: Sequence[int], gpus_per_pack: int, nodes: int) -> list[tuple[int, int]]:
    """Sets, each with the node that has most GPUs left; without those that fit on none."""
    free = [(-gpus_per_pack, number) for number in range(nodes)]
    placed = []
    for size in sizes:
        left, number = free[0]
        if -left < size:
            continue
        heapq.heapreplace(free, (left + size, number))
        placed.append((size, number))
    return placed


def place_sets(sizes: Sequence[int], gpus_per_pack: int, nodes: int) -> list[int]:
    """Which node each GPU set is on.

    Sets that follow each other come onto one node where their sizes allow it; all nodes have about
    equally many.

    Args:
        sizes: The GPUs of each set, none more than a node has.
        gpus_per_pack: GPUs of a Slurm job.
        nodes: Nodes at least; there are more where the sets need them.
    """
    ordered = sorted(sizes, reverse=True)
    placed = _place(ordered, gpus_per_pack, nodes)
    while len(placed) < len(sizes):
        nodes += 1
        placed = _place(ordered, gpus_per_pack, nodes)
    room: dict[int, list[int]] = {}
    for size, number in placed:
        room.setdefault(size, []).append(number)
    for numbers in room.values():
        numbers.sort(reverse=True)
    return [room[size].pop() for size in sizes]


def deal(loads: Sequence[int], sets: int, slurm_jobs: int) -> list[list[int]]:
    """Deal jobs out to GPU sets in turn, so that the first ones begin first.

    Those of the first Slurm job get the first jobs, since the others may begin later.

    Args:
        loads: The GPUs of each job.
        sets: How many GPU sets, at most as many as jobs.
        slurm_jobs: Over how many Slurm jobs, as `place_sets` places them; at most as many as sets.

    Returns:
        For each set the places of its jobs among `loads`.
    """
    hands: list[list[int]] = [[] for _ in range(sets)]
    if len(set(loads)) > 1:
        least_full = [(0, place) for place in range(sets)]
        for at, load in enumerate(loads):
            full, place = least_full[0]
            hands[place].append(at)
            heapq.heapreplace(least_full, (full + load, place))
        return hands
    least, more = divmod(len(loads), sets)
    first = at = 0
    for number in range(slurm_jobs):
        own = sets // slurm_jobs + (number < sets % slurm_jobs)
        count = least * own + max(0, min(more - first, own))
        for place in range(count):
            hands[first + place % own].append(at + place)
        first, at = first + own, at + count
    return hands


# ----
# Packs over several GPUs: a plan for each GPU set, as for a pack of one GPU, and what they share.

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
    if sum(jobs[i].gpus for i in indices) <= gpus_per_pack:
        # Each job can have GPUs of its own.
        policy = replace(question.policy, mixes_gpus=False)
        question = replace(question, policy=policy)
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
        gpus_per_pack: GPUs of a Slurm job.
        plan_alike: Makes packs by what is known of jobs.
    """
    limit = question.policy.running_limit
    if limit is not None:
        gpus_per_pack = max(*kinds, min(gpus_per_pack, limit * min(kinds)), 1)
        question = _limit_running(question, limit, gpus_per_pack // min(kinds))
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
    waits = question.policy.goal is not Goal.LATENCY and gpus_per_pack >= 2 * min(kinds)
    # What cannot run at the same time anyway might as well wait here.
    most = 1 if limit is not None else question.capacity.limits.jobs_at_once
    least = 1
    while True:
        spread = choose_spread(
            demands,
            gpus_per_pack,
            least_nodes=least,
            most_nodes=most,
            waits=waits,
        )
        filled = {
            gpus: fit_known_packs(own[gpus], chosen, planned[gpus], spread.sets[gpus], plan_alike)
            if gpus in planned
            else deal_jobs(own[gpus], chosen, spread.sets[gpus], spread.nodes)
            for gpus, chosen in kinds.items()
        }
        if not waits or not any(_is_late(own[gpus], packs) for gpus, packs in filled.items()):
            break
        wider = choose_spread(demands, gpus_per_pack, least_nodes=spread.nodes + 1)
        if wider.sets == spread.sets:
            break
        least = wider.nodes
    packs = [pack for gpus in sorted(filled, reverse=True) for pack in filled[gpus]]
    return _number(packs, gpus_per_pack, spread.nodes)


def scale_capacity(capacity: Capacity, gpus: int) -> Capacity:
    """What a set of several GPUs brings with it."""
    cpus, memory_mb = capacity.cpus_per_gpu, capacity.host_memory_mb_per_gpu
    return replace(
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
    return replace(
        question,
        profiles=profiles,
        policy=replace(policy, degree=degree, degree_max=degree_max),
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
    policy = replace(
        policy, degree=min(policy.degree, most), degree_max=min(policy.degree_max, most)
    )
    return replace(question, policy=policy)


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


def _number(packs: Sequence[PackPlan], gpus_per_pack: int, jobs: int) -> list[PackPlan]:
    """The packs with the Slurm job of each; one that is alone in its job has none."""
    sizes = [1 if pack.request is None else pack.request.gpus for pack in packs]
    numbers = place_sets(sizes, gpus_per_pack, min(jobs, len(packs)))
    counts = Counter(numbers)
    return [
        replace(pack, slurm_job=number) if counts[number] > 1 else pack
        for pack, number in zip(packs, numbers, strict=True)
    ]


# ---- How many GPUs a pack has: as its user said, else what the queue gives soonest; pure ---------

EXCLUSIVE = "exclusive"
"""The option of sbatch by which jobs ask for a node of their own."""


@dataclass(frozen=True)
class GpuChoice:
    """How many GPUs a pack has.

    Attributes:
        gpus: How many.
        reason: Why, in a sentence; empty where it is one, as usual.
    """

    gpus: int
    reason: str = ""


def choose_gpus_per_pack(jobs: Sequence[Job], capacity: Capacity, policy: Policy) -> GpuChoice:
    """How many GPUs a pack of these jobs has, as far as user and nodes say.

    Args:
        jobs: Jobs for which Slurm is asked in one way.
        capacity: What one GPU brings with it where they may land.
        policy: How far sharing may go.

    Raises:
        NoPackPossible: A job asks for more GPUs than a pack is to have.
    """
    asked, node = policy.gpus_asked, capacity.gpus_per_node
    if asked.isdigit():
        why = _describe(int(asked), "--gpus-per-pack")
        return _check(GpuChoice(int(asked), why), jobs)
    if policy.mode is SharingMode.MIG or asked == "set":
        return GpuChoice(1)
    is_exclusive = any(name == EXCLUSIVE for job in jobs for name, _ in job.group)
    if asked == "auto" and not (capacity.gives_whole_nodes or is_exclusive):
        return GpuChoice(1)
    if node is None:
        return GpuChoice(1, "how many GPUs a node has is not known here, so each pack has one")
    why = "--gpus-per-pack=node"
    if asked == "auto":
        why = "--exclusive" if is_exclusive else "whole nodes are given there"
    return GpuChoice(node, _describe(node, why))


def _check(choice: GpuChoice, jobs: Sequence[Job]) -> GpuChoice:
    largest = max(jobs, key=lambda job: job.gpus, default=None)
    if largest is not None and largest.gpus > choice.gpus and not largest.alone_because:
        raise NoPackPossible(
            f"{largest.script_name}: it asks for {largest.gpus} GPUs, and a pack is to have "
            f"{choice.gpus} (--gpus-per-pack)",
            hint=f"give --gpus-per-pack={largest.gpus} or more",
        )
    return choice


def _describe(gpus: int, why: str) -> str:
    return f"a pack has {gpus} GPUs: {why}" if gpus > 1 else ""


def widen_for_limit(chosen: Plan, capacity: Capacity) -> GpuChoice | None:
    """More GPUs for each pack, where a limit lets fewer Slurm jobs run at once than there are.

    Args:
        chosen: The plan with packs of one GPU.
        capacity: What one GPU brings with it, and the user's limits; a pack has no more GPUs than
            a node.

    Returns:
        How many; None where one is enough.
    """
    limits, node = capacity.limits, capacity.gpus_per_node
    jobs_at_once = limits.jobs_at_once
    packs = sum(pack.request is not None for pack in chosen.packs)
    if node is None or not jobs_at_once or packs <= jobs_at_once:
        return None
    most = min(packs, limits.gpus_at_once or packs)
    # Rounded down where GPUs are limited: a job that asks for more would never start.
    each = -(-packs // jobs_at_once) if most == packs else most // jobs_at_once
    gpus = min(node, limits.gpus_per_job or node, each)
    if gpus < 2:
        return None
    few = "one Slurm job" if jobs_at_once == 1 else f"{jobs_at_once} Slurm jobs"
    why = f"QoS or account let {few} run at once, and there is work for {packs} GPUs"
    return GpuChoice(gpus, _describe(gpus, why))
