"""What a pack costs under its best legal setting, one pack at a time.

Also: the ways of sharing that are tried for a pack; what packs cost, asked for many at once, for a
search that need not be exact; what a plan wins or loses in the queue, as far as the waits of
earlier jobs tell.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slurm_colloc.model.late_definitions import dataclass, fields, replace
from slurm_colloc.model.plan import (
    MPS_CLIENTS_MAX,
    Goal,
    PackPlan,
    Plan,
    SharingMode,
    WaitEstimate,
    WaitTable,
)
from slurm_colloc.model.usage_profile import Calibration, Load, ModeModel
from slurm_colloc.planning.contention import AT_WORK_W, predict_slowdowns
from slurm_colloc.planning.hard_limits import (
    MIG_EIGHTHS,
    MIG_MEMBERS_MAX,
    MIG_SLICES,
    Broken,
    Limits,
    Priced,
    Setting,
    Subject,
    find_broken,
    find_broken_instances,
)

# ---- The ways of sharing that are tried for a pack; on plain numbers, or on arrays of many packs -

SETUP_S = {
    SharingMode.EXCLUSIVE: 0.0,
    SharingMode.TIMESLICE: 0.0,
    SharingMode.MPS: 2.0,
    SharingMode.MIG: 10.0,
}
"""Seconds for which the GPU is held on top: to start MPS, to make MIG instances."""

_PERCENT = 100
_SHARE_MIN = 10
_UNITS = 1_000_000


@dataclass(frozen=True)
class Arithmetic:
    """What differs between plain numbers and arrays.

    Attributes:
        minimum: The smaller of two, elementwise.
        maximum: The larger of two, elementwise.
        pick: Elements of a table by index.
    """

    minimum: Callable[[Any, Any], Any]
    maximum: Callable[[Any, Any], Any]
    pick: Callable[[Sequence[float], Any], Any]


PLAIN = Arithmetic(min, max, lambda table, index: table[index])


@dataclass(frozen=True)
class Family:
    """One way of sharing, for packs of any size.

    Attributes:
        mode: The sharing mode.
        model: Its model of contention.
        total: Under MPS: what the members' thread limits add up to, in percent; 0 for no limits.
        by_activity: The limits are in proportion to the members' SM activities, not equal.
    """

    mode: SharingMode
    model: ModeModel
    total: int = 0
    by_activity: bool = False


def build_families(
    calibration: Calibration | None, modes: Sequence[SharingMode]
) -> tuple[Family, ...]:
    """The ways of sharing of these modes, as far as there is a model of them.

    MIG needs no fitted model: what its instances share is little (science: model M3), and over
    PCIe they copy at the same time as members under MPS do.
    """
    families: list[Family] = []
    models = {} if calibration is None else calibration.modes
    for mode in sorted(set(modes)):
        model = models.get(mode.value)
        if mode is SharingMode.TIMESLICE and model is not None:
            families.append(Family(mode, model))
        if mode is SharingMode.MPS and model is not None:
            families += [Family(mode, model, total) for total in (200, 0, 100, 300)]
            families.append(Family(mode, model, 200, by_activity=True))
        if mode is SharingMode.MIG and calibration is not None:
            mps = models.get(SharingMode.MPS.value, ModeModel())
            families.append(Family(mode, model or ModeModel(copying=mps.copying)))
    return tuple(families)


def compute_power_room_w(calibration: Calibration | None) -> float | None:
    """Power limit of a GPU above its idle power; None where unknown."""
    if calibration is None or calibration.idle_power_w is None:
        return None
    limit_w = calibration.power_limit_w
    return None if limit_w is None else max(0.0, limit_w - calibration.idle_power_w)


def is_tried(family: Family, count: int) -> bool:
    """Whether a family says something of its own for packs of this size."""
    if family.mode is SharingMode.MIG:
        return count <= MIG_MEMBERS_MAX
    # Limits of all threads are none.
    return not family.total or family.by_activity or family.total // count < _PERCENT


def count_activity(load: Load) -> int:
    """SM activity in whole millionths, at least one, so that sums of it are exact."""
    return max(1, round(load.sm * _UNITS))


def compute_percentages(
    family: Family, activities: Sequence[Any], count: Any, total: Any, arithmetic: Arithmetic
) -> list[Any]:
    """The limit of each member in whole percent of the GPU's threads or SMs.

    Args:
        family: The way of sharing.
        activities: Of each member, from `count_activity`.
        count: How many members run.
        total: Sum of the activities of those.
        arithmetic: For numbers or arrays.
    """
    if family.mode is SharingMode.MIG:
        slices = arithmetic.pick(MIG_SLICES, arithmetic.minimum(count, MIG_MEMBERS_MAX))
        return [slices * _PERCENT // 7] * len(activities)
    if not family.total:
        return [_PERCENT + 0 * count] * len(activities)
    if family.by_activity:
        return [
            arithmetic.minimum(
                arithmetic.maximum(family.total * activity // total, _SHARE_MIN), _PERCENT
            )
            for activity in activities
        ]
    equal = arithmetic.minimum(arithmetic.maximum(family.total // count, 1), _PERCENT)
    return [equal] * len(activities)


def _compute_stretch(percent: int) -> float:
    """1/e of an instance: e is the harmonic mean of its share of SMs and of memory."""
    slices = max(1, min(7, round(percent * 7 / _PERCENT)))
    eighths = MIG_EIGHTHS.get(slices, slices + 1)
    return (7 / slices + 8 / eighths) / 2


_STRETCHES = tuple(_compute_stretch(percent) for percent in range(_PERCENT + 1))


def predict_in(
    family: Family,
    loads: Sequence[Load],
    percentages: Sequence[Any],
    arithmetic: Arithmetic,
    *,
    weights: Sequence[Any] | None = None,
    cores: Any = None,
    power_room_w: float | None = None,
    larger: Callable[[Any, Any], Any] = max,
) -> list[Any]:
    """Each member's slowdown under these limits; see planning.contention.

    MIG instances have SMs and DRAM of their own, and a member on one gets slower as
    `1 - B + B/e`, with B the larger of its SM and DRAM activity; only PCIe, host and power are
    common (science.md, model M3). What earlier packs showed them to do to each other was without
    walls: it is no part of it.
    """
    predict = functools.partial(
        predict_slowdowns,
        model=family.model,
        weights=weights,
        cores=cores,
        power_room_w=power_room_w,
        maximum=arithmetic.maximum,
        larger=larger,
    )
    if family.mode is not SharingMode.MIG:
        return predict(loads, [percent / _PERCENT for percent in percentages])
    outside = [
        replace(load, engine=0.0, sm=0.0, dram=0.0, tensor=0.0, sensitivity=0.0, pressure=0.0)
        for load in loads
    ]
    common = predict(outside, [1.0 + 0.0 * percent for percent in percentages])
    slowdowns = []
    for load, percent, slowdown in zip(loads, percentages, common, strict=True):
        bound = arithmetic.maximum(load.sm, load.dram)
        stretch = arithmetic.pick(_STRETCHES, percent)
        slowdowns.append(slowdown * (1.0 - bound + bound * stretch))
    return slowdowns


# ---- How long a pack lasts: when a member ends, those left are rated anew ------------------------
#
# Those left keep their thread limits. They are taken to go as fast as they would where the same way
# of sharing were chosen for them alone, but no faster than its own limit lets each go alone. Of
# five members or fewer each end counts; in a larger pack those left are rated anew when a fifth has
# ended, which takes their slowdown for a little higher than it is.

TIE = 1e-6
"""Members whose ends are closer than this, relatively, end together."""

KEPT_SHARE = (4, 5)
"""Where no more than this share of the members is left of those that were rated, they are rated
anew."""


def compute_ends_s(
    run_s: Sequence[float],
    floors: Sequence[float],
    rate: Callable[[tuple[int, ...]], Sequence[float]],
) -> list[float]:
    """When each member of a pack ends.

    Args:
        run_s: Seconds that each takes alone.
        floors: Slowdown of each by its own limit, without neighbours.
        rate: The slowdowns of those that still run, by their positions, in the same order.

    Returns:
        Seconds from the pack's start.
    """
    left = list(run_s)
    ends = [0.0] * len(left)
    running = tuple(range(len(left)))
    slowdowns: dict[int, float] = {}
    rated = 0
    clock = 0.0
    while running:
        if not rated or len(running) * KEPT_SHARE[1] <= rated * KEPT_SHARE[0]:
            rated = len(running)
            slowdowns = {
                i: max(slowdown, floors[i])
                for i, slowdown in zip(running, rate(running), strict=True)
            }
        step = min(left[i] * slowdowns[i] for i in running)
        clock += step
        ended = {i for i in running if left[i] * slowdowns[i] <= step * (1 + TIE)}
        for i in running:
            left[i] = max(0.0, left[i] - step / slowdowns[i])
            if i in ended:
                ends[i] = clock
        running = tuple(i for i in running if i not in ended)
    return ends


# The energy of a GPU while a pack holds it; of numbers or arrays.
#
# A GPU that works at all draws more than an idle one, once, however many members it has
# (contention.AT_WORK_W); what their work takes on top is the same however fast it is done. So
# sharing saves what the GPU draws by itself in the time that it saves.
#
# Jobs that draw less than that by themselves count with what they draw; with others the mean over
# the members' time alone is taken, as not all of them are there all the time.

TINY_S = 1e-9
"""So that nothing is divided by no time at all."""


def compute_base_j(subject: Subject) -> float:
    """Energy above idle that a job alone takes because its GPU works at all, in joules."""
    return min(AT_WORK_W, subject.load.power_w) * subject.run_s if subject.load else 0.0


def compute_work_j(subject: Subject) -> float:
    """Energy on top of that which a job's work takes, in joules."""
    return max(0.0, subject.load.power_w - AT_WORK_W) * subject.run_s if subject.load else 0.0


