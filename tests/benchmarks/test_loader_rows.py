"""How many trainings a benchmark of shared loaders runs at once."""

from __future__ import annotations

from benchmarks.loader import choose_rows


def test_eight_trainings_are_measured_where_each_has_a_core() -> None:
    assert choose_rows(2) == [(4, 2)]
    assert choose_rows(8) == [(4, 8), (8, 8)]
    # More cores would make the row another machine's.
    assert choose_rows(16) == [(4, 16), (8, 8)]
