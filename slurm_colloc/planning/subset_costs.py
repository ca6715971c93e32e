"""The costs of all packs that some jobs could form, at once: one array element for each subset.

Also: the cheapest partition of a few members, given what every subset of them costs.

A subset is a number whose bit i says that member i is in it. Imported only where a search needs
it: it loads numpy. Prices are those of planning.pack_pricing, in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.cost_columns import ARRAYS, Array, compute_spans_s
from slurm_colloc.planning.pack_pricing import (
    SETUP_S,
    SLACK,
    TINY_S,
    Family,
    Key,
    Pricing,
    compute_base_j,
    compute_energy_j,
    compute_percentages,
    compute_work_j,
    count_activity,
    predict_in,
)

_CHUNK_BITS = 13
"""Subsets are rated 8192 at a time: what that takes stays in the processor's cache."""


def compute_subset_costs(pricing: Pricing, key: Key) -> Array:
    """Cost of every subset of the members; infinite where it is not legal.

    Args:
        pricing: Prices of packs.
        key: The kinds of at most 20 members.
    """
    return _Subsets(pricing, key).compute_costs()


class _Subsets:
    """What is needed of all subsets, by subset.

    Attributes:
        members: How many members there are.
        sizes: How many members each subset has.
    """

    def __init__(self, pricing: Pricing, key: Key) -> None:
        self._pricing = pricing
        self._key = key
        self._subjects = [pricing.kinds[kind] for kind in key]
        self._loads = [subject.load or Load(0.0, 0.0, 0.0) for subject in self._subjects]
        self._activities = [count_activity(load) for load in self._loads]
        self.members = len(key)
        self.sizes = _sum_up([1] * self.members, np.int64)
        self._totals = np.maximum(_sum_up(self._activities, np.int64), 1)
        self._cores = _sum_up([subject.cpus for subject in self._subjects], np.float32)
        alone = [pricing.compute_cost_alone((kind,)) for kind in key]
        self._alone = _sum_up(alone, np.float64)
        margins = _fold([subject.margin for subject in self._subjects], np.maximum)
        alone_s = _sum_up([subject.run_s for subject in self._subjects], np.float64)
        self._alone_s = np.maximum(alone_s, TINY_S)
        self._time_limits_s = alone_s * (1.0 - margins)
        finish_s = pricing.limits.finish_s
        self._latest_s = None if finish_s is None else finish_s * (1.0 + SLACK) / (1.0 + margins)
        self._work_j = _sum_up([compute_work_j(subject) for subject in self._subjects], np.float64)
        self._base_j = _sum_up([compute_base_j(subject) for subject in self._subjects], np.float64)
        self._run_s = np.array([subject.run_s for subject in self._subjects], np.float32)

    def compute_costs(self) -> Array:
        """Cost of each subset."""
        costs = np.full(1 << self.members, np.inf)
        legal = self._find_legal()
        groups = list(self._group_by_size(legal))
        for family in self._pricing.families:
            usable = legal & self._fits(family)
            if not usable.any():
                continue
            slowdowns, bounded = self._rate(family)
            floors = self._compute_floors(family)
            usable &= bounded
            for subsets, places in groups:
                chosen = usable[subsets]
                if not chosen.any():
                    continue
                if not chosen.all():
                    subsets, places = subsets[chosen], places[:, chosen]  # noqa: PLW2901
                found = self._price(family, subsets, places, slowdowns, floors)
                costs[subsets] = np.minimum(costs[subsets], found)
        singles = 1 << np.arange(self.members)
        costs[singles] = self._alone[singles]
        costs[0] = 0.0
        return costs

    def _find_legal(self) -> Array:
        """Which subsets of two or more keep the hard limits; see planning.hard_limits."""
        limits = self._pricing.limits
        legal = self.sizes >= 2
        sums = (
            (limits.members, [1] * self.members),
            (limits.cpus, [subject.cpus for subject in self._subjects]),
            (limits.host_memory_mb, [subject.host_memory_mb or 0 for subject in self._subjects]),
            (limits.gpu_memory_mb, [subject.gpu_memory_mb or 0 for subject in self._subjects]),
        )
        for limit, needs in sums:
            if limit is not None and sum(needs) > limit:
                legal &= _sum_up(needs, np.int64) <= limit
        barred = [
            subject.load is None
            or (limits.finish_s is not None and subject.run_s > limits.finish_s)
            for subject in self._subjects
        ]
        if any(barred):
            legal &= _sum_up([int(no) for no in barred], np.int64) == 0
        return np.asarray(legal)

    def _fits(self, family: Family) -> Array | bool:
        if family.mode is not SharingMode.MIG:
            return True
        largest = _fold([s.gpu_memory_mb or 0 for s in self._subjects], np.maximum)
        rooms_mb = self._pricing.limits.list_rooms_mb(self.members)
        return np.asarray(largest <= np.array(rooms_mb)[self.sizes])

    def _group_by_size(self, legal: Array) -> Iterator[tuple[Array, Array]]:
        """Legal subsets of one size, and their members' numbers: a row for each place."""
        for size in range(2, self.members + 1):
            subsets = np.flatnonzero(legal & (self.sizes == size))
            if not len(subsets):
                continue
            places = np.empty((size, len(subsets)), np.int64)
            rest = subsets.copy()
            for place in range(size):
                lowest = rest & -rest
                places[place] = np.log2(lowest).astype(np.int64)
                rest ^= lowest
            yield subsets, places

    def _rate(self, family: Family) -> tuple[Array, Array]:
        """Slowdowns by member and subset, and whether all members of a subset bear them."""
        count = 1 << self.members
        slowdowns = np.ones((self.members, count), np.float32)
        bounded = np.ones(count, bool)
        low = min(self.members, _CHUNK_BITS)
        inner = np.arange(1 << low)
        flags = [((inner >> i) & 1).astype(np.float32) for i in range(low)]
        always = np.ones(1 << low, np.float32)
        for high in range(1 << (self.members - low)):
            # Members that no subset of this chunk has need not be looked at.
            inside = [*range(low), *(i for i in range(low, self.members) if high >> (i - low) & 1)]
            weights = [*flags, *[always] * (len(inside) - low)]
            part = slice(high << low, (high + 1) << low)
            sizes = np.maximum(self.sizes[part], 1)
            activities = [self._activities[i] for i in inside]
            totals = self._totals[part]
            percentages = [
                np.asarray(percent, np.float32 if family.mode is not SharingMode.MIG else np.int64)
                for percent in compute_percentages(family, activities, sizes, totals, ARRAYS)
            ]
            found = predict_in(
                family,
                [self._loads[i] for i in inside],
                percentages,
                ARRAYS,
                weights=weights,
                cores=np.maximum(self._cores[part], 1.0),
                power_room_w=self._pricing.power_room_w,
            )
            for place, i in enumerate(inside):
                slowdowns[i, part] = found[place]
                subject = self._subjects[i]
                surely = found[place] * (1.0 + subject.bound_margin)
                bears = surely <= subject.max_slowdown * (1.0 + SLACK)
                bounded[part] &= bears | (weights[place] == 0)
        return slowdowns, bounded

    def _compute_floors(self, family: Family) -> Array:
        """Slowdown of each member by its own limit alone, by limit in whole percent."""
        return np.array(
            [
                compute_floors(family, load, subject.cpus, self._pricing.power_room_w)
                for load, subject in zip(self._loads, self._subjects, strict=True)
            ],
            np.float32,
        )

    def _price(
        self, family: Family, subsets: Array, places: Array, slowdowns: Array, floors: Array
    ) -> Array:
        """Cost of subsets of one size under a family, whatever their members bear."""
        activities = np.array(self._activities)[places]
        percentages = np.array(
            np.broadcast_arrays(
                *compute_percentages(
                    family, list(activities), self.sizes[subsets], self._totals[subsets], ARRAYS
                )
            ),
            np.int64,
        )
        flat = slowdowns.reshape(-1)
        offsets = places << self.members
        bits = 1 << places

        def rate(running: Array) -> Array:
            left = (bits * running).sum(axis=0)
            return np.asarray(flat.take(offsets + left))

        run_s = self._run_s[places]
        first = flat.take(offsets + subsets)
        duration_s, ends_s = compute_spans_s(run_s, first, floors[places, percentages], rate)
        pricing = self._pricing
        working_s = duration_s.astype(np.float64)
        gpu_s = working_s + SETUP_S[family.mode]
        energy_j: Any = compute_energy_j(
            pricing.idle_power_w,
            gpu_s,
            working_s / self._alone_s[subsets],
            self._base_j[subsets],
            self._work_j[subsets],
        )
        delay_s: Any = ends_s.astype(np.float64) - run_s.sum(axis=0, dtype=np.float64)
        costs: Array = np.array(pricing.compute_cost(gpu_s, delay_s, energy_j))
        saved_s: Any = self._time_limits_s[subsets] - pricing.compute_time_s(gpu_s, delay_s)
        costs[saved_s <= 0] = np.inf
        if self._latest_s is not None:
            costs[gpu_s > self._latest_s[subsets]] = np.inf
        return costs


