"""Limits, log records and the table of `ps`, without any process."""

from __future__ import annotations

import pytest

from slurm_colloc_lab.simgpu.mps.client_limits import (
    count_sms,
    parse_limit_bytes,
    parse_limits_mb,
    parse_number,
    parse_percentage,
    render_limit,
    tighten,
)
from slurm_colloc_lab.simgpu.mps.control_commands import render_clients
from slurm_colloc_lab.simgpu.mps.daemon_logs import CONTROL, OTHER, pack_record, parse_records
from slurm_colloc_lab.simgpu.mps.driver_versions import choose_profile
from slurm_colloc_lab.simgpu.mps.server_link import ClientRow

SIZES_MB = {"GPU-a": 40960, "GPU-b": 40960}


@pytest.mark.parametrize(
    ("percentage", "sms"), [(100.0, 132), (25.0, 32), (28.57, 36), (1.0, 2), (50.0, 66)]
)
def test_a_percentage_of_132_multiprocessors_is_whole_pairs(percentage: float, sms: int) -> None:
    assert count_sms(percentage, 132) == sms


def test_percentages_outside_of_0_to_100_are_none() -> None:
    words = ["33.3", " 5 ", "100", "0", "-1", "100.1", "x", "", "nan", None]
    assert [parse_percentage(word) for word in words] == [33.3, 5.0, 100.0, *[None] * 7]


def test_numbers_are_read_as_c_reads_them() -> None:
    words = ["12", " -3x", "x", "", "99999999999", "4294967295"]
    assert [parse_number(word) for word in words] == [12, -3, 0, 0, 1215752191, -1]


def test_a_limit_survives_the_way_to_the_daemon_and_back_in_whole_gib() -> None:
    words = ["8G", "1500M", "8192", "1.5G", "x", "1073741823M", "1023M"]
    shown = [render_limit(parse_limit_bytes(word)) for word in words]
    assert shown == ["8G", "1G", "8G", "1M", "0M", "1048575G", "1023M"]


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (None, {}),
        ("0=3G", {"GPU-a": 3072}),
        ("GPU-b=512MB,0=1G", {"GPU-a": 1024, "GPU-b": 512}),
        ("2=1G", {}),
        ("0=1G,2=1G", {}),
        ("GPU-c=1G,GPU-a=1G", {}),
        ("0=400G,1=1G", {"GPU-b": 1024}),
        ("0=1", {}),
        ("nonsense", {}),
    ],
)
def test_a_clients_limits_all_go_with_one_entry_that_names_no_gpu_it_sees(
    text: str | None, limits: dict[str, int]
) -> None:
    assert parse_limits_mb(text, list(SIZES_MB), SIZES_MB) == limits


def test_of_two_limits_the_lower_one_holds() -> None:
    assert tighten({"a": 5, "b": 1}, {"a": 3, "c": 9}) == {"a": 3, "b": 1, "c": 9}


def test_records_become_lines_and_half_a_record_is_left_out() -> None:
    data = pack_record(CONTROL, 7, "one", 0.25) + pack_record(OTHER, 123456, "two")
    (who, line), (_, other) = parse_records(data + b"\0" * 20)
    assert who == CONTROL
    assert line.endswith(".250 Control     7] one\n")
    assert "Other 123456] two\n" in other
    assert list(parse_records(b"\xff" * 48)) == []


def test_ps_shows_so_much_of_the_uuids_that_they_differ() -> None:
    one = bytes.fromhex("5a41ce45e82aa159ec6ffe593e0e1c21")
    rows = [ClientRow(10, 0, one, 1, 0), ClientRow(11, 1, one[:8] + bytes(8), 2, 1)]
    single = list(render_clients(5, rows[:1]))
    assert "GPU-5a41ce45-e82a-a159    " in single[1]
    _, first, second = render_clients(5, rows, "FAULT")
    assert first.split()[:4] == ["10", "1", "5", "FAULT"]
    assert first.split()[4] != second.split()[4]
    assert "BELOW_NORMAL" in second


def test_drivers_before_580_behave_as_550() -> None:
    assert [choose_profile(v).driver for v in ("550.163.01", "535", "580.159.04", "595.1", "")] == [
        550,
        550,
        580,
        580,
        580,
    ]