def compute_energy_j(
    idle_power_w: float | None, held_s: Any, working_share: Any, base_j: Any, work_j: Any
) -> Any:
    """Energy of a pack in joules; None where the idle power is unknown.

    Args:
        idle_power_w: Power of the idle GPU.
        held_s: Seconds for which the pack holds it.
        working_share: How long the pack works over how long its members would one after the other.
        base_j: Sum of the members' `compute_base_j`.
        work_j: Sum of their `compute_work_j`.
    """
    if idle_power_w is None:
        return None
    return idle_power_w * held_s + base_j * working_share + work_j


# ---- What a pack costs under its best legal setting, one pack at a time --------------------------

Key = tuple[int, ...]
"""A pack without names: its members' kinds, ascending."""

SLACK = 1e-5
"""By how much, relatively, a bound may be passed: it covers rounding in single precision."""

_take_shares = operator.attrgetter(*(entry.name for entry in fields(Load)))


class Pricing:
    """Prices of packs of given jobs on one GPU.

    Packs are named by their members: positions in `subjects`. Subjects of equal content have one
    kind, whatever their `kind` says, and a multiset of kinds has one price.

    Attributes:
        subjects: The jobs.
        limits: What one GPU has.
        goal: What costs count.
        families: The ways of sharing that are tried, the preferred first.
        kinds: By number of a kind: one subject of it. Kinds are in the order of their content.
        kind_of: The kind of each subject.
        power_room_w: Power limit of the GPU above its idle power; None where unknown.
        idle_power_w: Its idle power; None where unknown.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        limits: Limits,
        calibration: Calibration | None,
        *,
        goal: Goal = Goal.THROUGHPUT,
        modes: Sequence[SharingMode] = (SharingMode.MPS, SharingMode.TIMESLICE),
    ) -> None:
        self.subjects = tuple(subjects)
        self.limits = limits
        self.goal = goal
        self.families = build_families(calibration, modes)
        contents = [_order_content(subject) for subject in self.subjects]
        numbers = {content: number for number, content in enumerate(sorted(set(contents)))}
        self.kind_of = tuple(numbers[content] for content in contents)
        by_kind = dict(zip(self.kind_of, self.subjects, strict=True))
        self.kinds = tuple(by_kind[number] for number in range(len(numbers)))
        self.idle_power_w = None if calibration is None else calibration.idle_power_w
        self.power_room_w = compute_power_room_w(calibration)
        self._activities = tuple(
            count_activity(kind.load) if kind.load else 1 for kind in self.kinds
        )
        self._prices: dict[Key, Priced | None] = {}
        self._rates: dict[tuple[int, Key], tuple[tuple[int, ...], list[float]]] = {}
        self._floors: dict[tuple[int, int, int], float] = {}

    def find_broken(self, members: Sequence[int]) -> tuple[Broken, ...]:
        """Every hard limit that these jobs would break together; none for one job."""
        return find_broken([self.subjects[i] for i in members], self.limits)

    def price(self, members: Sequence[int]) -> Priced | None:
        """The best legal setting of a pack; None where it has none, or saves nothing.

        A job alone is always legal: the whole GPU, slowdown 1.
        """
        order = sorted(range(len(members)), key=lambda place: self.kind_of[members[place]])
        priced = self.price_key(tuple(self.kind_of[members[place]] for place in order))
        if priced is None or order == list(range(len(members))):
            return priced
        back = sorted(range(len(members)), key=lambda place: order[place])
        setting = Setting(
            priced.setting.mode, tuple(priced.setting.percentages[place] for place in back)
        )
        return Priced(
            setting,
            tuple(priced.slowdowns[place] for place in back),
            priced.duration_s,
            priced.gpu_s,
            priced.energy_j,
            priced.cost,
        )

    def price_key(self, key: Key) -> Priced | None:
        """The same for a multiset of kinds; what is per member is in the key's order."""
        if key not in self._prices:
            self._prices[key] = self._compute(key)
        return self._prices[key]

    def remember(self, key: Key, priced: Priced | None) -> None:
        """Keep a price that was computed along with many others."""
        self._prices.setdefault(key, priced)

    def compute_cost_alone(self, key: Key) -> float:
        """What the members of a pack cost one after the other."""
        total = 0.0
        for kind in key:
            priced = self.price_key((kind,))
            assert priced is not None
            total += priced.cost
        return total

    def compute_time_limit_s(self, key: Key) -> float:
        """What a shared pack has to take less than, to be worth its risk; see `compute_time_s`."""
        return sum(self.kinds[kind].run_s for kind in key) * (1.0 - self.find_margin(key))

    def find_margin(self, key: Key) -> float:
        """By how much the prediction of a pack may be wrong, relatively: as that of its worst."""
        return max(self.kinds[kind].margin for kind in key)

    def compute_cost(self, gpu_s: Any, delay_s: Any, energy_j: Any) -> Any:
        """What the goal counts; of numbers or arrays.

        Args:
            gpu_s: Seconds for which the GPU is held.
            delay_s: By how much later than alone the members end, summed up.
            energy_j: Energy; None where unknown: then GPU time stands for it.
        """
        if self.goal is Goal.ENERGY and energy_j is not None:
            return energy_j
        return self.compute_time_s(gpu_s, delay_s)

    def compute_time_s(self, gpu_s: Any, delay_s: Any) -> Any:
        """The time that a pack has to save; of numbers or arrays.

        That is GPU time, also where energy counts: most of a GPU's energy is that of the work, and
        it is time that the prediction may be wrong by. Latency counts on top by how much later than
        alone the members end, so that a pack has to save more than its members wait for.
        """
        return gpu_s + delay_s if self.goal is Goal.LATENCY else gpu_s

    def compute_pack_energy_j(self, key: Key, working_s: float, mode: SharingMode) -> float | None:
        """Energy of a pack of these kinds that works for so long; None where it is unknown."""
        members = [self.kinds[kind] for kind in key]
        energy_j: float | None = compute_energy_j(
            self.idle_power_w,
            working_s + SETUP_S[mode],
            working_s / max(TINY_S, sum(member.run_s for member in members)),
            sum(map(compute_base_j, members)),
            sum(map(compute_work_j, members)),
        )
        return energy_j

    def _compute(self, key: Key) -> Priced | None:
        if len(key) == 1:
            return self._price_alone(key[0])
        members = [self.kinds[kind] for kind in key]
        if not key or any(member.load is None for member in members):
            return None
        if find_broken(members, self.limits):
            return None
        best: Priced | None = None
        for number, family in enumerate(self.families):
            if not is_tried(family, len(key)):
                continue
            if family.mode is SharingMode.MIG and find_broken_instances(members, self.limits):
                continue
            priced = self._price_in(number, key, members)
            if priced is not None and (best is None or priced.cost < best.cost):
                best = priced
        return best

    def _price_alone(self, kind: int) -> Priced:
        subject = self.kinds[kind]
        energy_j = self.compute_pack_energy_j((kind,), subject.run_s, SharingMode.EXCLUSIVE)
        cost = self.compute_cost(subject.run_s, 0.0, energy_j)
        setting = Setting(SharingMode.EXCLUSIVE, (None,))
        return Priced(setting, (1.0,), subject.run_s, subject.run_s, energy_j, cost)

    def _price_in(self, number: int, key: Key, members: Sequence[Subject]) -> Priced | None:
        percentages, slowdowns = self._rate(number, key)
        for member, slowdown in zip(members, slowdowns, strict=True):
            surely = slowdown * (1.0 + member.bound_margin)
            if surely > member.max_slowdown * (1.0 + SLACK):
                return None
        floors = [
            self.compute_floor(number, kind, percent)
            for kind, percent in zip(key, percentages, strict=True)
        ]
        run_s = [member.run_s for member in members]
        ends = compute_ends_s(
            run_s, floors, lambda running: self._rate(number, tuple(key[i] for i in running))[1]
        )
        family = self.families[number]
        duration_s = max(ends)
        gpu_s = duration_s + SETUP_S[family.mode]
        if self.limits.finish_s is not None:
            latest_s = gpu_s * (1.0 + self.find_margin(key))
            if latest_s > self.limits.finish_s * (1.0 + SLACK):
                return None
        delay_s = sum(ends) - sum(run_s)
        if self.compute_time_s(gpu_s, delay_s) >= self.compute_time_limit_s(key):
            return None
        energy_j = self.compute_pack_energy_j(key, duration_s, family.mode)
        cost = self.compute_cost(gpu_s, delay_s, energy_j)
        setting = build_setting(family, percentages)
        return Priced(setting, tuple(slowdowns), duration_s, gpu_s, energy_j, cost)

    def _rate(self, number: int, key: Key) -> tuple[tuple[int, ...], list[float]]:
        """Limits in percent, and slowdowns under them."""
        found = self._rates.get((number, key))
        if found is None:
            family = self.families[number]
            activities = [self._activities[kind] for kind in key]
            percentages = compute_percentages(family, activities, len(key), sum(activities), PLAIN)
            slowdowns = predict_in(
                family,
                [_get_load(self.kinds[kind]) for kind in key],
                percentages,
                PLAIN,
                cores=float(sum(self.kinds[kind].cpus for kind in key)),
                power_room_w=self.power_room_w,
            )
            found = self._rates[number, key] = (tuple(percentages), slowdowns)
        return found

    def compute_floor(self, number: int, kind: int, percent: int) -> float:
        """A job's slowdown by its limit, without neighbours."""
        entry = (number, kind, percent)
        if entry not in self._floors:
            self._floors[entry] = predict_in(
                self.families[number],
                [_get_load(self.kinds[kind])],
                [percent],
                PLAIN,
                cores=float(self.kinds[kind].cpus),
                power_room_w=self.power_room_w,
            )[0]
        return self._floors[entry]