def compute_floors(family: Family, load: Load, cpus: int, power_room_w: float | None) -> Array:
    """Slowdown of a job by its own limit, without neighbours: for 0 (void), 1, 2... 100 percent."""
    percents = np.maximum(np.arange(101), 1)
    floors = predict_in(
        family,
        [load],
        [percents],
        ARRAYS,
        weights=[np.ones(101)],
        cores=np.full(101, float(cpus)),
        power_room_w=power_room_w,
    )[0]
    return np.asarray(floors)


def _sum_up(values: Sequence[float], kind: Any) -> Array:
    """Sum of the members' values, for each subset."""
    return _fold(np.array(values, kind), np.add)


def _fold(values: Any, operation: Callable[[Any, Any], Any]) -> Array:
    values = np.asarray(values)
    result = np.zeros(1, values.dtype)
    for value in values:
        result = np.concatenate([result, operation(result, value)])
    return result


# ---- The cheapest partition of a few members, given what every subset of them costs --------------
#
# A subset is a number whose bit i says that member i is in it. Imported only where a search needs
# it: it loads numpy.

_FEW = 4


def find_cheapest_partition(costs: Array) -> list[int]:
    """Divide all members into packs of least total cost: exact, in time 3^members.

    A subset that has member m as its highest costs least as the best of its packs with m alongside
    the best partition of the others; for all subsets with that highest member this is a
    convolution over subsets, of their costs and the best that are known for lower members.

    Args:
        costs: Of each pack, by subset; a single member's is finite.

    Returns:
        The packs, as subsets, that of the highest member first. Among equal ones the choice
        depends on the costs alone.
    """
    best = np.array([0.0])
    members = len(costs).bit_length() - 1
    for member in range(members - 1):
        best = np.concatenate([best, _convolve(costs[1 << member : 2 << member], best)])
    packs = []
    rest = np.int64(len(costs) - 1)
    while rest:
        highest = 1 << (int(rest).bit_length() - 1)
        others = _list_subsets(int(rest) ^ highest)
        totals = costs[others | highest] + best[others[::-1]]
        pack = int(others[int(np.argmin(totals))]) | highest
        packs.append(pack)
        rest ^= pack
    return packs


