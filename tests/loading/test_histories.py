"""Whatever happens to its neighbours, each member sees each sample once an epoch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .loader_programs import make_history, run_program

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FEW = 4
HISTORIES = int(os.environ.get("CSUB_LOADER_HISTORIES", "0"))


def show(directory: Path, history: dict[str, Any]) -> list[Any]:
    import json

    (shown,) = run_program("histories.py", str(directory), json.dumps(history))
    assert shown["problems"] == []
    seen: list[Any] = shown["seen"]
    return seen


@pytest.mark.parametrize(
    "count",
    [FEW, pytest.param(HISTORIES or 60, marks=[pytest.mark.long, pytest.mark.timeout(0)])],
)
def test_members_start_late_are_slow_stop_and_die(tmp_path: Path, count: int) -> None:
    first = 0 if count == FEW else 1000
    found = run_program("histories.py", str(tmp_path), str(first), str(count), limit_s=20 * count)
    *wrong, last = found
    assert wrong == []
    assert last["histories"] == count
    assert last["common"] > count / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_all_get_what_one_has_made(tmp_path: Path, workers: int) -> None:
    seen = show(tmp_path, make_history(4, workers=workers))
    assert len(seen) == 4
    assert seen[1:] == seen[:1] * 3
    noise = {(epoch, each) for epoch, _, drawn, _ in seen[0] for each in drawn}
    # No two samples, and no two epochs, have the same augmentation.
    assert len(noise) == 2 * 61
    orders = [[each for epoch, ids, *_ in seen[0] if epoch == n for each in ids] for n in (0, 1)]
    assert orders[0] != orders[1]
    makers = {maker for epoch, _, _, maker in seen[0] if epoch == 0}
    assert len(makers) == (1 if not workers else len(makers))


@pytest.mark.long
def test_forty_eight_members_share_one_producer(tmp_path: Path) -> None:
    # More batches than a window has: the first member's end is not before the last one's start.
    seen = show(tmp_path, make_history(48, epochs=1, length=300))
    assert len(seen) == 48
    assert len({maker for each in seen for _, _, _, maker in each}) == 1


def test_a_fork_in_the_middle_is_no_member(tmp_path: Path) -> None:
    seen = show(tmp_path, make_history(2, fork_at=3, epochs=1))
    assert [sum(len(ids) for _, ids, *_ in each) for each in seen] == [61, 61]


def test_a_slow_member_goes_its_own_way_and_holds_no_one_up(tmp_path: Path) -> None:
    members = [{"seed": n, "start_s": 0, "use_s": 0.3 * (n == 2)} for n in range(3)]
    seen = show(tmp_path, make_history(3, members=members, length=120, epochs=1))
    makers = [{maker for *_, maker in each} for each in seen]
    assert makers[0] == makers[1]
    assert makers[0] < makers[2]