def build_setting(family: Family, percentages: Sequence[int]) -> Setting:
    """A setting of a family; a limit of all threads is none."""
    return Setting(
        family.mode, tuple(None if percent >= _PERCENT else int(percent) for percent in percentages)
    )


def _get_load(subject: Subject) -> Load:
    assert subject.load is not None
    return subject.load


def _order_content(subject: Subject) -> tuple[object, ...]:
    """All that distinguishes subjects, so that they can be sorted.

    What a load has none of comes first: where a place of all packs has none, the model on arrays
    leaves it out.
    """
    load = subject.load
    shares = () if load is None else _take_shares(load)
    return (
        tuple(map(bool, shares)),
        subject.run_s,
        shares,
        subject.cpus,
        -1 if subject.host_memory_mb is None else subject.host_memory_mb,
        -1 if subject.gpu_memory_mb is None else subject.gpu_memory_mb,
        subject.max_slowdown,
        subject.margin,
        subject.bound_margin,
    )


# ---- What packs cost, asked for many at once, for a search that need not be exact ----------------

GAIN_MIN = 1e-9
"""A smaller relative gain is rounding."""

RATINGS_MAX = 8
_CALL = 300
"""So many packs are priced in the time that it takes to call for one."""
_MEMO_MAX = 200_000
_THOROUGH_MAX, _THOROUGH_WIDTH = 400, 12
"""Of so many subjects, at most, every pack is priced closely that has no more members."""


