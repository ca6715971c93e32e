"""Summaries of packs whose samples are generated, so that the truth is known."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.measured_curve import DegreeState
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.pack_samples import read_samples
from slurm_colloc.report.show_view import render_pack
from slurm_colloc.report.summary_file import read_summary, summary_path
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import begin_attempt
from slurm_colloc.store.profiles import list_profiles
from slurm_colloc.store.report_files import GPU_COLUMNS, MEMBER_COLUMNS
from slurm_colloc.store.runner_requests import DegreeRecord, write_degree

from .generated import (
    T0,
    UUID,
    Truth,
    build_summary,
    make_gpu_rows,
    make_pack,
    render_report,
    write_samples,
    write_table,
)


def member_of(summary: dict[str, Any], number: int) -> dict[str, Any]:
    return next(dict(m) for m in summary["members"] if m["member"] == number)


def test_rates_are_exact_and_the_neighbour_that_slowed_a_member_is_named(tmp_path: Path) -> None:
    first = Truth(
        1, 0, 300, lambda at: 20 if at < 100 else 12, pauses=[(150, 158)], gaps=[(200, 230)]
    )
    second = Truth(2, 100, 300, lambda _at: 30, wait_share=0.4)
    pack = make_pack(tmp_path, [first, second])
    summary = build_summary(pack, tmp_path)
    one, two = member_of(summary, 1), member_of(summary, 2)
    assert one["rate"]["shared_steps_per_s"] == pytest.approx(12, rel=0.01)
    assert one["solo"]["steps_per_s"] == pytest.approx(20, rel=0.01)
    assert one["solo"]["source"] == "this run"
    assert one["slowdown"] == pytest.approx(20 / 12, rel=0.01)
    assert one["steps"] == len(first.make_steps())
    assert one["samples"] == 128 * one["steps"]
    assert one["rate"]["paused_s"] == pytest.approx(8, abs=1)
    assert one["stall"]["data"] == pytest.approx(0.1, abs=0.05)
    (change,) = one["interference"]
    assert change["came"] == [2]
    assert change["ratio"] == pytest.approx(0.6, rel=0.01)
    assert two["rate"]["steps_per_s"] == pytest.approx(30, rel=0.01)
    assert two["stall"]["data"] == pytest.approx(0.4, abs=0.05)
    assert two["slowdown"] is None
    assert "no usage profile on NVIDIA H200" in two["unknown"]["slowdown"]
    assert summary["pack"]["stp"] is None
    assert summary["pack"]["serial_s"] is None
    assert summary["pack"]["unknown"]


def test_the_second_run_finds_the_usage_profiles_of_the_first(tmp_path: Path) -> None:
    for number, rate in ((1, 20), (2, 40)):
        alone = make_pack(
            tmp_path,
            [Truth(number, 0, 100, lambda _at, rate=rate: rate)],  # type: ignore[misc]
            submission=f"20260101-00000{number}-a",
            job_id=f"471{number}",
            gpu=make_gpu_rows(100, sm=lambda _at: 0.3, power=lambda _at: 250),
        )
        assert learn_from_pack(alone) == []
    records, problems = list_profiles(tmp_path)
    assert problems == []
    assert {round(r.steps_per_s.mean) for r in records if r.steps_per_s} == {20, 40}
    assert all(r.sm_active == pytest.approx(0.3) for r in records)
    assert all(r.idle_power_w == 100 for r in records)
    assert all(r.gpu_uuids == (UUID,) for r in records)
    truths = [Truth(1, 0, 300, lambda _at: 15), Truth(2, 0, 300, lambda _at: 32)]
    pack = make_pack(
        tmp_path, truths, submission="20260102-000000-a", job_id="4800",
        gpu=make_gpu_rows(300, sm=lambda _at: 0.5, power=lambda _at: 400),
    )  # fmt: skip
    summary = build_summary(pack, tmp_path)
    one, two = member_of(summary, 1), member_of(summary, 2)
    assert one["solo"]["source"] == "profile"
    assert one["slowdown"] == pytest.approx(20 / 15, rel=0.01)
    assert two["slowdown"] == pytest.approx(40 / 32, rel=0.01)
    figures = summary["pack"]
    assert figures["stp"] == pytest.approx(15 / 20 + 32 / 40, rel=0.01)
    assert figures["antt"] == pytest.approx((20 / 15 + 40 / 32) / 2, rel=0.01)
    assert figures["unknown"] == []
    work = sum(4 + len(t.make_steps()) / r for t, r in zip(truths, (20, 40), strict=True))
    assert figures["serial_s"] == pytest.approx(work, rel=0.01)
    assert figures["gpu_hours_saved"] == pytest.approx((work - 300) / 3600, rel=0.02)
    assert figures["kwh_how"] == "solo_power"
    assert figures["kwh_saved"] == pytest.approx(
        (250 * (work - 8) + 100 * 8 - 400 * 300) / 3.6e6, rel=0.03
    )
    # 0.3 alone, by the steps of 300 s, start included; nothing explains the rest.
    shares = [0.3 * len(t.make_steps()) / r / 300 for t, r in zip(truths, (20, 40), strict=True)]
    for member, share in zip((one, two), shares, strict=True):
        assert member["sm_share"] == {
            "value": pytest.approx(share, rel=0.01),
            "attribution": "modelled",
        }
    rest = summary["unexplained"]["sm_active"]["rest"]
    assert rest == pytest.approx(0.5 - sum(shares), abs=0.005)
    energies = [m["energy_j"]["value"] for m in (one, two)]
    assert energies[0] == pytest.approx(15000 + 90000 * shares[0] / 0.5, rel=0.02)
    rest = summary["unexplained"]["energy_j"]["rest"]
    assert sum(energies) + rest == pytest.approx(summary["energy_j"], rel=1e-6)
    assert summary["gpu_use"]["sm_active"]["attribution"] == "whole_gpu"


def test_a_member_that_was_never_alone_is_measured_against_its_family(tmp_path: Path) -> None:
    probed = Truth(1, 0, 300, lambda at: 20 if at < 60 else 16)
    truths = [probed, Truth(2, 60, 300, lambda _at: 10), Truth(3, 60, 300, lambda _at: 8)]
    pack = make_pack(tmp_path, truths, one_family=True)
    members = build_summary(pack, tmp_path)["members"]
    assert [m["solo"]["source"] for m in members] == ["this run", "family", "family"]
    assert [m["solo"]["n"] for m in members] == [1, 1, 1]
    slowdowns = [m["slowdown"] for m in members]
    assert slowdowns == [pytest.approx(20 / rate, rel=0.01) for rate in (16, 10, 8)]
    told = [any("that of 1 of its relatives" in note for note in m["notes"]) for m in members]
    assert told == [False, True, True]
    assert learn_from_pack(pack) == []
    # Its own usage profile now says the same, and is not counted twice.
    again = build_summary(pack, tmp_path)["members"]
    assert [m["solo"]["source"] for m in again] == ["profile", "family", "family"]
    assert [m["solo"]["n"] for m in again] == [1, 1, 1]


@pytest.mark.parametrize(("other", "known"), [(21, True), (40, False)])
def test_a_family_that_disagrees_tells_nothing(tmp_path: Path, other: float, known: bool) -> None:
    for number, rate in ((1, 20), (2, other)):
        alone = make_pack(
            tmp_path,
            [Truth(number, 0, 100, lambda _at, rate=rate: rate)],  # type: ignore[misc]
            submission=f"20260101-00000{number}-a",
            job_id=f"471{number}",
            one_family=True,
        )
        assert learn_from_pack(alone) == []
    truths = [Truth(3, 0, 100, lambda _at: 10), Truth(4, 0, 100, lambda _at: 10)]
    pack = make_pack(
        tmp_path, truths, submission="20260102-000000-a", job_id="4800", one_family=True
    )
    for member in build_summary(pack, tmp_path)["members"]:
        expected = pytest.approx(20.5 / 10, rel=0.01) if known else None
        assert member["slowdown"] == expected


def test_alone_with_a_part_of_the_threads_is_not_alone(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 300, lambda at: 20 if at < 60 else 16), Truth(2, 60, 300, lambda _at: 10)]
    pack = make_pack(tmp_path, truths, thread_limits={1: 50, 2: 100})
    assert learn_from_pack(pack) == []
    (one, two) = build_summary(pack, tmp_path)["members"]
    assert one["solo"] is None
    assert "with all of the GPU" in one["unknown"]["slowdown"]
    assert two["solo"] is None
    assert {record.steps_per_s for record in list_profiles(tmp_path)[0]} == {None}


def test_pauses_change_neither_the_model_nor_what_was_saved(tmp_path: Path) -> None:
    pauses = [(60.0, 120.0), (200.0, 260.0)]

    def pausing(at: float) -> bool:
        return any(begin <= at < end for begin, end in pauses)

    gpu = make_gpu_rows(
        300, sm=lambda at: 0.0 if pausing(at) else 0.4,
        power=lambda at: 100 if pausing(at) else 300,
    )  # fmt: skip
    alone = make_pack(tmp_path, [Truth(1, 0, 300, lambda _at: 20, pauses=pauses)], gpu=gpu)
    assert learn_from_pack(alone) == []
    (profile,) = list_profiles(tmp_path)[0]
    assert profile.sm_active == pytest.approx(0.4, rel=0.05)
    summary = build_summary(alone, tmp_path)
    assert abs(summary["pack"]["kwh_saved"] * 3.6e6) < 0.05 * summary["energy_j"]


def test_a_count_that_begins_again_takes_nothing_back(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 300, lambda _at: 20), Truth(2, 150, 300, lambda _at: 10)]
    pack = make_pack(tmp_path, truths)
    assert learn_from_pack(pack) == []
    path = pack / "report" / "members.parquet"
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        if row["member"] == 1 and row["at"] > T0 + 200:
            # Steps within an epoch, and one reading that failed.
            row["steps"] = row["steps"] % 1000
    rows[-30]["steps"] = None
    write_table(path, MEMBER_COLUMNS, rows)
    member = member_of(build_summary(pack, tmp_path), 1)
    assert member["sm_share"]["value"] >= 0
    assert member["energy_j"]["value"] > 0


def test_who_had_a_part_of_the_threads_was_not_alone_even_by_itself(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 100, lambda _at: 20), Truth(2, 110, 200, lambda _at: 10)]
    pack = make_pack(tmp_path, truths, thread_limits={1: 14, 2: 14})
    for member in build_summary(pack, tmp_path)["members"]:
        assert member["slowdown"] is None
        assert member["solo"] is None


def test_a_member_alone_has_exact_figures_and_no_slowdown(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 7)])
    summary = build_summary(pack, tmp_path)
    one = member_of(summary, 1)
    assert one["slowdown"] == 1
    assert one["sm_share"]["attribution"] == "exact"
    assert one["energy_j"]["attribution"] == "exact"
    assert one["energy_j"]["value"] == pytest.approx(60 * 300, rel=0.02)
    assert one["gpu_memory_mb"] == {
        "peak": 1000,
        "attribution": "per_process",
        "by": "nvml",
        "allocator_peak": None,
        "outside_allocator": None,
    }
    assert one["cpu_cores"] == pytest.approx(1.5, rel=0.01)
    assert summary["gpu_use"]["sm_active"]["attribution"] == "exact"
    assert summary["pack"]["stp"] == 1
    assert summary["pack"]["gpu_hours_saved"] == 0


def test_a_member_that_is_started_again_counts_on(tmp_path: Path) -> None:
    truths = [
        Truth(1, 0, 60, lambda _at: 10),
        Truth(1, 65, 200, lambda _at: 10, start=2),
        Truth(2, 0, 200, lambda _at: 5),
    ]
    summary = build_summary(make_pack(tmp_path, truths), tmp_path)
    one = member_of(summary, 1)
    assert one["starts"] == 2
    assert one["steps"] == sum(len(t.make_steps()) for t in truths[:2])
    assert one["rate"]["steps_per_s"] == pytest.approx(10, rel=0.01)
    assert one["cpu_s"] == pytest.approx(1.5 * 195, rel=0.02)


def test_short_silent_and_failed_members_are_unknown_and_say_why(tmp_path: Path) -> None:
    truths = [
        Truth(1, 0, 120, lambda _at: 10),
        Truth(2, 0, 2, lambda _at: 10, startup_s=0.2),
        Truth(3, 0, 120, lambda _at: 10, reports=False, gpu_memory_mb=None),
        Truth(4, 0, 40, lambda _at: 10),
    ]
    pack = make_pack(tmp_path, truths, failed=[4], gpu=make_gpu_rows(120, sm=lambda _at: None))
    summary = build_summary(pack, tmp_path)
    brief, silent, failed = (member_of(summary, n) for n in (2, 3, 4))
    assert brief["rate"]["unknown"].startswith("too short: it was there for 2")
    assert brief["slowdown"] is None
    assert silent["rate"]["unknown"] == "it never reported progress"
    for name in ("steps", "samples", "progress", "gpu_memory_mb", "sm_share", "slowdown"):
        assert silent[name] is None, name
    assert failed["state"] == "FAILED"
    assert failed["rate"]["steps_per_s"] == pytest.approx(10, rel=0.01)
    assert summary["gpu_use"]["sm_active"] is None
    assert summary["unexplained"]["sm_active"]["rest"] is None
    assert member_of(summary, 1)["energy_j"] is None
    assert any("4711/2: there for less than 10 s" in text for text in summary["pack"]["unknown"])


@pytest.mark.parametrize(
    ("cost_s", "why"), [(0.0, "its members ended before"), (3.0, "members came or went each time")]
)
def test_a_pack_that_is_over_is_not_being_measured(tmp_path: Path, cost_s: float, why: str) -> None:
    pack = make_pack(tmp_path, [Truth(n, 0, 60, lambda _at: 9) for n in (1, 2)])
    write_degree(pack, DegreeRecord(1, DegreeState.MEASURING, 2, 2, cost_s=cost_s))
    degree = build_summary(pack, tmp_path)["degree"]
    assert (degree["state"], degree["why"]) == ("OFF", f"nothing was measured: {why}")
    assert f"nothing was measured: {why}" in run_show(tmp_path)
    alone = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 9)], submission="20260101-000000-b")
    write_degree(alone, DegreeRecord(1, DegreeState.MEASURING, 1, 2))
    assert build_summary(alone, tmp_path)["degree"]["why"] is None


def run_show(root: Path) -> str:
    """What `csub show` says of the first pack."""
    state = State(root, "here")
    (view,) = survey_packs(state, ["20260101-000000-a.0"], None)
    return render_pack(view, state, T0)


def test_who_fails_at_once_is_not_as_fast_as_alone(tmp_path: Path) -> None:
    truths = [Truth(n, 2 * n, 2 * n + 0.4, lambda _at: 0, reports=False) for n in (1, 2, 3)]
    summary = build_summary(make_pack(tmp_path / "apart", truths, failed=[1, 2, 3]), tmp_path)
    assert [member["slowdown"] for member in summary["members"]] == [None] * 3
    assert summary["pack"]["antt"] is None
    assert "as fast as alone" not in tell_headline([summary])
    truths = [Truth(n, 0, 3, lambda _at: 0, reports=False) for n in (1, 2, 3)]
    summary = build_summary(make_pack(tmp_path / "together", truths, failed=[1, 2, 3]), tmp_path)
    assert [member["slowdown"] for member in summary["members"]] == [None] * 3
    # How long they would have taken alone would be nothing but an assumption.
    assert summary["pack"]["serial_s"] is None
    assert summary["pack"]["gpu_hours_saved"] is None
    assert "faster" not in tell_headline([summary])


def test_pieces_of_a_running_pack_give_the_same_as_the_final_files(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 120, lambda _at: 10), Truth(2, 30, 120, lambda _at: 20)]
    whole = build_summary(make_pack(tmp_path / "a", truths), tmp_path / "a")
    pieces = build_summary(make_pack(tmp_path / "b", truths, pieces=9), tmp_path / "b")
    for summary in (whole, pieces):
        del summary["made_at"]
    assert pieces == whole


def test_a_damaged_piece_is_left_out_and_named(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 120, lambda _at: 10)], pieces=6)
    path = pack / "report" / "members.000003.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    empty = pack / "report" / "gpu.000002.parquet"
    empty.write_bytes(b"")
    # Nobody writes into it, so who waited for it would wait for ever.
    pipe = pack / "report" / "gpu.000003.parquet"
    pipe.unlink()
    os.mkfifo(pipe)
    summary = build_summary(pack, tmp_path)
    assert [n for n in summary["notes"] if "gpu.000003.parquet cannot be read" in n]
    assert member_of(summary, 1)["rate"]["steps_per_s"] == pytest.approx(10, rel=0.01)
    assert [n for n in summary["notes"] if "members.000003.parquet" in n]
    assert [n for n in summary["notes"] if "gpu.000002.parquet" in n]


def test_a_pack_without_a_monitor_has_a_summary_without_figures(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5), Truth(2, 0, 60, lambda _at: 5)])
    for path in (pack / "report").iterdir():
        path.unlink()
    summary = build_summary(pack, tmp_path)
    assert summary["coverage"] is None
    assert member_of(summary, 1)["cpu_s"] is None
    assert member_of(summary, 1)["rate"]["unknown"] == "it has no samples"
    assert summary["pack"]["stp"] is None
    assert any("the monitor did not run" in note for note in summary["notes"])
    json.dumps(summary, allow_nan=False)
    (pack / "report" / "monitor.json").write_text('{"schema": 1, "not_watched": "no pyarrow"}')
    summary = build_summary(pack, tmp_path)
    assert summary["coverage"]["share"] is None
    assert "it did not run: no pyarrow" in render_report(summary, 140)


def test_what_is_no_number_counts_as_not_read(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)])
    gpu = make_gpu_rows(60, sm=lambda at: float("nan") if at < 50 else 0.4)
    write_table(pack / "report" / "gpu.parquet", GPU_COLUMNS, gpu)
    summary = build_summary(pack, tmp_path)
    assert summary["gpu_use"]["sm_active"]["max"] == pytest.approx(0.4)
    json.dumps(summary, allow_nan=False)


def test_a_long_run_is_thinned_without_losing_totals_or_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truths = [Truth(1, 0, 900, lambda _at: 10), Truth(2, 0, 900, lambda _at: 25)]
    pack = make_pack(tmp_path, truths)
    rows = [row for truth in truths for row in truth.make_rows()]
    rows[333]["gpu_memory_mb"] = 5000.0
    write_samples(pack, rows, make_gpu_rows(900))
    exact = build_summary(pack, tmp_path)
    monkeypatch.setattr("slurm_colloc.report.pack_samples.ROWS_PER_MEMBER", 100)
    samples = read_samples(pack)
    assert samples.stride_s > 8
    assert all(s.table.num_rows < 120 for starts in samples.starts.values() for s in starts)
    thinned = build_summary(pack, tmp_path)
    for number in (1, 2):
        one, other = member_of(thinned, number), member_of(exact, number)
        for name in ("steps", "samples", "cpu_s", "gpu_memory_mb", "read_bytes"):
            assert one[name] == other[name], name
        rates = one["rate"]["steps_per_s"], other["rate"]["steps_per_s"]
        assert rates[0] == pytest.approx(rates[1], rel=0.01)
    assert member_of(thinned, 1)["gpu_memory_mb"]["peak"] == 5000


def test_the_summary_that_a_pack_leaves_is_read_until_it_runs_again(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)])
    assert read_summary(pack) is None
    learn_from_pack(pack)
    left = read_summary(pack)
    assert left is not None
    assert left["final"] is True
    assert left["window"] is not None
    assert left["window"]["from"] == T0
    begin_attempt(pack, 2)
    assert read_summary(pack) is None


def test_a_failure_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)])
    learn_from_pack(pack)
    before = summary_path(pack).read_bytes()

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurm_colloc.store.atomic_files.os.replace", fail)
    with pytest.raises(StateError, match="the disk is full"):
        learn_from_pack(pack)
    monkeypatch.undo()
    assert summary_path(pack).read_bytes() == before
    assert not list((pack / "report").glob("*.tmp*"))


def test_something_that_is_no_pack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "packs" / "x").mkdir(parents=True)
    with pytest.raises(NotFound, match="is not a pack"):
        build_summary(tmp_path / "packs" / "x", tmp_path)


def test_a_pack_of_sixty_four(tmp_path: Path) -> None:
    truths = [Truth(n, n / 2, 80, lambda _at: 4) for n in range(1, 65)]
    summary = build_summary(make_pack(tmp_path, truths), tmp_path)
    assert len(summary["members"]) == 64
    assert summary["pack"]["members_most"] == 64
    assert all(m["rate"]["steps_per_s"] == pytest.approx(4, rel=0.01) for m in summary["members"])


def list_keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in list_keys(item)}
    if isinstance(value, list):
        return {key for item in value for key in list_keys(item)}
    return set()


def test_every_field_of_the_summary_is_described(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 100, lambda at: 20 if at < 60 else 12), Truth(2, 60, 100, lambda _: 9)]
    summary = build_summary(make_pack(tmp_path, truths), tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    # What the monitor could not read is named by the monitor.
    del summary["coverage"]["not_readable"]["nvlink_tx_mib_s"]
    assert [key for key in sorted(list_keys(summary)) if f"`{key}`" not in text] == []


def test_a_prediction_stands_beside_what_was_measured(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 160, lambda at: 20 if at < 60 else 12), Truth(2, 60, 160, lambda _: 9)]
    pack = make_pack(tmp_path, truths, predicted={1: 1.5})
    summary = build_summary(pack, tmp_path)
    first, second = summary["members"]
    assert (first["predicted_slowdown"], second["predicted_slowdown"]) == (1.5, None)
    prediction = summary["pack"]["prediction"]
    assert prediction["members"] == 1
    assert prediction["predicted"] == 1.5
    assert prediction["measured"] == pytest.approx(20 / 12, rel=0.02)
    assert prediction["error"] == pytest.approx(20 / 12 / 1.5 - 1, abs=0.02)
    text = render_report(summary, 140)
    assert "DICTED" in text
    assert "slowdown 1.50 while all run, measured 1.67 (mean of 1 member)" in text
    line = next(line for line in text.splitlines() if line.startswith("4711/1"))
    assert " 1.5 " in line
    without = build_summary(make_pack(tmp_path, truths, submission="20260102-000000-a"), tmp_path)
    assert without["pack"]["prediction"] is None
    assert "DICTED" not in render_report(without, 140)
    assert "redicted" not in render_report(without, 140)


def test_a_prediction_is_of_the_time_in_which_all_run(tmp_path: Path) -> None:
    def run_first(at: float) -> float:
        return 20 if at < 60 else 8 if at < 120 else 16

    truths = [
        Truth(1, 0, 200, run_first),
        Truth(2, 60, 200, lambda _: 9),
        Truth(3, 60, 120, lambda _: 9),
    ]
    summary = build_summary(make_pack(tmp_path, truths, predicted={1: 2.0, 2: 1.5}), tmp_path)
    first, second, third = summary["members"]
    assert first["together_slowdown"] == pytest.approx(20 / 8, rel=0.02)
    # In the tail with one only it was faster.
    assert first["slowdown"] < 2.0
    # The rate alone of one, and the prediction of the other, are unknown.
    assert (second["together_slowdown"], third["together_slowdown"]) == (None, None)
    prediction = summary["pack"]["prediction"]
    assert (prediction["members"], prediction["over"]) == (1, "together")
    assert prediction["predicted"] == 2.0
    assert prediction["measured"] == pytest.approx(20 / 8, rel=0.02)
    assert prediction["error"] == pytest.approx(20 / 8 / 2 - 1, abs=0.02)


def test_where_all_never_ran_together_a_prediction_stands_beside_all_that_was_shared(
    tmp_path: Path,
) -> None:
    truths = [
        Truth(1, 0, 160, lambda at: 20 if at < 60 else 12),
        Truth(2, 60, 100, lambda _: 9),
        Truth(3, 110, 160, lambda _: 9),
    ]
    summary = build_summary(make_pack(tmp_path, truths, predicted={1: 1.5}), tmp_path)
    assert summary["members"][0]["together_slowdown"] is None
    prediction = summary["pack"]["prediction"]
    assert (prediction["members"], prediction["over"]) == (1, "shared")
    assert prediction["measured"] == summary["members"][0]["slowdown"]
    said = (
        f"slowdown 1.50 while all run, measured {prediction['measured']:.2f} over all that they "
        "shared (mean of 1 member)"
    )
    assert said in " ".join(render_report(summary, 140).split())
    alone = make_pack(
        tmp_path,
        [Truth(1, 0, 100, lambda _: 20)],
        predicted={1: 1.0},
        submission="20260103-000000-a",
    )
    assert build_summary(alone, tmp_path)["pack"]["prediction"] is None


def test_a_run_that_came_to_its_end_tells_how_long_one_is(tmp_path: Path) -> None:
    # Alone at first, so that there is a usage profile; then together.
    learn_from_pack(make_pack(tmp_path, [Truth(1, 0, 100, lambda _: 20)]))
    (record,), _ = list_profiles(tmp_path)
    assert record.steps_total is not None
    assert record.steps_total.n == 1
    assert record.run_s == pytest.approx(record.steps_total.mean / 20, rel=0.02)
    together = [Truth(1, 0, 200, lambda _: 10), Truth(2, 0, 200, lambda _: 9)]
    pack = make_pack(tmp_path, together, submission="20260102-000000-a")
    for _ in range(2):
        assert learn_from_pack(pack) == []
    (record,) = [r for r in list_profiles(tmp_path)[0] if r.name == "train1"]
    assert record.steps_total is not None
    assert record.steps_total.n == 2, "also of a run that shared, and once"
    assert record.samples == 1, "which teaches nothing else"
    cut = make_pack(tmp_path, together, submission="20260103-000000-a", failed=(1,))
    learn_from_pack(cut)
    (record,) = [r for r in list_profiles(tmp_path)[0] if r.name == "train1"]
    assert record.steps_total is not None
    assert record.steps_total.n == 2, "one that failed has not made all its steps"
