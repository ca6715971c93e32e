"""Every test belongs to what `make test` runs, or to exactly one part of the rest."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..conftest import count_reasons
from ..suites import CHOICES, PARTS, QUICK, belongs, find_part, is_in_part, is_quick

MARKS = ("slurm", "smoke", "long", "exhaustive", "demo", "torch", "root")
FILES = [f"cluster/test_{name}.py" for name in ("packs", "cancel", "hooks", "mps", "ramp", "why")]


def test_a_test_is_quick_or_in_one_part() -> None:
    for count in range(len(MARKS) + 1):
        for marks in itertools.combinations(MARKS, count):
            for file in FILES:
                suites = [suite for suite in CHOICES if belongs(suite, file, marks)]
                assert suites == ([QUICK] if is_quick(marks) else [str(find_part(file))])


@pytest.mark.parametrize(
    ("marks", "quick"),
    [
        ((), True),
        (("torch",), True),
        (("slurm",), False),
        (("slurm", "smoke"), True),
        (("exhaustive",), False),
        (("long",), False),
        (("slurm", "smoke", "exhaustive"), False),
        (("demo",), False),
    ],
)
def test_quick_is_what_a_newcomer_needs(marks: tuple[str, ...], quick: bool) -> None:
    assert is_quick(marks) is quick


def test_what_needs_a_gpu_is_in_no_suite() -> None:
    for marks in (("gpu",), ("gpu", "slurm", "root"), ("gpu", "long")):
        assert not [suite for suite in CHOICES if belongs(suite, FILES[0], marks)]


def test_skipped_tests_are_counted_by_reason() -> None:
    reports: list[Any] = [
        SimpleNamespace(longrepr=("tests/a.py", 3, "Skipped: needs a disk")),
        SimpleNamespace(longrepr=("tests/b.py", 9, "Skipped: needs a disk")),
        SimpleNamespace(longrepr=("tests/b.py", 12, "Skipped: needs root")),
    ]
    assert count_reasons(reports) == {"needs a disk": 2, "needs root": 1}


def test_all_parts_are_used() -> None:
    assert {find_part(f"cluster/test_{number}.py") for number in range(200)} == {
        *range(1, PARTS + 1)
    }


def test_the_automatic_run_chooses_among_as_many_parts() -> None:
    run = Path(__file__).resolve().parents[2] / ".ci" / "run"
    assert f" % {PARTS} + 1))" in run.read_text()


def test_a_part_is_chosen_by_the_name_of_a_file_alone() -> None:
    for suite, file in itertools.product(CHOICES, FILES):
        may = any(belongs(suite, file, marks) for marks in ((), ("long",), ("slurm", "smoke")))
        assert is_in_part(suite, file) is may
