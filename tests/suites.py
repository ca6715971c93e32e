"""Which tests `make test` runs, and the parts into which the others are divided; pure.

What a newcomer needs is quick: all tests without Slurm that are not long, and on a real Slurm the
main paths. The others (kills, races, histories, other frameworks, the demonstration) are dealt by
file into parts, so that a commit can be held against one of them and all commits against all.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

T = TypeVar("T")

PARTS = 7
QUICK = "quick"
CHOICES = (QUICK, *map(str, range(1, PARTS + 1)))
NEEDS_GPU = "gpu"
"""The mark of tests that are in no suite: tests/gpu/run.sh runs them."""


def is_quick(marks: Container[str]) -> bool:
    """Whether `make test` runs a test with these marks."""
    if any(mark in marks for mark in ("long", "exhaustive", "demo", NEEDS_GPU)):
        return False
    return "slurm" not in marks or "smoke" in marks


def find_part(file: str) -> int:
    """The part, from 1 on, of what `make test` leaves out of a file, named from `tests/` on."""
    return zlib.crc32(file.encode()) % PARTS + 1


def leave_to_parts(cases: Iterable[T], *, but: Container[T]) -> list[ParameterSet]:
    """Cases of one test of which `make test` runs some, one of each kind; the parts run the others.

    Args:
        cases: All of them; a tuple has the values of several parameters.
        but: Those that `make test` runs.
    """
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            marks=() if each in but else pytest.mark.long,
        )
        for each in cases
    ]


def is_in_part(suite: str, file: str) -> bool:
    """Whether a file may have tests of a suite, before it is read."""
    return suite == QUICK or find_part(file) == int(suite)


def belongs(suite: str, file: str, marks: Container[str]) -> bool:
    """Whether a test is one of a suite: `quick`, or a part's number."""
    if suite == QUICK:
        return is_quick(marks)
    return NEEDS_GPU not in marks and not is_quick(marks) and is_in_part(suite, file)
