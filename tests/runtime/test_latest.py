"""Figures of other hands than the monitor's count as none: nobody waits or ends for them."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_colloc.runtime.member_progress import AHEAD_S, is_sound, read_latest
from slurm_colloc.runtime.pause_windows import ProbeWindow
from slurm_colloc.runtime.step_command import StartedProcess

from .degree_stage import RATE, Stage

NOW = 1_800_000_000.0
OF_MEMBER = {
    "start": 1, "steps": 40, "steps_per_s": RATE, "steady": True, "last_step_age_s": 0.1,
    "settled_s": 30.0, "gpu_memory_mb": 5000.0,
}  # fmt: skip
OF_GPU = {"sm_active": 0.3, "dram_active": 0.1, "engine_active": 0.9}


def describe(how: object) -> str:
    return str(how)[:60]


def build(**changes: Any) -> dict[str, Any]:
    return {
        "at": NOW,
        "gpus": {"GPU-1": {**OF_GPU, **changes.pop("gpu", {})}},
        "members": {"1": {**OF_MEMBER, **changes.pop("member", {})}},
        "problems": {},
        **changes,
    }


UNSOUND: list[dict[str, Any]] = [
    {"members": [1]},
    {"members": {"1": [1]}},
    {"members": None},
    {"gpus": {"GPU-1": 1}},
    {"at": "now"},
    {"at": float("nan")},
    {"at": NOW + 2 * AHEAD_S},
    {"member": {"steps_per_s": "x"}},
    {"member": {"steps_per_s": float("inf")}},
    {"member": {"steps_per_s": float("nan")}},
    {"member": {"steps_per_s": 5e-324}},
    {"member": {"steps_per_s": 10**400}},
    {"member": {"steps": "x"}},
    {"member": {"steps": []}},
    {"member": {"steps": -1}},
    {"member": {"last_step_age_s": True}},
    {"gpu": {"sm_active": 40.0}},
    {"gpu": {"pcie_rx_mib_s": "much"}},
    {"gpu": {"dram_active": ""}},
]


@pytest.mark.parametrize("changes", UNSOUND, ids=describe)
def test_what_no_monitor_writes_is_unsound(changes: dict[str, Any]) -> None:
    assert not is_sound(build(**changes), NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"members": {}, "gpus": {}},
        {"member": dict.fromkeys(OF_MEMBER)},
        {"member": {"steps": 0, "steps_per_s": 0.0}, "gpu": dict.fromkeys(OF_GPU, 0.0)},
        {"gpu": {"sm_active": 1.0}},
        {"more": "of a later version"},
    ],
)
def test_what_monitors_write_is_sound(changes: dict[str, Any]) -> None:
    assert is_sound(build(**changes), NOW)


def spoil(path: Path, how: str | dict[str, Any]) -> None:
    """Put something into the place of latest.json."""
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "deep":
        path.write_text('{"schema": 1, "x": ' + "[" * 200_000 + "]" * 200_000 + "}")
    elif isinstance(how, dict):
        path.write_text(json.dumps({"schema": 1, **build(at=time.time(), **how)}))


@pytest.mark.parametrize(
    "how",
    ["pipe", "device", "deep", *(c for c in UNSOUND if "at" not in c)],
    ids=describe,
)
def test_no_member_starts_for_it(
    how: str | dict[str, Any], tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    assert [stage.start(), stage.start()] == [1, None]
    spoil(stage.pack / "latest.json", how)
    assert read_latest(stage.pack) is None
    stage.work()
    assert stage.start() is None


def test_a_probe_window_that_cannot_be_judged_is_over(
    tmp_path: Path, process: StartedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, process)
    member = stage.members.by_number[1]
    member.spec = dataclasses.replace(
        member.spec, job=dataclasses.replace(member.spec.job, only_probe=True)
    )
    ended: list[int] = []
    window = ProbeWindow(
        pack=stage.context, monitor=cast("Any", SimpleNamespace(obstacle="")),
        control=cast("Any", SimpleNamespace(end=lambda member, _: ended.append(member.number))),
    )  # fmt: skip
    assert stage.start() == 1
    window.work()
    assert ended == []

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("slurm_colloc.runtime.pause_windows.judge_window", fail)
    window.work()
    assert ended == [1]
    (event,) = stage.list_events("probed")
    assert "cannot be judged: ZeroDivisionError('by nothing')" in event["reason"]