def _list_subsets(members: int) -> Array:
    """All subsets of a set, ascending: the complement of the i-th is the i-th from the end."""
    result = np.zeros(1, np.int64)
    for bit in range(members.bit_length()):
        if members >> bit & 1:
            result = np.concatenate([result, result | (1 << bit)])
    return result


def _convolve(first: Array, second: Array) -> Array:
    """For each subset, the least sum of the first of a part of it and the second of the rest.

    Each member is in neither part, in the first's or in the second's: three cases, which are laid
    out member after member, and of which the latter two are taken together afterwards. The last
    few members are gone through one case after the other, which takes less memory.
    """
    bits = len(first).bit_length() - 1
    few = min(bits, _FEW)
    left: Array = first.astype(np.float32)
    right: Array = second.astype(np.float32)
    for done in range(bits - few):
        left = left.reshape(1 << few, 3**done, 2, -1)[:, :, (0, 1, 0)]
        right = right.reshape(1 << few, 3**done, 2, -1)[:, :, (0, 0, 1)]
    left, right = left.reshape(1 << few, -1), right.reshape(1 << few, -1)
    sums = left + right[0]
    room = np.empty_like(sums[0])
    for subset in range(1, 1 << few):
        part = (subset - 1) & subset
        while True:
            np.add(left[part], right[subset ^ part], out=room)
            np.minimum(sums[subset], room, out=sums[subset])
            if not part:
                break
            part = (part - 1) & subset
    for done in range(bits - few - 1, -1, -1):
        sums = sums.reshape(1 << few, 3**done, 3, -1)
        both = np.minimum(sums[:, :, 1], sums[:, :, 2])
        sums = np.stack([sums[:, :, 0], both], axis=2)
    return np.asarray(sums.reshape(-1))
