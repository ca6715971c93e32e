"""What programs, driver and GPU say, put next to what the monitor says."""

from __future__ import annotations

import pytest

from .comparison import (
    compute_error,
    compute_mean,
    compute_rise_per_s,
    describe,
    find_nearest,
    find_settled_window,
    parse_compute_apps,
    parse_counters,
    parse_processes_xml,
    sum_by_member,
)

XML = """\
<?xml version="1.0" ?>
<nvidia_smi_log><gpu id="00000000:01:00.0"><processes>
<process_info><pid>12</pid><type>M+C</type><used_memory>1200 MiB</used_memory></process_info>
<process_info><pid>13</pid><type>C</type><used_memory>N/A</used_memory></process_info>
</processes></gpu></nvidia_smi_log>
"""


def test_an_error_is_relative_to_the_truth() -> None:
    assert compute_error(101.0, 100.0) == pytest.approx(0.01)
    assert compute_error(None, 100.0) is None
    assert compute_error(1.0, 0.0) is None


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
