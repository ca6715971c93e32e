"""`waits/qos.json`: qualities of service, kept for an hour so that Slurm is asked seldom."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.qos import Qos, QosTable
from slurm_colloc.store.files import make_directory, read_json, write_json
from slurm_colloc.store.waits import KEPT_S

_WALL_MOST_S = 60 * 2**32
"""Slurm keeps a time as 32 bits of minutes."""


def _path(root: Path) -> Path:
    return root / "waits" / "qos.json"


def read_kept_qos(root: Path, cluster: str) -> QosTable | None:
    """What was kept of a cluster; None where that is old, damaged or not there.

    Args:
        root: The state directory.
        cluster: The cluster's name; empty where it is not known.
    """
    try:
        value = read_json(_path(root))
    except StateError:
        return None
    if value is None or value.get("cluster") != cluster:
        return None
    with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
        if 0 <= time.time() - float(value["made_at"]) <= KEPT_S:
            return _parse(value)
    return None


def _parse(value: Mapping[str, Any]) -> QosTable:
    known = {}
    for name, (max_wall_s, over_partition) in value["known"].items():
        is_time = isinstance(max_wall_s, int) and 0 < max_wall_s <= _WALL_MOST_S
        if max_wall_s is not None and not is_time:
            raise ValueError(f"{name}: no time")
        known[str(name)] = Qos(max_wall_s, bool(over_partition))
    return QosTable(
        known,
        tuple((str(a), str(p), str(q)) for a, p, q in value["defaults"]),
        {str(name): str(qos) for name, qos in value["partitions"].items()},
        str(value["default_partition"]),
        str(value["unknown"]),
    )


def keep_qos(root: Path, cluster: str, table: QosTable) -> None:
    """Keep what Slurm told of a cluster; where that cannot be, it is asked again."""
    with contextlib.suppress(StateError):
        # Before the first submission the state directory may not be there yet, and it is private.
        make_directory(root)
        make_directory(_path(root).parent)
        write_json(
            _path(root),
            {
                "cluster": cluster,
                "made_at": time.time(),
                "known": {
                    name: [entry.max_wall_s, entry.over_partition]
                    for name, entry in table.known.items()
                },
                "defaults": [list(row) for row in table.defaults],
                "partitions": dict(table.partitions),
                "default_partition": table.default_partition,
                "unknown": table.unknown,
            },
        )
