"""Which directories of a job are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_colloc.store.atomic_files import find_missing_directories


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [
        ("x.out", None),
        ("there/x.out", None),
        ("gone/x.out", "gone"),
        ("there/gone/%j.out", "there/gone"),
        # The directory's own name is not known yet, its parent is.
        ("there/run-%A/x.out", None),
        ("gone/run-%A/x.out", "gone"),
        ("%x/x.out", None),
        # A backslash switches expansion off.
        ("there/%x\\/x.out", "there/%x\\"),
        # A file is not a directory.
        ("file/x.out", "file"),
        ("/nonexistent/x.out", "/nonexistent"),
    ],
)
def test_an_output_file_needs_its_directory(
    tmp_path: Path, pattern: str, missing: str | None
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    found = find_missing_directories(str(tmp_path), [("output", pattern)])
    told = f"the directory {missing} of --output={pattern} does not exist"
    assert found == ([] if missing is None else [told])


def test_without_its_working_directory_nothing_else_counts(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    found = find_missing_directories(gone, [("output", "x/y"), ("error", "z/y")])
    assert found == [f"its working directory {gone} does not exist"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_what_cannot_be_looked_at_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    assert find_missing_directories(str(tmp_path), [("output", "closed/x/y.out")]) == []


def test_a_name_that_no_file_can_have_is_left_to_slurm(tmp_path: Path) -> None:
    assert find_missing_directories(str(tmp_path), [("output", "a\0b/x.out")]) == []
