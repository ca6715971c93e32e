"""csub's own search for packs: exact for few jobs or few kinds of them, local for many."""

from __future__ import annotations

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
    return local_search.partition(pricing)
