"""What keeps two jobs in different packs: the limits that they would break together.

Also: why two jobs are not planned together, whatever they take of a GPU; which jobs are in
different packs, a pair of kinds at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Goal, PackPlan, Plan, Policy
from slurm_colloc.planning.broken_limits import (
    Weighing,
    build_unknown,
    describe_goal,
    find_too_large,
    format_apart,
    name_needy,
)
from slurm_colloc.planning.explanation import PairExplanation
from slurm_colloc.planning.hard_limits import Broken, Subject, find_broken
from slurm_colloc.planning.job_needs import (
    Question,
    build_limits,
    build_subject,
    choose_time_limit_s,
    compute_needs,
    is_host_memory_assumed,
    label_jobs,
)
from slurm_colloc.planning.known_packs import is_known, weigh
from slurm_colloc.planning.pack_request import compute_places_most, find_cut_gpu
from slurm_colloc.planning.plan_packs import (
    TIME_RATIO,
    BucketKey,
    compute_reason_to_run_alone,
    find_keys,
)
from slurm_colloc.planning.unknown_packs import SPREAD, compute_refusal, find_late, is_open_ended

# ---- Why two jobs are not planned together, whatever they take of a GPU; pure --------------------


def find_differences(
    question: Question, keys: Mapping[int, BucketKey], names: Sequence[str], i: int, j: int
) -> tuple[Broken, ...]:
    """What two jobs do not agree in that share a pack.

    Args:
        question: What planning was asked.
        keys: From `find_keys`; those that do not share have none.
        names: What the jobs are called, by index.
        i: One job.
        j: The other.

    Returns:
        The first that is found, or why each does not share; nothing where the two may be
        planned together.
    """
    alone = {
        index: compute_reason_to_run_alone(question.jobs[index], question.policy)
        for index in (i, j)
        if index not in keys
    }
    if alone:
        if len(alone) == 2 and alone[i] == alone[j]:
            return (_build_alone(question, i, f"each runs alone: {alone[i]}"),)
        return tuple(
            _build_alone(question, index, f"{names[index]} runs alone: {why}")
            for index, why in alone.items()
        )
    one, other = keys[i], keys[j]
    if (one.group, one.gpu_type) != (other.group, other.gpu_type):
        text = "partition, account, QoS, GPU type or another sbatch option differs"
        return (Broken("group", None, None, text),)
    counts = [question.jobs[index].gpus for index in (i, j)]
    if counts[0] != counts[1] and not question.policy.mixes_gpus:
        text = (
            f"{names[i]} needs {counts[0]} and {names[j]} {counts[1]} GPUs: they share a GPU set "
            "where csub pack or --degree puts them together"
        )
        return (Broken("gpus", counts[0], counts[1], text),)
    if one.is_over != other.is_over:
        return (_build_over(question, names, i if one.is_over else j),)
    if one.longest_s != other.longest_s:
        return (_build_duration(question, keys, names, i, j),)
    return ()


def _build_alone(question: Question, index: int, text: str) -> Broken:
    """Why a job does not share."""
    have, limit = _find_numbers(question.jobs[index], question.policy)
    return Broken("alone", have, limit, text)


def _find_numbers(job: Job, policy: Policy) -> tuple[float | None, float | None]:
    """Both numbers of why a job does not share, as `compute_reason_to_run_alone` finds it."""
    if job.alone_because or not job.came_together:
        return None, None
    if job.gpus != 1:
        return job.gpus, 1
    if policy.degree == 1 and (policy.pack_size or 1) == 1:
        return 2, 1
    return job.time_limit_s, policy.pack_time_max_s


def _build_over(question: Question, names: Sequence[str], index: int) -> Broken:
    asked_s = question.jobs[index].time_limit_s
    limit_s = question.capacity.time_limit_max_s
    asked = "no time limit" if asked_s is None else f"{asked_s} s"
    text = f"{names[index]} asks for {asked}, MaxTime here is {limit_s} s: Slurm will not start it"
    return Broken("time", asked_s, limit_s, text)


def _build_duration(
    question: Question, keys: Mapping[int, BucketKey], names: Sequence[str], i: int, j: int
) -> Broken:
    """Their time limits are too different."""
    asked = {
        index: choose_time_limit_s(question.jobs[index], question.capacity) for index in (i, j)
    }
    if None in asked.values():
        endless, limited = (i, j) if asked[i] is None else (j, i)
        text = f"{names[limited]} asks for {asked[limited]} s, {names[endless]} for no time limit"
        return Broken("duration", asked[limited], None, text)
    short, long = sorted((i, j), key=lambda index: keys[index].longest_s or 0)
    longest_s = keys[long].longest_s or 0
    least_s = -(-longest_s // TIME_RATIO)
    text = (
        f"{names[short]} asks for {asked[short]} s, the jobs that share there for {least_s} to "
        f"{longest_s} s: a short job should not wait as long as a long one"
    )
    return Broken("duration", asked[short], least_s, text)


# ---- What keeps two jobs in different packs: the limits that they would break together -----------


_DISK_TOLD = 0.05
"""Who waits for the disk for less of the time is not held up by it."""


class PairReasons:
    """Says of two jobs what keeps them apart.

    Attributes:
        keys: What jobs that may share agree in, by index; those of the others are missing.
        places: The pack of each job, as its place in the plan.

    Args:
        plan: The plan.
        question: What it answers.
        subjects: Its jobs, as planning looks at them.
        labels: What they are called in sentences.
    """

    def __init__(
        self, plan: Plan, question: Question, subjects: Sequence[Subject], labels: Sequence[str]
    ) -> None:
        self.keys = find_keys(question)
        self.places = {
            member.job_index: place
            for place, pack in enumerate(plan.packs)
            for member in pack.members
        }
        self._plan = plan
        self._question = question
        self._subjects = subjects
        self._names = labels
        self._weighings: dict[object, tuple[Weighing, dict[int, int], list[str]]] = {}

    def explain(self, i: int, j: int, pairs: int) -> PairExplanation:
        """Why two jobs are in different packs; they stand for so many pairs."""
        broken, others = self._find(i, j)
        jobs = self._question.jobs
        return PairExplanation(
            first=jobs[i].name,
            second=jobs[j].name,
            first_index=i,
            second_index=j,
            first_number=jobs[i].number,
            second_number=jobs[j].number,
            packs=tuple(jobs[index].name for index in others),
            pack_indices=others,
            pairs=pairs,
            broken=broken,
            text="; ".join(b.text for b in broken),
        )

    def _find(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        broken, others = self._find_limits(i, j)
        broken = tuple(self._tell_disk(b, i, j) for b in broken)
        return tuple(self._tell_source(b, {i, j, *others}) for b in broken), others

    def _tell_disk(self, broken: Broken, i: int, j: int) -> Broken:
        """That they would wait for each other at the disk, where that is a part of why."""
        mine = {index for one in (i, j) for index in _list_jobs(self._plan.packs[self.places[one]])}
        disks = {
            index: load.disk
            for index in (i, j, *mine)
            if (load := self._subjects[index].load) is not None and load.disk >= _DISK_TOLD
        }
        # Packs that are full may have been chosen so that each has one that reads.
        limits = ("slowdown", "cost", *(("clients",) if len(disks) == 2 else ()))
        if broken.constraint not in limits or not {i, j} <= disks.keys():
            return broken
        told = " and ".join(f"{100 * disks[index]:.0f} %" for index in (i, j))
        text = f"{broken.text}; both wait for the disk (alone for {told} of their time)"
        return replace(broken, text=text)

    def _tell_source(self, broken: Broken, members: Collection[int]) -> Broken:
        """A limit with where its numbers come from, if that is not what users said."""
        if broken.constraint != "host_memory":
            return _tell_places(broken, self._question.policy)
        assumed = sum(is_host_memory_assumed(self._question, index) for index in members)
        # What one needs by itself is more than the share only where its user said so.
        is_of_one = any(self._subjects[index].host_memory_mb == broken.have for index in members)
        if not assumed or is_of_one:
            return broken
        share_mb = self._question.capacity.host_memory_mb_per_gpu or 0
        each_mb = max(1, share_mb // max(1, self._question.policy.degree))
        text = (
            f"{broken.text} ({each_mb} MB are assumed of each without --mem, {assumed} of "
            f"{len(members)}: that share divided by the degree)"
        )
        return replace(broken, text=text)

    def _find_limits(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        differences = find_differences(self._question, self.keys, self._names, i, j)
        if differences:
            return differences, ()
        spread = self._find_spread(i, j)
        if spread is not None:
            return (spread,), ()
        known = [self._is_known(index) for index in (i, j)]
        if all(known):
            return self._find_by_loads(i, j)
        if any(known):
            return (build_unknown(self._names[i if known[1] else j]),), ()
        return self._find_by_words(i, j)

    def _find_spread(self, i: int, j: int) -> Broken | None:
        """That jobs lie on different GPUs because they are spread over several."""
        one, other = (self._plan.packs[self.places[index]] for index in (i, j))
        if one.slurm_job is not None and one.slurm_job == other.slurm_job:
            return Broken("gpus", None, None, "they are in one pack, on different GPUs")
        gpus = self._question.policy.gpus_per_pack
        if gpus > 1:
            return Broken("gpus", None, None, f"jobs are spread evenly over packs of {gpus} GPUs")
        gpus = self._question.jobs[i].gpus
        if gpus > 1:
            text = f"{one.degree} of them share {gpus} GPUs at most"
            return Broken("gpus", one.degree + 1, one.degree, text)
        return None

    def _is_known(self, index: int) -> bool:
        if self._question.calibration is None:
            return False
        return is_known(self._subjects[index])

    def _find_by_loads(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        weighing, position, names = self._weigh(i)
        broken = weighing.find_broken((position[i], position[j]), names)
        if broken:
            return broken, ()
        packs = [self._plan.packs[self.places[index]] for index in (i, j)]
        waiting = [pack for pack in packs if len(pack.members) > pack.degree]
        if waiting:
            smallest = min(waiting, key=lambda pack: len(pack.members))
            return (self._build_full(len(smallest.members), weighing),), _list_jobs(smallest)
        members = [_list_jobs(pack) for pack in packs]
        for others, new in ((members[0], j), (members[1], i)):
            together = [position[index] for index in (*others, new)]
            broken = weighing.find_broken(together, names)
            if broken:
                return broken, others
        return (self._compare(i, j, members, weighing, position),), members[0]

    def _build_full(self, count: int, weighing: Weighing) -> Broken:
        """A pack in which members wait takes no more of them."""
        asked = self._question.policy.pack_size or count
        finish_s = weighing.limits.finish_s
        if count < asked and finish_s is not None:
            text = f"with more than {count} members a pack may last longer than {finish_s:.0f} s"
            return Broken("pack_size", count + 1, count, text)
        return Broken("pack_size", asked + 1, asked, _tell_size(asked + 1, asked))

    def _compare(
        self,
        i: int,
        j: int,
        packs: Sequence[tuple[int, ...]],
        weighing: Weighing,
        position: Mapping[int, int],
    ) -> Broken:
        """They could share; but moving either into the other's pack costs no less."""

        def compute_cost(members: Sequence[int]) -> float:
            places = [position[index] for index in members]
            together = weighing.pricing.price(places) if places else None
            if together is not None:
                return together.cost
            alone = (weighing.pricing.price((place,)) for place in places)
            return sum(priced.cost for priced in alone if priced is not None)

        now = sum(compute_cost(members) for members in packs)
        moved = min(
            compute_cost((*packs[stays], new))
            + compute_cost([index for index in packs[leaves] if index != new])
            for (stays, leaves), new in (((0, 1), j), ((1, 0), i))
        )
        alone = weighing.pricing.price((position[i],))
        assert alone is not None
        what, unit = describe_goal(weighing.goal, alone)
        costs = format_apart(moved, now)
        text = (
            f"with {self._names[i]} and {self._names[j]} in one pack the two packs would take "
            f"{costs[0]} {unit} of {what}, as they are {costs[1]} {unit}"
        )
        return Broken("cost", moved, now, text)

    def _find_by_words(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        """Jobs of unknown load share as far as their users' words allow."""
        policy = self._question.policy
        if policy.goal is Goal.LATENCY and is_open_ended(policy):
            return (Broken("unknown", None, None, SPREAD),), ()
        policy = replace(policy, degree=self._find_degree(i))
        question = replace(self._question, policy=policy)
        earlier = min(i, j, key=self.places.__getitem__)
        members = _list_jobs(self._plan.packs[self.places[earlier]])
        new = j if i in members else i
        limits = build_limits(question, [self._subjects[index] for index in (i, j)])
        size, most = policy.pack_size or policy.degree, compute_places_most(policy)
        if most is not None and not policy.pack_size and not limits.has_instances:
            size = min(size, most)
        limits = replace(limits, members=size, finish_s=None)
        needs = compute_needs(question, (*members, new))
        chosen = [
            replace(
                self._subjects[need.index],
                host_memory_mb=need.host_memory_mb,
                gpu_memory_mb=need.gpu_memory_mb,
            )
            for need in needs
        ]
        names = [self._names[need.index] for need in needs]
        if (policy.pack_size or 0) <= policy.degree:
            broken = tuple(name_needy(b, names, chosen) for b in find_broken(chosen, limits))
            if broken:
                return broken, members
        if policy.pack_size and len(needs) > policy.pack_size:
            text = _tell_size(len(needs), policy.pack_size)
            return (Broken("pack_size", len(needs), policy.pack_size, text),), members
        too_large = find_too_large(chosen, names, limits)
        if too_large:
            return tuple(too_large), members
        cut = find_cut_gpu(question, (i, j))
        refusal = compute_refusal(needs, question, cut)
        late = find_late(needs, question, cut)
        if late is not None:
            return (Broken("time", *late, refusal),), members
        text = refusal or "packs are filled in the order of the call, and each takes what comes"
        return (Broken("order", None, None, text),), members

    def _find_degree(self, index: int) -> int:
        """How many like a job of unknown load run at once by the plan, at most."""
        if not self._question.curves:
            return self._question.policy.degree
        from slurm_colloc.planning.known_packs import choose_groups

        key = self.keys[index]
        alike = [i for i, own in self.keys.items() if own == key and not self._is_known(i)]
        for members, known in choose_groups(self._question, alike):
            if index in members:
                return known.degree
        return self._question.policy.degree

    def _weigh(self, index: int) -> tuple[Weighing, dict[int, int], list[str]]:
        """The jobs of known load that may share with one, and their positions among them."""
        key = self.keys[index]
        if key not in self._weighings:
            chosen = [i for i, own in self.keys.items() if own == key and self._is_known(i)]
            weighing = weigh(self._question, [self._subjects[i] for i in chosen])
            position = {i: place for place, i in enumerate(chosen)}
            self._weighings[key] = (weighing, position, [self._names[i] for i in chosen])
        return self._weighings[key]


def _list_jobs(pack: PackPlan) -> tuple[int, ...]:
    return tuple(member.job_index for member in pack.members)


def _tell_size(have: int, limit: int) -> str:
    return f"{have} would be in one pack, --pack-size is {limit}"


def _tell_places(broken: Broken, policy: Policy) -> Broken:
    """A limit on members at once by what sets it."""
    if broken.constraint != "clients" or broken.have is None:
        return broken
    limit = broken.limit
    if policy.pack_size is not None and limit == policy.pack_size:
        text = _tell_size(int(broken.have), policy.pack_size)
        return replace(broken, constraint="pack_size", text=text)
    if policy.is_small_for_queue and limit == policy.degree_max:
        text = f"{broken.text}, as smaller packs wait less in the queue"
        return replace(broken, constraint="queue", text=text)
    if limit == compute_places_most(policy):
        return replace(broken, text=f"{broken.text}: more cannot share by {policy.mode}")
    return broken


def merge_alike(
    pairs: Iterable[PairExplanation], labels: Sequence[str]
) -> tuple[PairExplanation, ...]:
    """Pairs of the same names with the same reason once, with how many pairs they stand for.

    Args:
        pairs: The pairs.
        labels: What the jobs are called in their reasons, by index.
    """
    found: dict[object, PairExplanation] = {}
    for pair in pairs:
        add_alike(found, pair, labels)
    return tuple(found.values())


def add_alike(
    found: dict[object, PairExplanation], pair: PairExplanation, labels: Sequence[str]
) -> None:
    """Add a pair, or count it to one that is alike."""
    text = pair.text
    named = [
        (labels[pair.first_index], pair.first),
        (labels[pair.second_index], pair.second),
        *zip((labels[index] for index in pair.pack_indices), pair.packs, strict=True),
    ]
    # The longest first, since `train.sh 1` begins `train.sh 12`.
    for label, name in sorted(named, key=lambda entry: -len(entry[0])):
        text = text.replace(label, name)
    key = (*sorted((pair.first, pair.second)), tuple(sorted(set(pair.packs))), text)
    known = found.get(key)
    if known is not None:
        pair = replace(known, pairs=known.pairs + pair.pairs)
    found[key] = pair


# ---- Which jobs are in different packs, a pair of kinds at a time --------------------------------

PAIRS_MOST = 120
"""Pairs that are told; the others are counted. All of 16 jobs are."""
_EXPLAINED_MOST = 500
"""Pairs of kinds that are explained: those that turn out to be alike are shown once."""
_KINDS_MOST = 400


def explain_pairs(
    plan: Plan, question: Question, labels: Sequence[str] | None = None
) -> tuple[tuple[PairExplanation, ...], int]:
    """Say what keeps jobs in different packs, once for those that are alike in packs alike.

    First it is looked whether the two may share at all, then whether the second may come on top
    of the first one's pack, or the other way round; then what they would cost. Where exactly one
    limit is named, raising that one alone makes the pair, or the pack with the job, legal.

    Args:
        plan: The plan.
        question: What it answers.
        labels: What its jobs are called in sentences; None where there are no further jobs that
            they could be confused with.

    Returns:
        The pairs, those that are alike once, and how many pairs of jobs none of them stands for.
    """
    subjects = [build_subject(question, index) for index in range(len(question.jobs))]
    if labels is None:
        labels = label_jobs((job.name, job.number) for job in question.jobs)
    reasons = PairReasons(plan, question, subjects, labels)
    kinds = _divide_by_packs(_find_kinds(question, subjects, reasons.keys), plan, reasons.places)
    found: dict[object, PairExplanation] = {}
    explained = 0
    for first, second in _list_pairs(kinds[:_KINDS_MOST]):
        apart = _find_apart(first, second, reasons.places)
        if apart is None:
            continue
        if len(found) == PAIRS_MOST or explained == _EXPLAINED_MOST:
            break
        explained += 1
        pairs = _count_apart(first, second, reasons.places)
        add_alike(found, reasons.explain(*apart, pairs), labels)
    told = sum(pair.pairs for pair in found.values())
    return tuple(found.values()), count_pairs_apart(plan) - told


def count_pairs_apart(plan: Plan) -> int:
    """How many pairs of jobs are in different packs."""
    sizes = [len(pack.members) for pack in plan.packs]
    return math.comb(sum(sizes), 2) - sum(math.comb(size, 2) for size in sizes)


def _find_kinds(
    question: Question, subjects: Sequence[Subject], keys: Mapping[int, BucketKey]
) -> list[list[int]]:
    """The jobs of the call, those together that planning takes for alike; in the user's order."""
    kinds: dict[object, list[int]] = {}
    durations: dict[object, set[int | None]] = {}
    for own in keys.values():
        durations.setdefault((own.group, own.gpu_type, own.is_over), set()).add(own.longest_s)
    for index, (job, subject) in enumerate(zip(question.jobs, subjects, strict=True)):
        why = compute_reason_to_run_alone(job, question.policy)
        key = keys.get(index)
        # What it asks for is told of one that asks for too much, or too little.
        asked = None
        if key is not None and (
            key.is_over or len(durations[key.group, key.gpu_type, key.is_over]) > 1
        ):
            asked = (choose_time_limit_s(job, question.capacity),)
        kind = (job.group, job.gpu_type, key, why, asked, subject.kind)
        kinds.setdefault(kind, []).append(index)
    return list(kinds.values())


def _divide_by_packs(
    kinds: Sequence[Sequence[int]], plan: Plan, places: Mapping[int, int]
) -> list[list[list[int]]]:
    """The jobs of each kind, those together whose packs are alike: one may be full, one not."""
    kind_of = {index: number for number, jobs in enumerate(kinds) for index in jobs}
    looks = [
        (pack.degree, *sorted(kind_of[member.job_index] for member in pack.members))
        for pack in plan.packs
    ]
    divided = []
    for jobs in kinds:
        alike: dict[object, list[int]] = {}
        for index in jobs:
            alike.setdefault(looks[places[index]], []).append(index)
        divided.append(list(alike.values()))
    return divided


def _list_pairs(
    kinds: Sequence[Sequence[list[int]]],
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Pairs of jobs of alike packs: one of every pair of kinds, then a second of each, ..."""
    waiting = [
        itertools.combinations_with_replacement(first, 2)
        if first is second
        else itertools.product(first, second)
        for first, second in itertools.combinations_with_replacement(kinds, 2)
    ]
    while waiting:
        left = []
        for pairs in waiting:
            pair = next(pairs, None)
            if pair is not None:
                yield pair
                left.append(pairs)
        waiting = left


def _find_apart(
    first: Sequence[int], second: Sequence[int], places: Mapping[int, int]
) -> tuple[int, int] | None:
    """A job of each kind that are in different packs."""
    i = first[0]
    for j in second:
        if places[i] != places[j]:
            return i, j
    # All of the second kind are where the first job is; another of the first kind may not be.
    for i in first:
        if places[i] != places[second[0]]:
            return i, second[0]
    return None


def _count_apart(first: Sequence[int], second: Sequence[int], places: Mapping[int, int]) -> int:
    """How many pairs of two kinds are in different packs."""
    counts: list[dict[int, int]] = []
    for kind in (first, second):
        counts.append({})
        for index in kind:
            counts[-1][places[index]] = counts[-1].get(places[index], 0) + 1
    if first is second:
        together = sum(n * (n - 1) // 2 for n in counts[0].values())
        return len(first) * (len(first) - 1) // 2 - together
    together = sum(n * counts[1].get(place, 0) for place, n in counts[0].items())
    return len(first) * len(second) - together
