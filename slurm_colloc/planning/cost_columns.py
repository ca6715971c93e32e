"""The prices of many packs at once: an array for each place, an element of it for each pack.

Also: arithmetic on arrays of many packs. Imported only where a search needs it: it loads numpy;
packs under ways of sharing that are tried: an array for each place, an element for each trial.

Prices are those of pack_pricing. Imported only where a search needs it: it loads numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from slurm_colloc.model.late_definitions import dataclass, fields
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.hard_limits import Priced, Subject
from slurm_colloc.planning.pack_pricing import (
    KEPT_SHARE,
    SETUP_S,
    SLACK,
    TIE,
    TINY_S,
    Arithmetic,
    Family,
    Key,
    Pricing,
    build_setting,
    compute_base_j,
    compute_energy_j,
    compute_percentages,
    compute_work_j,
    count_activity,
    is_tried,
    predict_in,
)

# ---- Arithmetic on arrays of many packs. Imported only where a search needs it: it loads numpy ---

Array = np.ndarray[Any, Any]

ARRAYS = Arithmetic(np.minimum, np.maximum, lambda table, index: np.asarray(table)[index])


def compute_spans_s(
    run_s: Array,
    slowdowns: Array,
    floors: Array,
    rate: Callable[[Array], Array],
    *,
    taken: Array | None = None,
    kept_share: tuple[int, int] = KEPT_SHARE,
) -> tuple[Array, Array]:
    """When packs end, and the sum of when their members do.

    The same as durations.compute_ends_s; a row for each place, a column for each pack.

    Args:
        run_s: Seconds that each member takes alone.
        slowdowns: While all run.
        floors: Slowdown of each by its own limit, without neighbours.
        rate: The slowdowns where only some still run, as flags.
        taken: Which places have a member; None for all.
        kept_share: When they are rated anew; see durations.KEPT_SHARE.
    """
    left = run_s.copy()
    running = np.ones(run_s.shape, bool) if taken is None else taken.copy()
    clock = np.zeros(run_s.shape[1], run_s.dtype)
    ends = np.zeros(run_s.shape[1], run_s.dtype)
    rated = running.sum(axis=0)
    slowdowns = np.maximum(slowdowns, floors)
    while True:
        spans = left * slowdowns
        spans[~running] = np.inf
        step = spans.min(axis=0)
        step[np.isinf(step)] = 0.0
        ended = spans <= step * (1.0 + TIE)
        clock += step
        ends += clock * ended.sum(axis=0)
        running &= ~ended
        counts = running.sum(axis=0)
        if not counts.any():
            return clock, ends
        left -= step / slowdowns
        np.maximum(left, 0.0, out=left)
        due = (counts * kept_share[1] <= rated * kept_share[0]) & (counts > 0)
        if due.any():
            rated[due] = counts[due]
            np.copyto(slowdowns, np.maximum(rate(running), floors), where=due)


# ----
# Packs under ways of sharing that are tried: an array for each place, an element for each trial.
#
# Imported only where a search needs it: it loads numpy.

_NARROWED = 0.8
"""Where no more than this share of the places is taken, the others are not gone through."""

_FIELDS = tuple(entry.name for entry in fields(Load))


@dataclass(frozen=True)
class Trials:
    """Packs, each under one family of the same sharing mode, ordered by family.

    Attributes:
        table: What is known of the kinds.
        families: The families, with how many trials each has.
        kinds: The members' kinds: a row for each place, a column for each trial.
        taken: Which places have a member.
        loads: Of each place.
        cpus: As `kinds`.
        activities: As `kinds`.
        run_s: As `kinds`.
    """

    table: KindTable
    families: list[tuple[Family, int]]
    kinds: Array
    taken: Array
    loads: list[Load]
    cpus: Array
    activities: Array
    run_s: Array

    def rate(self, running: Array) -> tuple[Array, Array]:
        """Limits and slowdowns of those that run, in what is left of their packs."""
        counts = np.maximum(running.sum(axis=0), 1)
        totals = np.maximum((self.activities * running).sum(axis=0), 1)
        percentages = np.empty(self.kinds.shape, np.int64)
        begin = 0
        for family, trials in self.families:
            part = slice(begin, begin + trials)
            begin += trials
            percentages[:, part] = compute_percentages(
                family, list(self.activities[:, part]), counts[part], totals[part], ARRAYS
            )
        slowdowns = self.predict(percentages, running)
        return percentages, slowdowns

    def predict(self, percentages: Array, running: Array) -> Array:
        """Slowdowns of those that run, under given limits."""
        weights = running.astype(self.cpus.dtype)
        family = self.families[0][0]
        limits = percentages
        if family.mode is not SharingMode.MIG:
            limits = percentages.astype(weights.dtype)
        found = predict_in(
            family,
            self.loads,
            list(limits),
            ARRAYS,
            weights=list(weights),
            cores=np.maximum((self.cpus * running).sum(axis=0), self.cpus.dtype.type(1)),
            power_room_w=self.table.power_room_w,
            larger=np.maximum,
        )
        return _stack(found, weights)

    def rate_left(self, running: Array) -> Array:
        """Slowdowns of those that run; what is said of the others means nothing.

        Where few are left, only as many places are gone through.
        """
        width = int(running.sum(axis=0).max())
        if width > len(running) * _NARROWED:
            return self.rate(running)[1]
        places = np.argsort(~running, axis=0, kind="stable")[:width]
        kinds = np.take_along_axis(self.kinds, places, axis=0)
        taken = np.take_along_axis(running, places, axis=0)
        narrow = self.table.build_trials(self.families, kinds, taken, self.cpus.dtype)
        slowdowns = np.ones(running.shape, self.cpus.dtype)
        np.put_along_axis(slowdowns, places, narrow.rate(taken)[1], axis=0)
        return slowdowns

    def compute_floors(self, percentages: Array) -> Array:
        """Slowdowns by the own limit, without neighbours."""
        # All places in one row: as many packs of one.
        kinds = self.kinds.reshape(1, -1)
        everyone = np.ones(kinds.shape, bool)
        each = self.table.build_trials(self.families, kinds, everyone, self.cpus.dtype)
        return each.predict(percentages.reshape(1, -1), everyone).reshape(self.kinds.shape)


class KindTable:
    """What is known of kinds of subjects, by number of the kind.

    Attributes:
        power_room_w: Power limit of the GPU above its idle power; None where unknown.
    """

    def __init__(self, kinds: Sequence[Subject], power_room_w: float | None) -> None:
        loads = [kind.load or Load(0.0, 0.0, 0.0) for kind in kinds]
        self._shares = {name: np.array([getattr(x, name) for x in loads]) for name in _FIELDS}
        self._activities = np.array([count_activity(load) for load in loads])
        self._cpus = np.array([kind.cpus for kind in kinds])
        self._run_s = np.array([kind.run_s for kind in kinds])
        self.power_room_w = power_room_w

    def build_trials(
        self, families: list[tuple[Family, int]], kinds: Array, taken: Array, precision: Any
    ) -> Trials:
        """Trials of packs under families of one mode.

        Args:
            families: With how many trials each has, one after the other.
            kinds: A row for each place, a column for each trial.
            taken: Which places have a member.
            precision: The type of floating-point numbers.
        """
        return Trials(
            self,
            families,
            kinds,
            taken,
            [self._build_load(row, precision) for row in kinds],
            self._cpus[kinds].astype(precision),
            self._activities[kinds],
            (self._run_s[kinds] * taken).astype(precision),
        )

    def _build_load(self, kinds: Array, precision: Any) -> Load:
        columns: dict[str, Any] = {}
        for name, shares in self._shares.items():
            column = shares[kinds].astype(precision)
            columns[name] = column if column.any() else 0.0
        return Load(**columns)


def _stack(rows: Sequence[Any], like: Array) -> Array:
    result = np.empty_like(like)
    for place, row in enumerate(rows):
        result[place] = row
    return result


# ---- The prices of many packs at once: an array for each place, an element of it for each pack ---

_CHUNK = 1024
_SMALL = 8
_PROMISING = {True: 2, False: 1}
_ROUGH_SHARE = {True: (1, 2), False: (1, 4)}
"""Where a price may be a little wrong, in packs of up to so many members and in larger ones: how
many families are looked at closely, and when those left are rated anew (durations.KEPT_SHARE)."""

_WIDTHS = (2, 3, 4, 6, 8, 12, 24, 48)


@dataclass(frozen=True)
class _Tries:
    """Packs under all families of a sharing mode.

    Attributes:
        numbers: Of the families.
        estimates: Of twice the time that packs hold the GPU, a row for each family; infinite where
            a pack is not legal.
        percentages: Limits: a row for each place, a column for each pack, family after family.
        slowdowns: As `percentages`.
    """

    numbers: list[int]
    estimates: Array
    percentages: Array
    slowdowns: Array


@dataclass(frozen=True)
class _Found:
    """The best settings of packs.

    Attributes:
        costs: Infinite where there is none.
        families: Number of the family.
        duration_s: Of the pack.
        percentages: Limits: a row for each place.
        slowdowns: As `percentages`.
    """

    costs: Array
    families: Array
    duration_s: Array
    percentages: Array
    slowdowns: Array


class Columns:
    """Prices packs of the kinds of a Pricing."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        kinds = pricing.kinds
        self._table = KindTable(kinds, pricing.power_room_w)
        self._unknown = np.array([kind.load is None for kind in kinds])
        self._cpus = np.array([kind.cpus for kind in kinds])
        self._host_memory_mb = np.array([kind.host_memory_mb or 0 for kind in kinds])
        self._gpu_memory_mb = np.array([kind.gpu_memory_mb or 0 for kind in kinds])
        self._run_s = np.array([kind.run_s for kind in kinds])
        self._margin = np.array([kind.margin for kind in kinds])
        self._bound_margin = np.array([kind.bound_margin for kind in kinds])
        self._bound = np.array([kind.max_slowdown for kind in kinds]) * (1.0 + SLACK)
        self._work_j = np.array([compute_work_j(kind) for kind in kinds])
        self._base_j = np.array([compute_base_j(kind) for kind in kinds])

    def compute_costs(self, packs: Sequence[Key], *, thorough: bool) -> list[float]:
        """Cost of each pack; infinite where none is legal.

        What it takes grows with the largest pack.

        Args:
            packs: Of two or more: the kinds of their members, ascending.
            thorough: Whether it is the price; else the cost by the family that looks best, which
                is close to it, in less time.
        """
        costs = np.full(len(packs), np.inf)
        for rows, _, found in self._price(packs, thorough=thorough):
            costs[rows] = found.costs
        return [float(cost) for cost in costs]

    def remember(self, packs: Iterable[Key]) -> None:
        """Price these packs, and let the Pricing know."""
        by_width: dict[int, list[Key]] = {}
        for pack in sorted(packs):
            if len(pack) > 1:
                by_width.setdefault(choose_width(len(pack)), []).append(pack)
        for same in by_width.values():
            for rows, kinds, found in self._price(same, thorough=True):
                for place, row in enumerate(rows.tolist()):
                    pack = same[row]
                    self._pricing.remember(pack, self._build(found, len(pack), kinds, place))

    def _build(self, found: _Found, size: int, kinds: Array, place: int) -> Priced | None:
        if np.isinf(found.costs[place]):
            return None
        family = self._pricing.families[int(found.families[place])]
        duration_s = float(found.duration_s[place])
        return Priced(
            build_setting(family, found.percentages[:size, place].tolist()),
            tuple(found.slowdowns[:size, place].tolist()),
            duration_s,
            duration_s + SETUP_S[family.mode],
            self._pricing.compute_pack_energy_j(
                tuple(kinds[:size, place].tolist()), duration_s, family.mode
            ),
            float(found.costs[place]),
        )

    def _price(
        self, packs: Sequence[Key], *, thorough: bool
    ) -> Iterable[tuple[Array, Array, _Found]]:
        """Price in chunks: their rows, their members' kinds, their prices.

        What breaks hard limits is in none of them. A pack smaller than the largest is filled up
        with its last kind, in places that are not taken.
        """
        sizes = np.array([len(pack) for pack in packs])
        width = int(sizes.max())
        rows = np.array([pack + pack[-1:] * (width - len(pack)) for pack in packs])
        legal = np.flatnonzero(self._find_legal(rows, sizes))
        if not len(legal):
            return
        for begin in range(0, len(legal), _CHUNK):
            part = legal[begin : begin + _CHUNK]
            kinds = np.ascontiguousarray(rows[part].T)
            taken = np.arange(width)[:, np.newaxis] < sizes[part]
            yield part, kinds, self._price_chunk(kinds, taken, thorough=thorough)

    def _find_legal(self, rows: Array, sizes: Array) -> Array:
        """Which packs keep the hard limits; see planning.hard_limits."""
        limits = self._pricing.limits
        taken = np.arange(rows.shape[1]) < sizes[:, np.newaxis]
        legal = ~self._unknown[rows].any(axis=1)
        if limits.members is not None:
            legal &= sizes <= limits.members
        for limit, needs in (
            (limits.cpus, self._cpus),
            (limits.host_memory_mb, self._host_memory_mb),
            (limits.gpu_memory_mb, self._gpu_memory_mb),
        ):
            if limit is not None:
                legal &= (needs[rows] * taken).sum(axis=1) <= limit
        if limits.finish_s is not None:
            legal &= (self._run_s[rows] <= limits.finish_s).all(axis=1)
        return np.asarray(legal)

    def _price_chunk(self, kinds: Array, taken: Array, *, thorough: bool) -> _Found:
        places, packs = kinds.shape
        found = _Found(
            np.full(packs, np.inf),
            np.zeros(packs, np.int64),
            np.zeros(packs),
            np.zeros((places, packs), np.int64),
            np.ones((places, packs)),
        )
        sizes = taken.sum(axis=0)
        modes: dict[SharingMode, list[int]] = {}
        for number, family in enumerate(self._pricing.families):
            if any(is_tried(family, size) for size in {int(sizes.min()), int(sizes.max())}):
                modes.setdefault(family.mode, []).append(number)
        tried = [
            self._try(mode, numbers, kinds, taken, thorough=thorough)
            for mode, numbers in modes.items()
        ]
        if not thorough and tried:
            every = np.concatenate([tries.estimates for tries in tried])
            closely = min(_PROMISING[places <= _SMALL], len(every))
            enough = np.sort(every, axis=0)[closely - 1]
            for tries in tried:
                tries.estimates[tries.estimates > enough] = np.inf
        for tries in tried:
            if np.isfinite(tries.estimates).any():
                self._keep_best(tries, kinds, taken, found, thorough=thorough)
        return found

    def _choose_trials(
        self,
        numbers: Sequence[int],
        chosen: Array,
        kinds: Array,
        taken: Array,
        *,
        thorough: bool,
    ) -> Trials:
        """Trials of packs under families: a row of flags for each family."""
        packs = np.nonzero(chosen)[1]
        families = [
            (self._pricing.families[number], int(row.sum()))
            for number, row in zip(numbers, chosen, strict=True)
        ]
        precision = np.float64 if thorough else np.float32
        return self._table.build_trials(families, kinds[:, packs], taken[:, packs], precision)

    def _try(
        self,
        mode: SharingMode,
        numbers: list[int],
        kinds: Array,
        taken: Array,
        *,
        thorough: bool,
    ) -> _Tries:
        """Rate packs under all families of a mode, and estimate how long they last."""
        chosen = np.ones((len(numbers), kinds.shape[1]), bool)
        trials = self._choose_trials(numbers, chosen, kinds, taken, thorough=thorough)
        percentages, slowdowns = trials.rate(trials.taken)
        surely = slowdowns * (1.0 + self._bound_margin[trials.kinds])
        legal = ((surely <= self._bound[trials.kinds]) | ~trials.taken).all(axis=0)
        if mode is SharingMode.MIG:
            legal &= self._fit_instances(trials)
        # All the work at the speed at the beginning, and the longest while neighbours are there:
        # about twice what it takes, so the setup counts twice, too.
        work = trials.run_s.sum(axis=0) / (trials.taken / slowdowns).sum(axis=0)
        estimates = work + trials.run_s.max(axis=0) + 2.0 * SETUP_S[mode]
        estimates[~legal] = np.inf
        return _Tries(numbers, estimates.reshape(chosen.shape), percentages, slowdowns)

    def _keep_best(
        self, tries: _Tries, kinds: Array, taken: Array, found: _Found, *, thorough: bool
    ) -> None:
        """Price what may be good, and note where it is cheaper than what was found."""
        pricing = self._pricing
        chosen = np.isfinite(tries.estimates)
        numbers = tries.numbers
        trials = self._choose_trials(numbers, chosen, kinds, taken, thorough=thorough)
        percentages = tries.percentages[:, chosen.ravel()]
        slowdowns = tries.slowdowns[:, chosen.ravel()]
        duration_s, ends_s = compute_spans_s(
            trials.run_s,
            slowdowns,
            trials.compute_floors(percentages),
            trials.rate_left,
            taken=trials.taken,
            kept_share=KEPT_SHARE if thorough else _ROUGH_SHARE[len(kinds) <= _SMALL],
        )
        working_s = duration_s.astype(float)
        gpu_s = working_s + SETUP_S[trials.families[0][0].mode]
        alone_s = (self._run_s[trials.kinds] * trials.taken).sum(axis=0)
        delay_s = ends_s.astype(float) - alone_s
        work_j = (self._work_j[trials.kinds] * trials.taken).sum(axis=0)
        base_j = (self._base_j[trials.kinds] * trials.taken).sum(axis=0)
        share = working_s / np.maximum(alone_s, TINY_S)
        energy_j = compute_energy_j(pricing.idle_power_w, gpu_s, share, base_j, work_j)
        costs = np.array(pricing.compute_cost(gpu_s, delay_s, energy_j))
        margins = self._margin[trials.kinds].max(axis=0)
        costs[pricing.compute_time_s(gpu_s, delay_s) >= alone_s * (1.0 - margins)] = np.inf
        finish_s = pricing.limits.finish_s
        if finish_s is not None:
            costs[gpu_s * (1.0 + margins) > finish_s * (1.0 + SLACK)] = np.inf
        families, packs = np.nonzero(chosen)
        for place, number in enumerate(numbers):
            mine = np.flatnonzero(families == place)
            mine = mine[costs[mine] < found.costs[packs[mine]]]
            into = packs[mine]
            found.costs[into] = costs[mine]
            found.families[into] = number
            found.duration_s[into] = duration_s[mine]
            found.percentages[:, into] = percentages[:, mine]
            found.slowdowns[:, into] = slowdowns[:, mine]

    def _fit_instances(self, trials: Trials) -> Array:
        sizes = trials.taken.sum(axis=0)
        rooms_mb = self._pricing.limits.list_rooms_mb(len(trials.kinds))
        needs_mb = self._gpu_memory_mb[trials.kinds].max(axis=0)
        return np.asarray(needs_mb <= np.array(rooms_mb)[sizes])


def choose_width(size: int) -> int:
    """Up to which size packs are priced together with those of a size."""
    return next((width for width in _WIDTHS if width >= size), size)
