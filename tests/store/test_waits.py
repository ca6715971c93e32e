"""What sacct told is kept for an hour."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.plan import PastJob, WaitTable, build_wait_table
from slurm_colloc.store.kept_answers import KEPT_S, keep, read_kept

TABLE = build_wait_table([PastJob(1, 3600, float(n)) for n in range(30)])


def keep_waits(root: Path, partition: str | None, table: WaitTable) -> None:
    keep(root, f"of-{partition}", partition, table)


def read_waits(root: Path, partition: str | None) -> WaitTable | None:
    return read_kept(root, f"of-{partition}", partition, WaitTable)


def path_of(root: Path) -> Path:
    (path,) = (root / "waits").iterdir()
    return path


def test_what_is_kept_is_private(tmp_path: Path) -> None:
    root = tmp_path / "state" / "slurm_colloc"
    keep_waits(root, "gpu", TABLE)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_was_kept_is_read_of_its_partition_alone(tmp_path: Path) -> None:
    assert read_waits(tmp_path, "gpu") is None
    keep_waits(tmp_path, "gpu", TABLE)
    assert read_waits(tmp_path, "gpu") == TABLE
    assert read_waits(tmp_path, None) is None
    unknown = WaitTable(0, {}, "Slurm keeps no accounts here")
    keep_waits(tmp_path, None, unknown)
    assert read_waits(tmp_path, None) == unknown
    keep_waits(tmp_path, "../x,y", TABLE)
    assert read_waits(tmp_path, "../x,y") == TABLE
    assert read_waits(tmp_path, ".._x_y") is None
    assert {path.parent for path in (tmp_path / "waits").iterdir()} == {tmp_path / "waits"}


@pytest.mark.parametrize(
    "changes",
    [
        {"made_at": time.time() - KEPT_S - 60},
        {"made_at": time.time() + 3600},
        {"made_at": "then"},
        {"cells": None},
        {"cells": [[1, 2]]},
        {"cells": [[[1, 0], [float("inf"), 1.0, 2.0]]]},
        {"cells": [[[1, 0], [30, 10**400, 2.0]]]},
        {"cells": [[[[1], 0], [30, 1.0, 2.0]]]},
        {"made_at": 10**400},
        {"made_at": float("inf")},
        {"jobs": "many"},
        {"jobs": float("inf")},
        {"schema": 99},
    ],
)
def test_what_is_old_or_damaged_is_asked_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    keep_waits(tmp_path, "gpu", TABLE)
    path = path_of(tmp_path)
    value = json.loads(path.read_text())
    is_of_answer = changes.keys() <= value["answer"].keys()
    changed = {"answer": {**value["answer"], **changes}} if is_of_answer else changes
    path.write_text(json.dumps({**value, **changed}))
    assert read_waits(tmp_path, "gpu") is None


def test_what_cannot_be_kept_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "waits").write_text("")
    keep_waits(tmp_path, "gpu", TABLE)
    assert read_waits(tmp_path, "gpu") is None
