"""`waits/PARTITION.json`: how long jobs waited, kept for an hour so that sacct is asked seldom."""

from __future__ import annotations

import contextlib
import math
import re
import time
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.waits import Cell, WaitTable
from slurm_colloc.store.files import make_directory, read_json, write_json

KEPT_S = 3600.0

_FOLDER = "waits"


def _path(root: Path, partition: str | None) -> Path:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", partition or "")[:100]
    return root / _FOLDER / f"of-{name}.json"


def read_waits(root: Path, partition: str | None) -> WaitTable | None:
    """What was kept of a partition; None where that is old, damaged or not there."""
    try:
        value = read_json(_path(root, partition))
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
    path = _path(root, partition)
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
