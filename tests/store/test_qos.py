"""What Slurm told of qualities of service is kept for an hour."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.qos_limits import Association, Qos, QosTable
from slurm_colloc.store.learned.kept_answers import keep_qos, read_kept_qos
from slurm_colloc.store.learned.kept_cluster import KEPT_S

TABLE = QosTable(
    {"normal": Qos(3600, over_partition=True), "long": Qos(None, over_max_time=True)},
    (Association("physics", "gpu", is_default=True, qos="normal", max_wall_s=60),),
    {"gpu": "long"},
    "gpu",
    "",
)


def test_what_was_kept_is_read_of_its_cluster_alone(tmp_path: Path) -> None:
    assert read_kept_qos(tmp_path, "here") is None
    keep_qos(tmp_path, "here", TABLE)
    assert read_kept_qos(tmp_path, "here") == TABLE
    assert read_kept_qos(tmp_path, "there") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"made_at": time.time() - KEPT_S - 60},
        {"made_at": float("inf")},
        {"made_at": 10**400},
        {"made_at": None},
        {"known": {"normal": [float("inf"), True, False]}},
        {"known": {"normal": [10**400, True, False]}},
        {"known": {"normal": [0, True, False]}},
        {"known": [1]},
        {"associations": [[1, 2]]},
    ],
)
def test_what_is_old_or_damaged_is_asked_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    keep_qos(tmp_path, "here", TABLE)
    path = tmp_path / "waits" / "qos.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert read_kept_qos(tmp_path, "here") is None
