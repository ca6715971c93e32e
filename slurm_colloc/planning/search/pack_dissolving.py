"""Taking packs apart, their members going to other packs.

Moving one member at a time does not get from five packs of four to four packs of five: the first
moves gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_colloc.planning.predict.pack_costs import GAIN_MIN, Costs
from slurm_colloc.planning.predict.pack_pricing import Key

_NEAR = 24
"""Other packs that may take a member, at most: the nearest in length."""
_EFFORT = 400_000
"""As in exchanging: members that may be rated, in packs tried."""


def dissolve(costs: Costs, packs: list[Key]) -> list[Key]:
    """Take one pack apart at a time, the longest first, while that makes all together cheaper.

    Each of its members, the longest first, goes where it costs least.
    """
    most = costs.effort + _EFFORT
    packs = sorted(packs, key=lambda pack: (-costs.measure_length_s(pack), pack))
    tried: set[Key] = set()
    place = 0
    while place < len(packs) and costs.effort < most:
        pack = packs[place]
        near = _find_near(len(packs), place)
        found = None if pack in tried else _spread(costs, pack, [packs[i] for i in near], most)
        tried.add(pack)
        if found is None:
            place += 1
            continue
        for i, taken in zip(near, found, strict=True):
            packs[i] = taken
        del packs[place]
        place = max(0, place - _NEAR // 2)
        tried.clear()
    return packs


def _find_near(count: int, place: int) -> list[int]:
    """Places of the packs nearest in length, without its own."""
    first = max(0, min(place - _NEAR // 2, count - 1 - _NEAR))
    return [i for i in range(first, min(count, first + _NEAR + 1)) if i != place]


def _spread(costs: Costs, pack: Key, others: Sequence[Key], most: int) -> list[Key] | None:
    """The other packs with the members of this one; None where that is not cheaper.

    Nor is there an answer where finding it takes more effort than is left.
    """
    taking = list(others)
    left = costs.look_up([pack])[0] * (1 - GAIN_MIN)
    by_length = sorted(pack, key=lambda kind: (-costs.measure_length_s((kind,)), kind))
    for kind in by_length:
        if costs.effort >= most:
            return None
        grown = [tuple(sorted((*other, kind))) for other in taking]
        rises = [
            after - before if after < math.inf else math.inf
            for before, after in zip(costs.look_up(taking), costs.look_up(grown), strict=True)
        ]
        least = min(range(len(taking)), key=lambda i: (rises[i], taking[i]), default=None)
        if least is None or rises[least] >= left:
            return None
        left -= rises[least]
        taking[least] = grown[least]
    return taking
