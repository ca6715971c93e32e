"""How long a job may run by its QoS: what was asked within the hour, else Slurm."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.slurm.qos import read_qos
from slurm_colloc.store.qos import keep_qos, read_kept_qos

_UNKNOWN_KEPT_S = 60


def look_up_max_wall_s(
    group: Mapping[str, str],
    root: Path,
    cluster: str,
    *,
    max_time_s: int | None = None,
    now: float | None = None,
) -> tuple[int | None, str]:
    """The MaxWall that holds for a job, or MaxTime of its partition where that is shorter.

    Args:
        group: The options of sbatch that all jobs of a pack share.
        root: The state directory, which keeps the answer.
        cluster: The cluster's name; empty where it is not known.
        max_time_s: MaxTime of its partition, which a QoS may lift; None for no limit.
        now: Seconds since the epoch; None for the clock's.

    Returns:
        It in seconds, None where there is none; and why it is not known, empty where it is.
    """
    # No answer is kept under the minute in which it was none: the next minute asks again.
    minute = int((time.time() if now is None else now) // _UNKNOWN_KEPT_S)
    failed = f"{cluster} at minute {minute}"
    table = read_kept_qos(root, cluster) or read_kept_qos(root, failed)
    if table is None:
        table = read_qos(cluster=cluster)
        keep_qos(root, failed if table.unknown else cluster, table)
    asked = (group.get("qos"), group.get("account"), group.get("partition"))
    lifts = table.lifts_max_time(*asked)
    limits = (table.find_max_wall_s(*asked), None if lifts else max_time_s)
    return min((limit for limit in limits if limit is not None), default=None), table.unknown
