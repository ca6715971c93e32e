"""Rates in a common window and wall times, from what trainings and Slurm have written."""

from __future__ import annotations

import pytest

from .throughput import (
    Series,
    Window,
    choose_fullest,
    choose_window,
    compute_lost_s,
    compute_rates,
    compute_wall_s,
    parse_series,
)

LOG = """\
[2026-11-21T15:00:01.250] _slurm_rpc_submit_batch_job: JobId=12 InitPrio=1 usec=300
[2026-11-21T15:00:01.500] sched: Allocate JobId=12 NodeList=node1 #CPUs=14 Partition=gpu
[2026-11-21T15:00:01.600] sched: Allocate JobId=123 NodeList=node1 #CPUs=14 Partition=gpu
[2026-11-21T15:00:09.000] _job_complete: JobId=12 WEXITSTATUS 0
[2026-11-21T15:00:09.100] _job_complete: JobId=12 done
"""


def test_rates_are_counted_over_the_same_seconds() -> None:
    quick = Series((0.0, 1.0, 20.0), (0.0, 10.0, 200.0))
    late = Series((5.0, 10.0, 30.0), (0.0, 100.0, 500.0))
    window = choose_window([quick, late], 10.0)
    assert (window.begin_s, window.end_s) == (7.5, 17.5)
    assert compute_rates([quick, late], window) == pytest.approx([10.0, 20.0])


def test_a_window_is_no_longer_than_what_all_have_in_common() -> None:
    window = choose_window([Series((0.0, 9.0), (0.0, 1.0)), Series((4.0, 20.0), (0.0, 1.0))], 60.0)
    assert (window.begin_s, window.end_s) == (4.0, 9.0)


def test_trainings_one_after_the_other_have_no_common_window() -> None:
    with pytest.raises(ValueError, match="same time"):
        choose_window([Series((0.0, 1.0), (0.0, 1.0)), Series((1.0, 2.0), (0.0, 1.0))], 1.0)


def test_late_members_cost_a_part_of_the_throughput_and_all_of_the_start() -> None:
    # Started at 0: after 2 s one works, after 6 s two do.
    series = [Series((2.0, 20.0), (0.0, 180.0)), Series((6.0, 20.0), (0.0, 140.0))]
    assert compute_lost_s(series, 0.0, Window(8.0, 18.0)) == pytest.approx(2.0 + 4.0 / 2)
    assert compute_lost_s(series[:1], 2.0, Window(8.0, 18.0)) == pytest.approx(0.0)
    # A member that had ended before has done its part, and one that comes later none.
    ended, later = Series((2.0, 6.0), (0.0, 60.0)), Series((19.0, 30.0), (0.0, 9.0))
    assert compute_lost_s([*series, ended, later], 0.0, Window(8.0, 18.0)) == pytest.approx(1.0)


def test_those_that_ran_together_are_as_many_as_ever() -> None:
    first = Series((0.0, 10.0), (0.0, 1.0))
    pair = [Series((11.0, 20.0), (0.0, 1.0)), Series((12.0, 30.0), (0.0, 1.0))]
    last = Series((19.9, 21.0), (0.0, 1.0))
    assert choose_fullest([first]) == [first]
    assert choose_fullest([first, *pair]) == pair
    assert choose_fullest([first, *pair, last]) == [*pair, last]
    other = [Series((40.0, 50.0), (0.0, 1.0)), Series((40.0, 60.0), (0.0, 1.0))]
    assert choose_fullest([*pair, *other]) == other


def test_a_line_that_is_being_written_is_left_out() -> None:
    assert parse_series("1.5 0\n2.5 128\n3.5 2").images == (0.0, 128.0)


@pytest.mark.parametrize("text", ["", "1.0 0\n", "1.0 0\n1.0 128\n", "1.0 128\n2.0 128\n"])
def test_a_progress_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a training"):
        parse_series(text)


def test_the_wall_time_is_slurms_own() -> None:
    assert compute_wall_s(LOG, "12") == pytest.approx(7.6)


def test_a_job_that_backfill_started_has_one_too() -> None:
    line = "[2026-11-21T15:00:02.500] sched/backfill: _start_job: Started JobId=12 in gpu on node1"
    log = "\n".join([LOG.splitlines()[0], line, *LOG.splitlines()[2:]])
    assert compute_wall_s(log, "12") == pytest.approx(6.6)


def test_a_job_that_is_not_in_the_log_has_no_wall_time() -> None:
    with pytest.raises(ValueError, match="123"):
        compute_wall_s(LOG, "123")
