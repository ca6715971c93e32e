"""csub's own search for packs: exact for few jobs or few kinds of them, local for many."""

from __future__ import annotations

from slurm_colloc.planning import exact, local
from slurm_colloc.planning.exact import Partition
from slurm_colloc.planning.pricing import Pricing


def partition(pricing: Pricing) -> Partition:
    """Divide all subjects into packs of least total cost, or little more where they are many.

    Returns:
        Positions in `pricing.subjects`; each is in exactly one pack. It does not depend on the
        order of the subjects, as far as they differ.
    """
    if exact.is_small(tuple(sorted(pricing.kind_of))):
        return exact.partition(pricing)
    return local.partition(pricing)
