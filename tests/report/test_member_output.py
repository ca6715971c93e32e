"""The last line of a member's output, whatever it has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_colloc.report.member_views import read_last_line


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\ntwo\n\n", "two"),
        (b"no end of line", "no end of line"),
        (b"ValueError: x\nsrun: error: n: task 0: Exited with exit code 1\n", "ValueError: x"),
        (b"slurmstepd: error: *** CANCELLED ***\n", "slurmstepd: error: *** CANCELLED ***"),
        (b"\x1b[31mred\x1b[0m\n", r"\x1b[31mred\x1b[0m"),
        (b"\xff\xfe bytes\n", "\ufffd\ufffd bytes"),
        (b"10%\r20%\r30%\n", "30%"),
        (b"x" * 100_000 + b"\n", "x" * 197 + "..."),
    ],
)
def test_the_last_line_with_something_in_it(tmp_path: Path, written: bytes, line: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(written)
    assert read_last_line((None, str(path))) == line


def test_standard_error_goes_before_standard_output(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("epoch 3\n")
    assert read_last_line((str(err), str(out))) == "epoch 3"
    err.write_text("RuntimeError\n")
    assert read_last_line((str(err), str(out))) == "RuntimeError"


def test_a_pipe_a_directory_and_a_missing_file_say_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = ("pipe", "", "gone")
    assert read_last_line(str(tmp_path / name) for name in names) == ""
