"""The prices of many packs at once: an array for each place, an element of it for each pack.

Prices are those of pack_pricing. Imported only where a search needs it: it loads numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.predict.array_arithmetic import Array, compute_spans_s
from slurm_colloc.planning.predict.pack_duration import (
    KEPT_SHARE,
    TINY_S,
    compute_base_j,
    compute_energy_j,
    compute_work_j,
)
from slurm_colloc.planning.predict.pack_pricing import SLACK, Key, Pricing, build_setting
from slurm_colloc.planning.predict.sharing_trials import KindTable, Trials
from slurm_colloc.planning.predict.sharing_ways import (
    SETUP_S,
    is_tried,
)
from slurm_colloc.planning.priced_packs import Priced

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
        """Which packs keep the hard limits; see planning.limits.hard_limits."""
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