class Costs:
    """Costs of packs, many at once, and of packs seen before from memory.

    Attributes:
        pricing: The prices.
        members_max: Members of a pack at most: one MPS server takes no more, whatever is allowed.
        effort: How many members have been rated, roughly: a measure of the time that was taken
            which is the same on every machine.
    """

    def __init__(self, pricing: Pricing) -> None:
        from slurm_colloc.planning.cost_columns import Columns, choose_width

        self.pricing = pricing
        self.members_max = pricing.limits.members or MPS_CLIENTS_MAX
        self._columns = Columns(pricing)
        self._choose_width = choose_width
        self._is_small = len(pricing.subjects) <= _THOROUGH_MAX
        self._known: dict[Key, float] = {(): 0.0}
        self.effort = 0

    def look_up(self, packs: Sequence[Key]) -> list[float]:
        """The cost of each; infinite where it is not legal."""
        if len(self._known) > _MEMO_MAX:
            self._known = {(): 0.0}
        new: dict[int, dict[Key, None]] = {}
        for pack in packs:
            if pack in self._known:
                continue
            if len(pack) == 1:
                self._known[pack] = self.pricing.compute_cost_alone(pack)
            elif len(pack) > self.members_max:
                self._known[pack] = math.inf
            else:
                new.setdefault(self._choose_width(len(pack)), {})[pack] = None
        for width, alike in new.items():
            thorough = self._is_small and width <= _THOROUGH_WIDTH
            found = self._columns.compute_costs(list(alike), thorough=thorough)
            self._known.update(zip(alike, found, strict=True))
            self.effort += (len(alike) + _CALL) * width * min(width, RATINGS_MAX)
        return [self._known[pack] for pack in packs]

    def remember(self, packs: Iterable[Key]) -> None:
        """Let the Pricing know the full prices of these."""
        self._columns.remember(set(packs))

    def measure_length_s(self, pack: Key) -> float:
        """How long a pack lasts at least: its longest member alone."""
        return max(self.pricing.kinds[kind].run_s for kind in pack)


