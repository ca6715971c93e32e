"""What people see: tables at any width, CSV, and hostile names that stay harmless."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.data_tables import render_csv
from slurm_colloc.report.terminal_tables import Column, build_table, format_span, render

from .generated import Truth, build_summary, make_pack, render_report

HOSTILE = ["\x1b]0;owned\x07\x1b[31mred", "[bold red]name[/] :smile:", "=HYPERLINK(1)\r\n\u202eexe"]


@pytest.fixture
def summary(tmp_path: Path) -> Any:
    truths = [Truth(1, 0, 100, lambda at: 20 if at < 60 else 12), Truth(2, 60, 100, lambda _: 9),
              Truth(3, 60, 62, lambda _: 9)]  # fmt: skip
    return build_summary(make_pack(tmp_path, truths, names=HOSTILE), tmp_path)


@pytest.mark.parametrize("width", [80, 140])
def test_the_report_fits_and_says_what_is_unknown(summary: Any, width: int) -> None:
    text = render_report(summary, width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("4711/1", "COMPLETED", "1.67", "1000 MB", "own", "estimated", "unknown",
                  "no usage profile", "asked for auto", "MPS works here",
                  "the daemon had to be started twice", "whole GPU",
                  "% of its readings"):  # fmt: skip
        assert words in " ".join(text.split()), words


@pytest.mark.parametrize("width", [80, 140])
def test_hostile_names_do_nothing(summary: Any, width: int) -> None:
    text = render_report(summary, width)
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "[bold" in text, "it is no markup"
    assert "\\x1b]" in text
    assert "☺" not in text


def test_only_the_chosen_members_are_shown(summary: Any) -> None:
    text = render_report(summary, 140, {2})
    assert "4711/2" in text
    assert "4711/3 " not in text
    rows = list(csv.DictReader(io.StringIO(render_csv([(summary, {2})]))))
    assert [row["member"] for row in rows] == ["4711/2"]


def test_csv_has_a_line_for_each_member_and_nothing_for_what_is_unknown(summary: Any) -> None:
    text = render_csv([(summary, None)])
    first, second, third = csv.DictReader(io.StringIO(text))
    assert float(first["slowdown"]) == pytest.approx(20 / 12, rel=0.01)
    assert first["sm_share_attribution"] == "modelled"
    assert second["slowdown"] == ""
    assert second["solo_steps_per_s"] == ""
    assert third["steps"] == ""
    assert third["name"].startswith("'="), "no formula"
    assert "\x1b" not in text
    assert "\u202e" not in text


@given(st.text())
def test_an_escaped_text_can_be_printed(text: str) -> None:
    escaped = escape_controls(text)
    assert escaped.isprintable()
    assert escape_controls(escaped) == escaped
    escaped.encode()


@given(st.lists(st.tuples(st.text(max_size=80), st.integers(0, 10**6)), max_size=5))
def test_a_table_is_never_wider_than_the_terminal(cells: list[tuple[str, int]]) -> None:
    columns = [Column("NAME", is_number=False, gives_way=True), Column("STEPS")]
    rows = [(name, str(number)) for name, number in cells]
    text = render([build_table(columns, rows, 40)], 40)
    lines = text.splitlines()
    assert len(lines) == 1 + len(rows)
    assert all(str(number) in line for (_, number), line in zip(cells, lines[1:], strict=True))


def test_long_names_take_their_room_from_themselves() -> None:
    columns = [
        Column("MEMBER", is_number=False, gives_way=True),
        Column("NAME", is_number=False, gives_way=True),
        Column("KNOWN\nBY", is_number=False),
        *(Column(title) for title in ("STEPS/S", "THREADS", "GPU_MEM")),
    ]
    row = ("1-12", "resnet50_imagenet_lr_sweep_2026.sh", *["unknown"] * 4)
    _, head, cells = render([build_table(columns, [row], 60)], 60).splitlines()
    assert head.split() == ["MEMBER", "NAME", "BY", "STEPS/S", "THREADS", "GPU_MEM"]
    assert cells.split() == ["1-12", "resnet50_imagenet_l…", *["unknown"] * 4]
    # Two long ones share what is missing.
    wide = (row[1][:20], row[1], *row[2:])
    [*_, cells] = render([build_table(columns, [wide], 60)], 60).splitlines()
    assert cells.split()[:2] == ["resnet50_ima…", "resnet50_ima…"]


def test_spans_are_said_as_people_say_them() -> None:
    assert [format_span(s) for s in (None, 8.44, 200, 7500, -65)] == [
        "unknown", "8.4 s", "3 min 20 s", "2 h 05 min", "-1 min 05 s",
    ]  # fmt: skip


def test_who_told_the_peaks_of_gpu_memory_is_said(tmp_path: Path) -> None:
    truths = [
        Truth(1, 0, 100, lambda _: 20, allocator_mb=(6042.0, 238.0)),
        Truth(2, 0, 100, lambda _: 9),
        Truth(3, 0, 100, lambda _: 9),
    ]
    found = build_summary(make_pack(tmp_path, truths), tmp_path)
    text = " ".join(render_report(found, 200).split())
    assert "peaks by PyTorch's allocator: 4711/1; by NVML's readings: 4711/2-3" in text
    assert "6804 MB" in text
    alone = " ".join(render_report(found, 200, {2}).split())
    assert "peaks by NVML's readings: 4711/2" in alone
    assert "allocator" not in alone
    rows = list(csv.DictReader(io.StringIO(render_csv([(found, None)]))))
    assert [row["gpu_memory_by"] for row in rows] == ["allocator", "nvml", "nvml"]


def test_a_gpu_without_activity_counters_is_said_to_be_one(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 100, lambda _: 20)])
    path = pack / "report" / "monitor.json"
    monitor = json.loads(path.read_text())
    told = {"source": "nvmlGpmQueryDeviceSupport", "state": "unsupported"}
    monitor["capabilities"]["sm_active"] = {**told, "detail": "the GPU has no GPM"}
    path.write_text(json.dumps(monitor))
    text = " ".join(render_report(build_summary(pack, tmp_path), 200).split())
    assert "SM activity is unknown (the GPU has no GPM): so are the members' shares of it" in text
