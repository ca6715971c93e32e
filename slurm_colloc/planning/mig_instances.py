"""Equal MIG instances of one GPU: how many there can be, and what each has.

Of GPUs with 7 compute slices and 8 memory slices (NVIDIA, MIG user guide, supported profiles).
"""

from __future__ import annotations

from slurm_colloc.model.plan import MIG_INSTANCES_MAX

MIG_MEMBERS_MAX = MIG_INSTANCES_MAX
MIG_SLICES = (7, 7, 3, 2, 1, 1, 1, 1)
"""Slices of each of 0, 1, 2... equal instances: all that fit onto 7 slices and 8 eighths."""
MIG_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the GPU's memory that an instance of so many slices gets."""


def compute_mig_memory_share(count: int) -> float:
    """Share of the GPU's memory that each of so many equal instances has."""
    return MIG_EIGHTHS[MIG_SLICES[min(count, MIG_MEMBERS_MAX)]] / 8


def compute_instance_mb(usable_mb: int, count: int) -> int:
    """What needs may fill of the memory of each of so many equal instances, in MB."""
    return int(usable_mb * compute_mig_memory_share(count))
