"""What packs cost, asked for many at once, for a search that need not be exact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from slurm_colloc.model.plan import MPS_CLIENTS_MAX
from slurm_colloc.planning.predict.pack_pricing import Key, Pricing

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
        from slurm_colloc.planning.predict.cost_columns import Columns, choose_width

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
