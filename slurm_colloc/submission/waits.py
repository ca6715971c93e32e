"""How long requests wait in a partition: what was asked within the hour, else one sacct."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.model.waits import WaitTable, build_wait_table
from slurm_colloc.slurm.history import read_history
from slurm_colloc.store.waits import keep_waits, read_waits


def look_up_waits(partition: str | None, root: Path) -> WaitTable:
    """How long requests wait in a partition, as far as Slurm's accounting tells.

    Args:
        partition: The partition; None for the default one, of which all partitions tell.
        root: The state directory, which keeps the answer.
    """
    kept = read_waits(root, partition)
    if kept is not None:
        return kept
    jobs, unknown = read_history(partition)
    table = WaitTable(0, {}, unknown) if unknown else build_wait_table(jobs)
    keep_waits(root, partition, table)
    return table
