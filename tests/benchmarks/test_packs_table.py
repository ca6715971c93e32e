"""The table of packs against one alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.packs_table import parse_rounds, render_rounds, write_rounds


def build_run(rates: list[float], wall_s: float, starts_s: list[float]) -> dict[str, Any]:
    return {
        "members": len(rates),
        "together": len(rates),
        "images_per_s_sum": sum(rates),
        "images_per_s": rates,
        "window_s": 60.0,
        "wall_s": wall_s,
        "to_first_step_s": starts_s,
    }


def build_entry(alone: float, rates: list[float], fused: float | None = None) -> dict[str, Any]:
    members = [{"slowdown": 1.2, "thread_percentage": 66} for _ in rates]
    entry = {
        "alone": build_run([alone], 70.0, [8.0]),
        "planned": {"packs": [{"members": members, "normalised_progress": 2.5}]},
        "pack": build_run(rates, 100.0, [9.0, 12.0, 10.0]),
        "ratio": sum(rates) / alone,
        "wall_ratio": len(rates) * 70.0 / 100.0,
    }
    if fused is not None:
        entry["fused"] = build_run([fused], 30.0, [9.0])
    return entry


FOUND = {
    "batches": {
        "rounds medium at 2": [
            build_entry(100.0, [80.0, 80.0, 50.0], 300.0),
            build_entry(100.0, [90.0, 90.0, 90.0]),
            build_entry(120.0, [80.0, 80.0, 80.0]),
        ],
        "declined hog at 1.5": [{"alone": build_run([5.0], 70.0, [1.0]), "submitted": []}],
    }
}


def test_medians_stand_with_the_lowest_and_highest_round() -> None:
    text = render_rounds(parse_rounds(FOUND, 1))
    assert "declined" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| rounds")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "rounds medium at 2",
        "3",
        "100 (100 to 120) images/s",
        "3 at 66 %, 240 (210 to 270) images/s",
        "2.50 x (2.50 to 2.50)",
        "**2.10 x (2.00 to 2.70)**",
        "1.50 (1.11 to 1.50); 1.50 (1.11 to 2.00)",
        "2.10 x (2.10 to 2.10)",
        "70.0 %",
    ]


def test_machines_are_not_mixed() -> None:
    text = render_rounds([*parse_rounds(FOUND, 1), *parse_rounds(FOUND, 2)])
    assert len([line for line in text.splitlines() if line.startswith("| rounds")]) == 2


def test_every_round_is_a_line_and_what_was_not_run_is_empty(tmp_path: Path) -> None:
    write_rounds(tmp_path / "rounds.csv", parse_rounds(FOUND, 3))
    with (tmp_path / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == ["1", "2", "3"]
    assert {row["machine"] for row in rows} == {"3"}
    assert [row["fused_per_s"] for row in rows] == ["300.0", "", ""]
    assert float(rows[0]["worst_slowdown"]) == pytest.approx(2.0)
    assert float(rows[0]["pack_start_s"]) == pytest.approx(12.0)