# ---- What a plan wins or loses in the queue, as far as the waits of earlier jobs tell; pure ------

SAME_GPU_TIME = 0.05
"""Plans whose GPU times differ by no more are as good as each other for the cluster."""


@dataclass(frozen=True)
class Outlook:
    """What a plan comes to with the queue before it.

    Attributes:
        gpu_s: Seconds for which its packs hold GPUs.
        mean_wait_s: Mean over its jobs: median wait of their pack's request, in seconds.
        mean_finish_s: The same of the wait and the time of their pack.
    """

    gpu_s: float
    mean_wait_s: float
    mean_finish_s: float


def estimate_wait(pack: PackPlan, waits: WaitTable) -> WaitEstimate | None:
    """How long a pack waits; None where nothing tells."""
    if pack.request is not None:
        return waits.estimate(pack.request.gpus, pack.request.time_limit_s)
    return waits.estimate(1, pack.members[0].wall_limit_s)


def foresee(plan: Plan, waits: WaitTable) -> Outlook | None:
    """What a plan comes to, by median waits; None where a pack's wait or time is unknown."""
    gpu_s = wait_s = finish_s = 0.0
    jobs = 0
    for pack in plan.packs:
        wait = estimate_wait(pack, waits)
        if wait is None or pack.predicted_finish_s is None:
            return None
        gpu_s += pack.predicted_finish_s
        wait_s += len(pack.members) * wait.median_s
        finish_s += len(pack.members) * (wait.median_s + pack.predicted_finish_s)
        jobs += len(pack.members)
    return Outlook(gpu_s, wait_s / jobs, finish_s / jobs) if jobs else None


