"""A summary that is damaged, or another user's: whatever is in it, no report fails on it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.report.report_view import render_reports
from slurm_colloc.report.summary_file import fits_summary, read_summary, summary_path

from ..recordings.recorded import H200
from .generated import Truth, build_summary, make_pack, write_stops
from .situations import SITUATIONS, is_there

BAD: tuple[Any, ...] = (
    None, True, "x\x1b[31m<b>", -1, 3, 1e300, float("nan"), float("inf"), [], [None], {}, {"a": 1},
)  # fmt: skip


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from list_paths(value[key], (*path, key))
    elif isinstance(value, list):
        for place in range(min(2, len(value))):
            yield from list_paths(value[place], (*path, place))


def change(summary: Any, path: tuple[Any, ...], value: Any, *, left_out: bool = False) -> Any:
    changed = copy.deepcopy(summary)
    part = changed
    for key in path[:-1]:
        part = part[key]
    if left_out:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return changed


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    truths = [
        Truth(1, 0, 100, lambda at: 20 if at < 60 else 12, stops=[(70.0, 80.0)]),
        Truth(2, 60, 100, lambda _: 9),
    ]
    made = make_pack(tmp_path, truths, predicted={1: 1.4, 2: 1.5})
    write_stops(made, truths)
    return made


@pytest.mark.long
def test_a_report_is_made_of_whatever_fits(pack: Path, tmp_path: Path) -> None:
    summary = build_summary(pack, tmp_path)
    summary["members"][0]["mig"] = {
        "planned": None, "profile": "3g.40gb", "uuid": "MIG-1", "memory_mb": 40_000,
        "shared_by": None, "sm_active": None,
    }  # fmt: skip
    whole = {**summary, "degree": SITUATIONS["parked"].make(tmp_path)[0].summary["degree"]}
    assert fits_summary(whole)
    chance = random.Random(1)
    fitting = refused = 0
    for path in list_paths(whole):
        for value in (*chance.sample(BAD, 4), "left out"):
            changed = change(whole, path, value, left_out=value == "left out")
            if not fits_summary(changed):
                refused += 1
                continue
            fitting += 1
            text = render_reports([(changed, None)], 140, detail=True)
            assert "\x1b" not in text, path
            assert tell_headline([changed])
            if chance.random() < 0.2:
                assert "<b>" not in render_page([PageSource(changed, pack)]), path
    assert fitting > 100
    assert refused > 300


def test_one_that_does_not_fit_is_made_anew(pack: Path, tmp_path: Path) -> None:
    summary = {**build_summary(pack, tmp_path), "final": True}
    summary_path(pack).write_text(json.dumps(summary))
    assert read_summary(pack) is not None
    for damaged in ({**summary, "members": [{"id": "4711/1"}]}, {**summary, "pack": None}):
        summary_path(pack).write_text(json.dumps(damaged))
        assert read_summary(pack) is None


@pytest.mark.parametrize("name", [n for n, s in SITUATIONS.items() if is_there(s)])
def test_each_situation_fits(name: str, tmp_path: Path) -> None:
    for source in SITUATIONS[name].make(tmp_path):
        assert fits_summary(json.loads(json.dumps(source.summary)))


def test_the_recordings_are_among_them() -> None:
    assert not H200.is_dir() or all(map(is_there, SITUATIONS.values()))
