"""What keeps two jobs in different packs: the limits that they would break together."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from slurm_colloc.model.plan import OWN_RULES, Goal, PackPlan, Plan, Policy, Rule
from slurm_colloc.planning.explain.explanation import PairExplanation
from slurm_colloc.planning.explain.requested_separation import find_differences
from slurm_colloc.planning.job_needs import Question, compute_needs, is_host_memory_assumed
from slurm_colloc.planning.known_packs import is_known, weigh
from slurm_colloc.planning.limits.broken_limits import (
    Weighing,
    build_unknown,
    describe_goal,
    find_too_large,
    format_apart,
    name_needy,
)
from slurm_colloc.planning.limits.gpu_limits import build_limits
from slurm_colloc.planning.limits.hard_limits import Broken, find_broken
from slurm_colloc.planning.other_rules import find_rule
from slurm_colloc.planning.pack_request import compute_places_most, find_cut_gpu
from slurm_colloc.planning.plan_packs import find_keys
from slurm_colloc.planning.priced_packs import Subject
from slurm_colloc.planning.unknown_packs import (
    SPREAD,
    compute_refusal,
    find_late,
    is_open_ended,
)


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
        return tuple(self._tell_source(b, {i, j, *others}) for b in broken), others

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
        return dataclasses.replace(broken, text=text)

    def _find_limits(self, i: int, j: int) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        policy = self._question.policy
        differences = find_differences(self._question, self.keys, self._names, i, j)
        if differences:
            return differences, ()
        spread = self._find_spread(i, j)
        if spread is not None:
            return (spread,), ()
        if policy.rule not in OWN_RULES:
            packs = [_list_jobs(self._plan.packs[self.places[index]]) for index in (i, j)]
            return find_rule(policy.rule).find_broken(
                self._question, self._subjects, self._names, (packs[0], packs[1]), (i, j)
            )
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
        policy = self._question.policy
        gpus = policy.gpus_per_pack * policy.nodes_per_pack
        if gpus > 1:
            return Broken("gpus", None, None, f"jobs are spread evenly over packs of {gpus} GPUs")
        gpus = self._question.jobs[i].gpus
        if gpus > 1:
            text = f"{one.degree} of them share {gpus} GPUs at most"
            return Broken("gpus", one.degree + 1, one.degree, text)
        return None

    def _is_known(self, index: int) -> bool:
        if self._question.calibration is None or self._question.policy.rule is not Rule.CSUB:
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
        policy = dataclasses.replace(policy, degree=self._find_degree(i))
        question = dataclasses.replace(self._question, policy=policy)
        earlier = min(i, j, key=self.places.__getitem__)
        members = _list_jobs(self._plan.packs[self.places[earlier]])
        new = j if i in members else i
        limits = build_limits(question, [self._subjects[index] for index in (i, j)])
        size, most = policy.pack_size or policy.degree, compute_places_most(policy)
        if most is not None and not policy.pack_size and not limits.has_instances:
            size = min(size, most)
        limits = dataclasses.replace(limits, members=size, finish_s=None)
        needs = compute_needs(question, (*members, new))
        chosen = [
            dataclasses.replace(
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
        from slurm_colloc.planning.curve_packs import choose_groups

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
        return dataclasses.replace(broken, constraint="pack_size", text=text)
    if policy.is_small_for_queue and limit == policy.degree_max:
        text = f"{broken.text}, as smaller packs wait less in the queue"
        return dataclasses.replace(broken, constraint="queue", text=text)
    if limit == compute_places_most(policy):
        return dataclasses.replace(
            broken, text=f"{broken.text}: more cannot share by {policy.mode}"
        )
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
        pair = dataclasses.replace(known, pairs=known.pairs + pair.pairs)
    found[key] = pair