def choose_by_queue(plans: Sequence[Plan], waits: WaitTable) -> tuple[Plan, str]:
    """The plan whose jobs end first among those that take as little GPU time as the first.

    Args:
        plans: The plan by its own merits, then others.
        waits: How long requests wait.

    Returns:
        It, and why it is not the first; empty where it is.
    """
    first = foresee(plans[0], waits)
    if first is None:
        return plans[0], ""
    best, best_outlook = plans[0], first
    for plan in plans[1:]:
        outlook = foresee(plan, waits)
        if outlook is None or outlook.gpu_s > first.gpu_s * (1 + SAME_GPU_TIME):
            continue
        if outlook.mean_finish_s < best_outlook.mean_finish_s:
            best, best_outlook = plan, outlook
    if best is plans[0]:
        return best, ""
    return best, (
        f"{len(best.packs)} packs instead of {len(plans[0].packs)}: with the queue as it was "
        f"lately, jobs end after {best_outlook.mean_finish_s / 60:.0f} min on average instead of "
        f"{first.mean_finish_s / 60:.0f} min (of which they wait "
        f"{best_outlook.mean_wait_s / 60:.0f} and {first.mean_wait_s / 60:.0f} min), for "
        f"{best_outlook.gpu_s / 3600:.2f} instead of {first.gpu_s / 3600:.2f} GPU hours"
    )
