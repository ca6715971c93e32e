"""Packs under ways of sharing that are tried: an array for each place, an element for each trial.

Imported only where a search needs it: it loads numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_colloc.model.calibration import Load
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.predict.array_arithmetic import ARRAYS, Array
from slurm_colloc.planning.predict.sharing_ways import (
    Family,
    compute_percentages,
    count_activity,
    predict_in,
)
from slurm_colloc.planning.priced_packs import Subject

_NARROWED = 0.8
"""Where no more than this share of the places is taken, the others are not gone through."""

_FIELDS = tuple(entry.name for entry in dataclasses.fields(Load))


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
