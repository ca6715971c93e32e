"""A member's time split into waiting for data, the host and the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.rates import Interval, Track
from slurm_colloc.metrics.sharing_cost import (
    HOST_UNKNOWN,
    NO_LOADER,
    NOT_READ,
    SELDOM_READ,
    compute_data_share,
    find_covered,
    split_stalls,
)

SHARES = st.floats(0, 1)


def make_intervals(begin: int, end: int, wait: float | None) -> list[Interval]:
    return [Interval(t, t + 1, 10, None, wait) for t in range(begin, end)]


def make_track(begin: int, end: int, value: float | None) -> Track:
    return Track([t + 0.5 for t in range(begin, end)], [value] * (end - begin))


def test_time_alone_is_split_into_data_host_and_device() -> None:
    alone = make_intervals(0, 40, 0.3)
    stall = split_stalls(alone, 1.0, alone, make_track(0, 40, 0.5), 5)
    assert stall.data == stall.data_alone == pytest.approx(0.3)
    assert stall.device == pytest.approx(0.5)
    assert stall.host == pytest.approx(0.2)
    assert (stall.overlap, stall.sharing, stall.alone_s) == (0, 0, 40)
    assert stall.unknown == ()


@given(SHARES.filter(lambda share: share > 0), SHARES)
def test_shares_make_the_whole_and_what_was_both_at_once(data: float, device: float) -> None:
    alone = make_intervals(0, 30, data)
    stall = split_stalls(alone, None, alone, make_track(0, 30, device), 5)
    assert stall.host is not None
    assert stall.device is not None
    assert stall.data_alone is not None
    assert stall.overlap is not None
    assert stall.data_alone + stall.host + stall.device == pytest.approx(1 + stall.overlap)
    assert 0 <= stall.host <= 1 - max(data, device) + 1e-9
    assert 0 <= stall.overlap <= min(data, device) + 1e-9
    assert min(stall.host, stall.overlap) == 0, "the least that is possible"


def test_what_comes_after_the_last_step_is_no_time_of_the_training() -> None:
    # It ended 0.1 s after a reading; the next one came 0.9 s later.
    last = Interval(10, 10.1, 1, None, 0.03)
    assert compute_data_share([*make_intervals(0, 10, 0.3), last]) == pytest.approx(0.3)


def test_in_company_only_the_wait_for_data_is_known() -> None:
    shared = make_intervals(0, 40, 0.3)
    stall = split_stalls(shared, 2.0, [], make_track(0, 40, 0.9), 20)
    assert stall.data == pytest.approx(0.3)
    assert (stall.host, stall.device, stall.overlap, stall.alone_s) == (None, None, None, None)
    assert stall.sharing == 0.5
    (reason,) = stall.unknown
    assert "cannot be split" in reason
    assert "20 s" in reason


def test_the_split_is_of_the_time_alone_and_data_of_all() -> None:
    alone, shared = make_intervals(0, 30, 0.1), make_intervals(30, 60, 0.5)
    track = Track([t + 0.5 for t in range(60)], [0.6] * 30 + [1.0] * 30)
    stall = split_stalls([*alone, *shared], 2.0, alone, track, 20)
    assert stall.data == pytest.approx(0.3)
    assert stall.data_alone == pytest.approx(0.1)
    assert stall.device == pytest.approx(0.6)
    assert stall.host == pytest.approx(0.3)


def test_what_was_not_read_of_the_gpu_is_unknown_and_an_idle_gpu_is_not() -> None:
    alone = make_intervals(0, 30, 0.25)
    for track in (make_track(0, 30, None), Track([], [])):
        stall = split_stalls(alone, 1.0, alone, track, 5)
        assert (stall.host, stall.device, stall.overlap) == (None, None, None)
        assert stall.unknown == (NOT_READ,)
        assert stall.data == pytest.approx(0.25)
    seldom = split_stalls(alone, 1.0, alone, make_track(0, 4, 0.5), 5)
    assert (seldom.device, seldom.unknown) == (None, (SELDOM_READ,))
    idle = split_stalls(alone, 1.0, alone, make_track(0, 30, 0.0), 5)
    assert idle.device == 0
    assert idle.host == pytest.approx(0.75)


@pytest.mark.parametrize("wait", [None, 0.0])
def test_a_loader_that_nobody_sees_was_not_waited_for_no_time(wait: float | None) -> None:
    alone = make_intervals(0, 30, wait)
    stall = split_stalls(alone, 1.0, alone, make_track(0, 30, 0.5), 5)
    assert (stall.data, stall.data_alone, stall.host, stall.overlap) == (None,) * 4
    assert stall.device == pytest.approx(0.5)
    assert stall.unknown == (NO_LOADER, HOST_UNKNOWN)


def test_a_time_that_is_too_short_for_a_rate_is_not_split() -> None:
    brief = make_intervals(0, 4, 0.5)
    stall = split_stalls(brief, None, brief, make_track(0, 4, 0.5), 5)
    assert (stall.data, stall.host, stall.device, stall.sharing) == (None,) * 4
    assert stall.unknown == (), "its rate says why"


def test_readings_that_cover_a_pause_are_left_out() -> None:
    # A checkpoint from 20 to 30: readings up to a second after it look back into it.
    alone = [*make_intervals(0, 20, 0.1), *make_intervals(30, 50, 0.1)]
    assert find_covered(alone) == [(1, 20), (31, 50)]
    times = [t / 2 for t in range(100)]
    track = Track(times, [0.0 if 20 < at < 31 else 0.8 for at in times])
    assert split_stalls(alone, 1.0, alone, track, 5).device == pytest.approx(0.8)
    assert find_covered([Interval(0, 0.5, 1, None, None)]) == []
