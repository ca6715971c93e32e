"""What programs, driver and GPU say, put beside what the monitor says."""

from __future__ import annotations

import math
import random

import pytest

from .comparison import (
    GROUP,
    Segment,
    compute_error,
    compute_mean,
    compute_rise_per_s,
    compute_slowdown,
    describe,
    find_nearest,
    find_settled_window,
    find_t,
    parse_compute_apps,
    parse_counters,
    parse_processes_xml,
    parse_segments,
    sum_by_member,
)

XML = """\
<?xml version="1.0" ?>
<nvidia_smi_log><gpu id="00000000:01:00.0"><processes>
<process_info><pid>12</pid><type>M+C</type><used_memory>1200 MiB</used_memory></process_info>
<process_info><pid>13</pid><type>C</type><used_memory>N/A</used_memory></process_info>
</processes></gpu></nvidia_smi_log>
"""


def make_group(number: int, steps: tuple[int, int, int, int]) -> list[Segment]:
    return [
        Segment("both", number, place, is_watched, 2.0, count, 0.01 if is_watched else 0.0)
        for place, (is_watched, count) in enumerate(zip(GROUP, steps, strict=True))
    ]


def test_an_error_is_relative_to_the_truth() -> None:
    assert compute_error(101.0, 100.0) == pytest.approx(0.01)
    assert compute_error(None, 100.0) is None
    assert compute_error(1.0, 0.0) is None


def test_a_drift_over_a_group_is_no_slowdown() -> None:
    # Steps become slower and slower, whether watched or not.
    times = [0.010 * 1.05**place for place in range(4)]
    group = [
        Segment("both", 0, place, is_watched, 1000 * step_s, 1000, None)
        for place, (is_watched, step_s) in enumerate(zip(GROUP, times, strict=True))
    ]
    found = compute_slowdown(group)
    assert found.mean == pytest.approx(0, abs=1e-9)
    assert found.low is None
    assert found.monitor_share is None


def test_a_slowdown_is_found_with_its_interval() -> None:
    found = compute_slowdown([*make_group(0, (1000, 990, 990, 1000)), *make_group(1, (1000,) * 4)])
    assert found.groups == 2
    assert found.mean == pytest.approx(100 * math.expm1(math.log(1000 / 990) / 2))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.mean < found.high
    assert found.step_ms == pytest.approx(2.0)
    assert found.monitor_share == pytest.approx(0.005)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random_numbers = random.Random(7)
    covered = 0
    for _ in range(400):
        segments = []
        for number in range(8):
            base_s = 0.006 * (1 + 0.02 * random_numbers.random())
            for place, is_watched in enumerate(GROUP):
                step_s = base_s * (1.003 if is_watched else 1) * random_numbers.gauss(1, 0.004)
                segments.append(Segment("x", number, place, is_watched, 400 * step_s, 400, None))
        found = compute_slowdown(segments)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.3 <= found.high
    assert 0.91 <= covered / 400 <= 0.985


def test_a_group_that_was_cut_off_does_not_count() -> None:
    segments = [*make_group(0, (1000, 990, 990, 1000)), *make_group(1, (1000,) * 4)[:2]]
    assert compute_slowdown(segments).groups == 1
    with pytest.raises(ValueError, match="no whole group"):
        compute_slowdown(segments[:3])


def test_more_groups_than_the_table_has_rows_use_the_wider_interval() -> None:
    assert find_t(1) == 12.706
    assert find_t(35) == find_t(30) > find_t(40)


def test_segments_are_read_as_they_were_written() -> None:
    text = "phase,group,place,watched,begin_s,seconds,steps,monitor_cpu_s\n"
    text += "both,0,1,1,5.0,2.5,400,0.01\nboth,0,3,0,9.0,2.5,404,\n"
    first, second = parse_segments(text)
    assert first == Segment("both", 0, 1, True, 2.5, 400, 0.01)
    assert second.monitor_cpu_s is None


def test_a_rate_is_taken_between_readings() -> None:
    times, counts = parse_counters("1.0 0\n2.0 10\n4.0 50\n5.0 6")
    assert compute_rise_per_s(times, counts, (1.5, 3.0)) == pytest.approx((30 - 5) / 1.5)
    for window in ((0.5, 2.0), (2.0, 4.5), (2.0, 2.0)):
        with pytest.raises(ValueError, match=r"outside|empty"):
            compute_rise_per_s(times, counts, window)


def test_the_window_of_a_rate_comes_from_the_report() -> None:
    rate = {"steps_per_s": 5.0, "warm_up_s": 10.5, "window_s": 20.0, "paused_s": 0.0}
    assert find_settled_window({"rate": rate}, 100.0) == (110.5, 130.5)
    assert find_settled_window({"rate": {**rate, "paused_s": 3.0}}, 100.0) == (110.5, 133.5)
    with pytest.raises(ValueError, match="too short"):
        find_settled_window({"rate": {"steps_per_s": None, "unknown": "too short"}}, 100.0)


def test_gpu_memory_is_summed_by_member_and_unknown_stays_unknown() -> None:
    sizes = parse_compute_apps("11, 500\n12, 700\n13, [N/A]\nNo devices were found\n")
    assert sizes == {11: 500.0, 12: 700.0, 13: None}
    assert sum_by_member(sizes, {11: 1, 12: 1, 13: 2}) == {1: 1200.0, 2: None}


def test_the_long_output_is_read_too() -> None:
    assert parse_processes_xml(XML) == {12: 1200.0, 13: None}
    assert parse_processes_xml("nvidia-smi: not found") == {}


def test_readings_are_found_by_their_moment() -> None:
    rows: list[dict[str, object]] = [
        {"at": 1.0, "size": 10.0},
        {"at": 2.0, "size": None},
        {"at": 6.0, "size": 30.0},
    ]
    assert find_nearest(rows, "size", 2.4, 5.0) == 10.0
    assert find_nearest(rows, "size", 5.0, 5.0) == 30.0
    assert find_nearest(rows, "size", 3.5, 1.0) is None
    assert compute_mean(rows, "size", (0.0, 7.0)) == 20.0
    assert compute_mean(rows, "size", (1.5, 3.0)) is None


def test_a_percentile_is_one_of_the_values() -> None:
    found = describe([float(value) for value in range(1, 51)])
    assert (found["median"], found["p95"], found["max"], found["n"]) == (25.5, 48.0, 50.0, 50)
