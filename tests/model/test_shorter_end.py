"""How many run at once where few are left over."""

from __future__ import annotations

import pytest

from slurm_colloc.model.measured_curve import CurvePoint
from slurm_colloc.model.measurement import choose_for_the_end

H100 = {6: (5.35, 1.12), 9: (6.09, 1.48), 10: (6.19, 1.62), 11: (6.24, 1.76)}
"""A small training on an H100: progress and slowdown by degree."""


def build_curve(points: dict[int, tuple[float, float]], bound: float = 3.0) -> list[CurvePoint]:
    return [
        CurvePoint(degree, stp, 0.01, slowdown, 1, bound, 2.0, tuple(range(1, degree + 1)))
        for degree, (stp, slowdown) in points.items()
    ]


@pytest.mark.parametrize(
    ("members", "places", "expected"),
    [
        # Two would be left over, and have the GPU for themselves.
        (12, 12, 12),
        (11, 12, 11),
        # That one has no place: eleven and one are no sooner than ten and two.
        (12, 11, 10),
        # None is left over.
        (10, 12, 10),
        (20, 20, 10),
        # Enough are left over to fill the GPU again.
        (28, 28, 10),
        (6, 12, 10),
    ],
)
def test_more_run_where_the_last_one_ends_sooner(members: int, places: int, expected: int) -> None:
    assert choose_for_the_end(build_curve(H100), 10, members, places) == expected


def test_no_member_is_slower_than_is_accepted() -> None:
    assert choose_for_the_end(build_curve(H100, bound=1.7), 10, 12, 12) == 10
    # What was not measured is taken for slower still.
    assert choose_for_the_end(build_curve(H100, bound=1.8), 10, 12, 12) == 10
    assert choose_for_the_end(build_curve(H100, bound=2.0), 10, 12, 12) == 12


def test_progress_is_not_given_up_for_it() -> None:
    thrashing = {4: (3.6, 1.1), 6: (4.1, 1.5), 8: (3.5, 2.3)}
    assert choose_for_the_end(build_curve(thrashing), 6, 8, 8) == 6


def test_what_was_not_measured_stays_as_it_is() -> None:
    assert choose_for_the_end([], 4, 5, 8) == 4
    assert choose_for_the_end([], 1, 2, 2) == 1
