"""What Slurm has answered, kept for an hour in `waits/` so that it is asked seldom."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.qos_limits import Association, Qos, QosTable
from slurm_colloc.model.queue_waits import Cell, WaitTable
from slurm_colloc.store.atomic_files import make_directory, read_json, write_json
from slurm_colloc.store.learned.kept_cluster import KEPT_FOLDER, KEPT_S

_WALL_MOST_S = 60 * 2**32
"""Slurm keeps a time as 32 bits of minutes."""


def _path(root: Path) -> Path:
    return root / KEPT_FOLDER / "qos.json"


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
    known = {
        str(name): Qos(
            _parse_wall(max_wall_s),
            bool(over_partition),
            bool(over_max_time),
            *map(_parse_count, counts),
        )
        for name, (max_wall_s, over_partition, over_max_time, *counts) in value["known"].items()
    }
    return QosTable(
        known,
        tuple(
            Association(
                str(account),
                str(of),
                bool(is_default),
                str(qos),
                _parse_wall(wall),
                *map(_parse_count, counts),
            )
            for account, of, is_default, qos, wall, *counts in value["associations"]
        ),
        {str(name): str(qos) for name, qos in value["partitions"].items()},
        str(value["default_partition"]),
        str(value["unknown"]),
    )


def _parse_wall(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= _WALL_MOST_S:
        raise ValueError("no time")
    return value


def _parse_count(value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError("no number")
    return value


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
                    name: list(dataclasses.astuple(entry)) for name, entry in table.known.items()
                },
                "associations": [list(dataclasses.astuple(row)) for row in table.associations],
                "partitions": dict(table.partitions),
                "default_partition": table.default_partition,
                "unknown": table.unknown,
            },
        )


def _waits_path(root: Path, partition: str | None) -> Path:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", partition or "")[:100]
    return root / KEPT_FOLDER / f"of-{name}.json"


def read_waits(root: Path, partition: str | None) -> WaitTable | None:
    """What was kept of a partition; None where that is old, damaged or not there."""
    try:
        value = read_json(_waits_path(root, partition))
    except StateError:
        return None
    if value is None or value.get("partition") != partition:
        return None
    with contextlib.suppress(KeyError, OverflowError, TypeError, ValueError):
        age_s = time.time() - float(value["made_at"])
        if not 0 <= age_s <= KEPT_S:
            return None
        cells: dict[Cell, tuple[int, float, float]] = {}
        for gpus, bucket, jobs, median_s, p90_s in value["cells"]:
            figures = (int(jobs), float(median_s), float(p90_s))
            if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
                return None
            cells[gpus, bucket] = figures
        return WaitTable(int(value["jobs"]), cells, str(value["unknown"]))
    return None


def keep_waits(root: Path, partition: str | None, table: WaitTable) -> None:
    """Keep the waits of a partition; where that cannot be, they are asked for again.

    Args:
        root: The state directory.
        partition: The partition; None for all.
        table: Its waits.
    """
    path = _waits_path(root, partition)
    with contextlib.suppress(StateError):
        # Before the first submission the state directory may not be there yet, and it is private.
        make_directory(root)
        make_directory(path.parent)
        write_json(
            path,
            {
                "partition": partition,
                "made_at": time.time(),
                "jobs": table.jobs,
                "unknown": table.unknown,
                "cells": [[*cell, *figures] for cell, figures in table.cells.items()],
            },
        )
