"""Pieces, their merging, and what a kill at any moment leaves; read back with pyarrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from slurm_colloc.monitor import parquet_pieces
from slurm_colloc.monitor.parquet_pieces import SampleFiles
from slurm_colloc.store.report_files import (
    MEMBER_COLUMNS,
    TABLES,
    Piece,
    choose_pieces,
    format_piece,
    list_sample_files,
    parse_piece,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pack(tmp_path: Path) -> str:
    (tmp_path / "report").mkdir()
    return str(tmp_path)


def read(pack: str, table: str = "gpu") -> list[float]:
    """The moments of all rows, in the order of the files."""
    found: list[float] = []
    for path in list_sample_files(pack, table):
        with parquet.ParquetFile(path) as file:
            found += file.read().column("at").to_pylist()
    return found


def write(files: SampleFiles, first: int, last: int) -> None:
    for number in range(first, last + 1):
        files.add({"at": float(number), "uuid": "GPU-0"})
        files.write_piece()


def names(pack: str) -> list[str]:
    return sorted(path.name for path in Path(f"{pack}/report").iterdir())


@pytest.mark.parametrize(
    ("table", "first", "last", "name"),
    [
        ("gpu", 0, 0, "gpu.parquet"),
        ("gpu", 7, 7, "gpu.000007.parquet"),
        ("members", 1, 60, "members.000001-000060.parquet"),
        ("members", 0, 1234567, "members.000000-1234567.parquet"),
    ],
)
def test_names_say_what_is_in_a_file(table: str, first: int, last: int, name: str) -> None:
    assert format_piece(table, first, last) == name
    assert parse_piece(name) == (table, Piece(first, last, name))


@pytest.mark.parametrize("name", ["gpu.1.parquet", "gpu.whole.tmp", "gpu.parquet.tmp", "x.parquet"])
def test_other_files_are_no_pieces(name: str) -> None:
    assert parse_piece(name) is None


def test_a_file_that_stands_for_others_is_read_alone() -> None:
    present = [format_piece("gpu", a, b) for a, b in ((0, 0), (1, 1), (2, 2), (1, 2), (3, 3))]
    kept, spare = choose_pieces(present, "gpu")
    assert [(one.first, one.last) for one in kept] == [(0, 0), (1, 2), (3, 3)]
    assert [(one.first, one.last) for one in spare] == [(1, 1), (2, 2)]
    kept, spare = choose_pieces([*present, format_piece("gpu", 0, 3)], "gpu")
    assert [(one.first, one.last) for one in kept] == [(0, 3)]
    assert len(spare) == 5


def test_types_are_kept_and_what_is_missing_is_null(pack: str) -> None:
    files = SampleFiles(pack, "members", parquet)
    files.add({"at": 1.5, "member": 3, "steps": 2**40, "progress": "api"})
    files.close()
    with parquet.ParquetFile(f"{pack}/report/members.parquet") as file:
        (row,) = file.read().to_pylist()
        kinds = [(one.name, str(one.type)) for one in file.schema_arrow]
    wanted = {"float32": "float", "float64": "double"}
    assert kinds == [(name, wanted.get(kind, kind)) for name, kind in MEMBER_COLUMNS]
    filled = {name: value for name, value in row.items() if value is not None}
    assert filled == {"at": 1.5, "member": 3, "steps": 2**40, "progress": "api"}


def test_many_pieces_become_one_and_all_become_one_file(pack: str) -> None:
    files = SampleFiles(pack, "gpu", parquet)
    write(files, 1, 125)
    assert [name for name in names(pack) if "tmp" not in name] == [
        "gpu.000001-000060.parquet",
        "gpu.000061-000120.parquet",
        *(f"gpu.{number:06d}.parquet" for number in range(121, 126)),
    ]
    assert read(pack) == [float(number) for number in range(1, 126)]
    files.close()
    assert names(pack) == ["gpu.parquet"]
    assert read(pack) == [float(number) for number in range(1, 126)]


def test_the_next_attempt_goes_on_behind(pack: str) -> None:
    files = SampleFiles(pack, "gpu", parquet)
    write(files, 1, 3)
    files.close()
    # A killed one leaves its pieces.
    write(SampleFiles(pack, "gpu", parquet), 4, 70)
    again = SampleFiles(pack, "gpu", parquet)
    write(again, 71, 72)
    assert read(pack) == [float(number) for number in range(1, 73)]
    again.close()
    assert names(pack) == ["gpu.parquet"]
    assert read(pack) == [float(number) for number in range(1, 73)]


class Killed(BaseException):
    """Ends the work at a call, as SIGKILL would."""


@pytest.mark.parametrize("call", ["replace", "unlink"])
@pytest.mark.parametrize("place", range(8))
def test_a_kill_at_any_moment_leaves_every_row_once(
    pack: str, call: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pieces, "MERGE_AFTER", 3)
    first = SampleFiles(pack, "gpu", parquet)
    write(first, 1, 2)
    first.close()
    files = SampleFiles(pack, "gpu", parquet)
    left = [place]
    real = getattr(os, call)

    def fail(*arguments: Any) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        real(*arguments)

    written = 2
    with monkeypatch.context() as context:
        context.setattr(os, call, fail)
        try:
            for number in range(3, 9):
                files.add({"at": float(number), "uuid": "GPU-0"})
                files.write_piece()
                written = number
            files.close()
        except Killed:
            pass
    expected = [float(number) for number in range(1, 9)]
    found = read(pack)
    assert found == expected[: len(found)]
    assert len(found) >= written
    # The next one finishes it.
    SampleFiles(pack, "gpu", parquet).close()
    assert names(pack) == ["gpu.parquet"]
    assert read(pack) == found


def test_what_cannot_be_written_is_kept(pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SampleFiles(pack, "gpu", parquet)

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(parquet_pieces, "_settle", full)
        files.add({"at": 1.0})
        with pytest.raises(OSError, match="No space"):
            files.write_piece()
    assert names(pack) == []
    files.add({"at": 2.0})
    files.write_piece()
    assert read(pack) == [1.0, 2.0]


def test_memory_does_not_grow_for_ever_on_a_full_disk(
    pack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pieces, "MOST_ROWS", 5)
    files = SampleFiles(pack, "gpu", parquet)
    for number in range(8):
        files.add({"at": float(number)})
    files.write_piece()
    assert read(pack) == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert files.dropped == 3


@pytest.mark.long
def test_an_hour_of_64_members_stays_small(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "tests.monitor.generated_day", str(tmp_path / "p"), "1", "64"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    with parquet.ParquetFile(tmp_path / "p" / "report" / "members.parquet") as file:
        assert file.metadata.num_rows == told["rows"] == 3600 * 64
    assert told["own_memory_mb"] < 60
    assert names(str(tmp_path / "p")) == [f"{table}.parquet" for table in sorted(TABLES)]
