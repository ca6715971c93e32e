"""The sentence that says which degree is best and from which numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.measured_curve import CurvePoint, describe_curve

SIX, EIGHT = CurvePoint(6, 4.12), CurvePoint(8, 3.6, None, 1.7, 2, 1.5)


@pytest.mark.parametrize(
    ("curve", "degree", "said"),
    [
        (
            [CurvePoint(4, 3.0), EIGHT, SIX],
            6,
            (
                "no more than 6 run at once: 6 together make 4.1 times the progress of one alone, "
                "8 make 3.6, and member 2 would be 1.7 times slower than alone (1.5 is accepted)"
            ),
        ),
        (
            [SIX, CurvePoint(8, 4.9, None, 1.7, 2, 1.5)],
            6,
            (
                "no more than 6 run at once: 6 together make 4.1 times the progress of one alone, "
                "8 make 4.9, but member 2 would be 1.7 times slower than alone (1.5 is accepted)"
            ),
        ),
        (
            [SIX, CurvePoint(8, 3.9, 0.1, 1.4, 2, 1.5)],
            6,
            (
                "no more than 6 run at once: 6 together make 4.1 times the progress of one alone, "
                "8 make 3.9"
            ),
        ),
        (
            [CurvePoint(6, 4.1, 0.1), CurvePoint(8, 4.2, 0.1)],
            6,
            (
                "no more than 6 run at once: 6 together make 4.1 times the progress of one alone, "
                "8 make 4.2, which is not surely more"
            ),
        ),
        (
            [CurvePoint(1, 1.0), CurvePoint(2, 0.9)],
            1,
            "no more than 1 runs at once: 2 together make 0.9 times the progress of one alone",
        ),
        (
            [CurvePoint(2, 1.4, None, 1.53, 1, 1.5)],
            1,
            (
                "no more than 1 runs at once: 2 together make 1.4 times the progress of one alone, "
                "but member 1 would be 1.53 times slower than alone (1.50 is accepted)"
            ),
        ),
        (
            [CurvePoint(4, 3.1), EIGHT],
            6,
            (
                "no more than 6 run at once: 4 together make 3.1 times the progress of one alone, "
                "8 make 3.6, but member 2 would be 1.7 times slower than alone (1.5 is accepted)"
            ),
        ),
        (
            [CurvePoint(4, 3.2), CurvePoint(8, 5.0, None, 1.3, 3, 1.5)],
            8,
            (
                "8 run at once: 8 together make 5.0 times the progress of one alone, 4 make 3.2, "
                "and member 3 is 1.3 times slower than alone (1.5 is accepted)"
            ),
        ),
        ([CurvePoint(1, 1.0)], 1, ""),
        ([], 4, ""),
    ],
)
def test_the_sentence(curve: list[CurvePoint], degree: int, said: str) -> None:
    assert describe_curve(curve, degree) == said


POINTS = st.builds(
    CurvePoint,
    st.integers(1, 16),
    st.floats(0, 16),
    st.none() | st.floats(0, 2),
    st.none() | st.floats(0, 20),
    st.none() | st.integers(1, 16),
    st.none() | st.floats(1, 20),
)


@given(st.lists(POINTS, max_size=8), st.integers(1, 16))
def test_any_curve_gives_one_clause(curve: list[CurvePoint], degree: int) -> None:
    said = describe_curve(curve, degree)
    assert bool(said) == any(point.degree > 1 for point in curve)
    if said:
        assert "\n" not in said
        is_limit = any(point.degree > degree for point in curve)
        assert said.startswith("no more than ") == is_limit
