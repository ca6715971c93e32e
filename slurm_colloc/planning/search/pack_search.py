"""csub's own search for packs: exact for few jobs or few kinds of them, local for many."""

from __future__ import annotations

import math

from slurm_colloc.model.plan import Goal
from slurm_colloc.planning.predict.pack_pricing import Pricing
from slurm_colloc.planning.search import exact_search, local_search
from slurm_colloc.planning.search.exact_search import Partition


def partition(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of least total cost, or little more where they are many.

    Returns:
        Positions in `pricing.subjects`; each is in exactly one pack. It does not depend on the
        order of the subjects, as far as they differ.
    """
    if exact_search.is_small(tuple(sorted(pricing.kind_of))):
        return exact_search.partition(pricing)
    if pricing.goal is Goal.ENERGY and pricing.idle_power_w is not None:
        return _save_energy(pricing)
    return local_search.partition(pricing)


def _save_energy(pricing: Pricing) -> Partition:
    """The better of what is found by energy and by GPU time: no goal saves more energy."""
    by_time = local_search.partition(pricing.count_time())
    # What was legal by a hair, as it was rounded there, may not be here.
    by_time = tuple(
        part
        for members in by_time
        for part in ((members,) if pricing.price(members) else ((i,) for i in members))
    )
    if pricing.is_energy_time():
        return by_time
    by_energy = local_search.partition(pricing)
    return min(by_energy, by_time, key=lambda packs: _add_up(pricing, packs))


def _add_up(pricing: Pricing, packs: Partition) -> float:
    priced = [pricing.price(members) for members in packs]
    return sum(math.inf if one is None else one.cost for one in priced)
