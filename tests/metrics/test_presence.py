"""Who was there when."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.presence import (
    Stay,
    compute_phases,
    find_alone,
    find_crowded,
    find_shared,
)
from slurm_colloc.metrics.rates import measure_windows

STAYS = st.lists(
    st.builds(
        lambda begin, length, member: Stay(begin, begin + length, member),
        st.integers(0, 50).map(float),
        st.integers(0, 30).map(float),
        st.integers(1, 4),
    ),
    max_size=8,
)


def test_time_is_cut_where_somebody_comes_or_goes() -> None:
    phases = compute_phases([Stay(0, 100, 1), Stay(40, 60, 2), Stay(120, 130, 1)])
    assert [(p.begin, p.end, set(p.members)) for p in phases] == [
        (0, 40, {1}), (40, 60, {1, 2}), (60, 100, {1}), (100, 120, set()), (120, 130, {1}),
    ]  # fmt: skip
    assert find_alone(phases, 1) == [(0, 38), (62, 100), (120, 130)]
    assert find_shared(phases, 1) == [(40, 60)]
    assert find_shared(phases, 3) == []


def test_a_neighbour_that_is_replaced_leaves_nobody_alone() -> None:
    phases = compute_phases([Stay(0, 50, 1), Stay(0, 20, 2), Stay(20, 50, 3)])
    assert find_alone(phases, 1) == []
    assert find_shared(phases, 1) == [(0, 50)], "one window"


@given(STAYS)
def test_alone_and_shared_are_all_of_a_members_time(stays: list[Stay]) -> None:
    phases = compute_phases(stays)
    for earlier, later in itertools.pairwise(phases):
        assert earlier.end == later.begin
    seconds = {t for s in stays for t in range(int(s.begin), int(s.end))}
    assert measure_windows(find_crowded(phases, 1)) == len(seconds)
    for member in range(1, 5):
        own = {t for s in stays if s.member == member for t in range(int(s.begin), int(s.end))}
        others = {t for s in stays if s.member != member for t in range(int(s.begin), int(s.end))}
        assert measure_windows(find_alone(phases, member, margin_s=0)) == len(own - others)
        assert measure_windows(find_shared(phases, member)) == len(own & others)
