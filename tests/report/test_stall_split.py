"""The split of members' time in summaries, reports and CSV, from generated samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.data_tables import render_csv

from .generated import Truth, build_summary, make_gpu_rows, make_pack, render_report


def make_gpu(length_s: float, utilization: Callable[[float], float | None]) -> list[dict[str, Any]]:
    rows = make_gpu_rows(length_s)
    first = rows[0]["at"]
    return [{**row, "utilization": utilization(row["at"] - first - 5)} for row in rows]


def stall_of(summary: dict[str, Any], number: int) -> dict[str, Any]:
    return next(dict(m["stall"]) for m in summary["members"] if m["member"] == number)


def test_of_a_member_that_was_alone_first_that_time_is_split(tmp_path: Path) -> None:
    truths = [
        Truth(1, 0, 200, lambda at: 20 if at < 100 else 12, wait_share=0.3),
        Truth(2, 100, 200, lambda _at: 9, wait_share=0.4),
    ]
    gpu = make_gpu(200, lambda at: 0.5 if at < 100 else 1.0)
    summary = build_summary(make_pack(tmp_path, truths, gpu=gpu), tmp_path)
    one, two = stall_of(summary, 1), stall_of(summary, 2)
    assert one["data_alone"] == pytest.approx(0.3, abs=0.02)
    assert one["device"] == pytest.approx(0.5, abs=0.01)
    assert one["host"] == pytest.approx(0.2, abs=0.02)
    assert one["attribution"] == "exact"
    assert 80 < one["alone_s"] < 98
    assert one["sharing"] == pytest.approx(1 - 12 / 20, abs=0.01)
    # The second never had the GPU for itself: only its own clock tells something.
    assert two["data"] == pytest.approx(0.4, abs=0.05)
    for name in ("host", "device", "data_alone", "overlap", "alone_s", "attribution", "sharing"):
        assert two[name] is None, name
    text = " ".join(render_report(summary, 140).split())
    assert "Time: 4711/1 waited 30 % of its time for data, at least 20 % for the host" in text
    assert "had a kernel running for 50 % (alone for 1 min 2" in text
    assert "4711/2: host and device unknown: less than 10 s of settled steps alone" in text
    first, second = csv.DictReader(io.StringIO(render_csv([(summary, None)])))
    assert float(first["device_share"]) == one["device"]
    assert (second["host_share"], second["device_share"]) == ("", "")


def test_kernels_that_run_while_data_is_waited_for_are_said(tmp_path: Path) -> None:
    truth = Truth(1, 0, 60, lambda _at: 10, wait_share=0.6)
    pack = make_pack(tmp_path, [truth], gpu=make_gpu(60, lambda _at: 0.7))
    summary = build_summary(pack, tmp_path)
    stall = stall_of(summary, 1)
    assert stall["host"] == 0
    assert stall["overlap"] == pytest.approx(0.3, abs=0.03)
    total = stall["data_alone"] + stall["host"] + stall["device"]
    assert total == pytest.approx(1 + stall["overlap"])
    text = " ".join(render_report(summary, 140).split())
    assert "at least 30 % both at once" in text


def test_without_utilization_only_the_wait_is_known(tmp_path: Path) -> None:
    truth = Truth(1, 0, 60, lambda _at: 10)
    summary = build_summary(make_pack(tmp_path, [truth]), tmp_path)
    stall = stall_of(summary, 1)
    assert stall["data"] == pytest.approx(0.1, abs=0.02)
    assert (stall["host"], stall["device"]) == (None, None)
    (member,) = summary["members"]
    assert "host and device unknown: the GPU's utilization could not be read" in member["notes"]
    assert "Time:" not in render_report(summary, 140)


def test_who_has_no_loader_is_not_said_to_wait_for_nothing(tmp_path: Path) -> None:
    truth = Truth(1, 0, 60, lambda _at: 10, wait_share=0.0)
    pack = make_pack(tmp_path, [truth], gpu=make_gpu(60, lambda _at: 0.7))
    summary = build_summary(pack, tmp_path)
    stall = stall_of(summary, 1)
    assert (stall["data"], stall["host"]) == (None, None)
    assert stall["device"] == pytest.approx(0.7)
    text = " ".join(render_report(summary, 140).split())
    assert "Time: 4711/1 had a kernel running for 70 % of its time (alone for" in text
    assert "wait for data unknown: no DataLoader that is seen was waited for" in text


def test_of_many_members_those_that_left_the_gpu_idle_most_are_named(tmp_path: Path) -> None:
    # One after the other, each a little busier than the one before.
    truths = [Truth(n, 60 * n - 60, 60 * n - 6, lambda _at: 10) for n in range(1, 9)]
    gpu = make_gpu(480, lambda at: 0.1 + 0.05 * (at // 60))
    text = render_report(build_summary(make_pack(tmp_path, truths, gpu=gpu), tmp_path), 140)
    named = [line.split()[1] for line in text.splitlines() if line.startswith("Time:")]
    assert named == [f"4711/{n}" for n in range(1, 6)]
    assert "and 3 more; --json has all" in text
