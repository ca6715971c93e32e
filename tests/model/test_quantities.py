from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.quantities import (
    format_elapsed,
    format_mb,
    format_time_limit,
    parse_gpu_memory_mb,
    parse_host_memory_mb,
    parse_time_limit_s,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("90", 5400),
        ("1:02", 62),
        ("90:90", 5490),
        ("1:2:3", 3723),
        ("00:05:00", 300),
        ("1-2", 93600),
        ("1-", 86400),
        ("1-2:3", 93780),
        ("1-02:03:04", 93784),
        ("0", None),
        ("0-00:00:00", None),
        ("-1", None),
        ("INFINITE", None),
        ("unlimited", None),
    ],
)
def test_every_form_of_a_time_limit_is_read(text: str, seconds: int | None) -> None:
    assert parse_time_limit_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "1h", "-5", "1:2:3:4", "1-2-3", "1:", ":1", "1.5", "1-:3", "٣", "5 ", "9" * 30],
)
def test_what_is_no_time_limit_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time limit: write minutes"):
        parse_time_limit_s(text)


def test_a_time_beyond_what_slurm_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than Slurm can count"):
        parse_time_limit_s("100000-0")


@given(st.integers(1, 2**31 - 1))
def test_a_written_time_limit_reads_the_same(seconds: int) -> None:
    assert parse_time_limit_s(format_time_limit(seconds)) == seconds


def test_no_limit_is_written_as_unlimited() -> None:
    assert format_time_limit(None) == "UNLIMITED"


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_limit_of_nothing_is_not_written_because_slurm_reads_it_as_no_limit(seconds: int) -> None:
    with pytest.raises(ValueError, match="0 means no limit"):
        format_time_limit(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0:00"),
        (5, "0:05"),
        (754, "12:34"),
        (3600, "1:00:00"),
        (86399, "23:59:59"),
        (93784, "1-02:03:04"),
    ],
)
def test_elapsed_times_look_as_in_squeue(seconds: int, text: str) -> None:
    assert format_elapsed(seconds) == text


@pytest.mark.parametrize(
    ("text", "memory_mb"),
    [
        ("0", 0),
        ("5", 5),
        ("+5", 5),
        (" 5", 5),
        ("5M", 5),
        ("5MB", 5),
        ("5k", 1),
        ("1025K", 2),
        ("2g", 2048),
        ("1T", 2**20),
    ],
)
def test_host_memory_follows_the_rules_of_sbatch(text: str, memory_mb: int) -> None:
    assert parse_host_memory_mb(text) == memory_mb


@pytest.mark.parametrize("text", ["", "G", "5B", "5.5G", "-5", "5GiB", "5 G", "5P", "all"])
def test_what_is_no_host_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host memory size"):
        parse_host_memory_mb(text)


@given(st.integers(0, 10**14))
def test_a_written_size_reads_the_same(memory_mb: int) -> None:
    assert parse_host_memory_mb(format_mb(memory_mb)) == memory_mb


@pytest.mark.parametrize(
    ("memory_mb", "text"), [(0, "0"), (1536, "1536M"), (20480, "20G"), (2**20, "1T")]
)
def test_a_size_is_written_with_its_largest_whole_unit(memory_mb: int, text: str) -> None:
    assert format_mb(memory_mb) == text


@pytest.mark.parametrize(
    ("text", "memory_mb"),
    [("800M", 800), ("20G", 20480), ("20 GiB", 20480), ("2.5gb", 2560), ("0.1T", 104858)],
)
def test_gpu_memory_takes_decimals_and_rounds_up(text: str, memory_mb: int) -> None:
    assert parse_gpu_memory_mb(text) == memory_mb


def test_gpu_memory_without_a_unit_is_refused_because_it_could_mean_either() -> None:
    with pytest.raises(
        ValueError, match=r"'20' is not a GPU memory size: give the unit, as in 20G"
    ):
        parse_gpu_memory_mb("20")


@pytest.mark.parametrize("text", ["", "G", "0G", "0.0T", "-1G", "1.G", "1e3M", "half", "5%"])
def test_what_is_no_gpu_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a GPU memory size"):
        parse_gpu_memory_mb(text)


@given(st.text(max_size=40))
def test_no_text_makes_the_parsers_fail_otherwise(text: str) -> None:
    for parse in (parse_time_limit_s, parse_host_memory_mb, parse_gpu_memory_mb):
        try:
            value = parse(text)
        except ValueError as error:
            message = str(error)
            assert message.startswith(repr(text))
        else:
            assert value is None or value >= 0
