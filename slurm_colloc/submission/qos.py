"""How long a job may run by its QoS: what was asked within the hour, else Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.slurm.qos import read_qos
from slurm_colloc.store.qos import keep_qos, read_kept_qos


def look_up_max_wall_s(group: Mapping[str, str], root: Path, cluster: str) -> int | None:
    """The MaxWall that holds for a job; None where there is none, or Slurm does not tell.

    Args:
        group: The options of sbatch that all jobs of a pack share.
        root: The state directory, which keeps the answer.
        cluster: The cluster's name; empty where it is not known.
    """
    table = read_kept_qos(root, cluster)
    if table is None:
        table = read_qos()
        keep_qos(root, cluster, table)
    return table.find_max_wall_s(group.get("qos"), group.get("account"), group.get("partition"))
