"""When members were paused: lines that are appended, and read back as intervals."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.store import member_states
from slurm_colloc.store.member_states import MemberPause, append_change, read_pauses


def test_a_pause_has_a_begin_and_an_end(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    append_change(tmp_path, 10.0, paused=[(1, 1), (2, 1)])
    append_change(tmp_path, 11.5, resumed=[(1, 1)], paused=[(3, 1)], reason="parked")
    append_change(tmp_path, 12.0, resumed=[(2, 1)])
    assert read_pauses(tmp_path) == [
        MemberPause(1, 1, 10.0, 11.5, "measured"),
        MemberPause(2, 1, 10.0, 12.0, "measured"),
        MemberPause(3, 1, 11.5, None, "parked"),
    ]


def test_what_was_half_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    append_change(tmp_path, 10.0, paused=[(1, 1)])
    with (tmp_path / member_states.NAME).open("ab") as file:
        file.write(b'{"schema": 1, "at": 11.0, "pau\n{"schema": 1, "at": null}\n[]\nnull\n\xff\n')
    append_change(tmp_path, 12.0, resumed=[(1, 1), (7, 1)])
    assert read_pauses(tmp_path) == [MemberPause(1, 1, 10.0, 12.0, "measured")]


def test_what_another_version_has_written_is_passed_over(tmp_path: Path) -> None:
    append_change(tmp_path, 10.0, paused=[(1, 1)])
    path = tmp_path / member_states.NAME
    newer = path.read_text().replace('"schema": 1', '"schema": 2').replace("[1, 1]", "[2, 1]")
    path.write_text(path.read_text() + newer)
    assert read_pauses(tmp_path) == [MemberPause(1, 1, 10.0, None, "measured")]


def test_a_pack_that_was_never_measured_has_none(tmp_path: Path) -> None:
    assert read_pauses(tmp_path) == []
