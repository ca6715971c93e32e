"""Recorded packs of which a part is missing: what is unknown is null with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.report.summary_file import summary_path
from slurm_colloc.store.report_files import GPU_METRICS

from ..recordings.recorded import H200, NAMES, RECORDED, SHARED
from ..recordings.replaying import Replay, change_table, count_by_program, cut_short, find_window
from ..suites import leave_to_parts
from .generated import build_summary, render_report

NOT_NEWER = [name for name in GPU_METRICS if name not in ("engine_active", "power_limit_w")]
"""Metrics that the recordings have."""

pytestmark = pytest.mark.skipif(not H200.exists(), reason="an sdist has no recordings")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return Replay(tmp_path_factory.mktemp("replay"))


@pytest.fixture
def again(replay: Replay, tmp_path: Path) -> dict[str, Path]:
    """The packs without summaries, in a state directory that has the usage profile."""
    shutil.copytree(replay.state / "profiles", tmp_path / "profiles")
    return {name: RECORDED[name].place(tmp_path) for name in NAMES}


def summarise(pack: Path) -> Any:
    """A pack's summary, which can be written down, read again and shown."""
    state = pack.parent.parent
    summary = build_summary(pack, state)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    for width in (80, 140):
        assert "NVIDIA H200" in render_report(summary, width)
    learn_from_pack(pack)
    return summary


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_end_leaves_the_rates_and_no_energy(
    again: dict[str, Path], replay: Replay, name: str
) -> None:
    cut_short(again[name], lost_s=10)
    summary = summarise(again[name])
    assert summary["energy_j"] is None
    assert "energy: the GPU's could not be read over the whole time" in summary["pack"]["unknown"]
    last_at = max(row["at"] for row in RECORDED[name].members) - 10
    for member, before in zip(summary["members"], replay.summaries[name]["members"], strict=True):
        if member["ended_at"] > last_at + 5:
            assert member["energy_j"] is None
        if member["energy_j"] is None:
            assert any(note.startswith("energy unknown") for note in member["notes"])
        assert member["ended_at"] == before["ended_at"], "its runner has told"
        rate = member["rate"]
        if rate["steps_per_s"] is None:
            assert rate["unknown"]
            assert rate["window_s"] < 5
        elif name != "delayed":
            truth = count_by_program(name, member["member"], find_window(name, member))
            assert rate["steps_per_s"] == pytest.approx(truth, rel=0.01)


def test_without_the_gpus_table_speed_is_known_and_the_rest_is_not(
    again: dict[str, Path], replay: Replay
) -> None:
    for name in SHARED:
        (again[name] / "report" / "gpu.parquet").unlink()
        summary, before = summarise(again[name]), replay.summaries[name]
        assert summary["gpu"] == before["gpu"], "setup.json tells which it was"
        assert set(summary["gpu_use"].values()) <= {None}
        assert set(summary["throttled_s"].values()) == {None}
        assert summary["energy_j"] is None
        assert summary["unexplained"]["sm_active"] is None
        assert "nothing could be read of the GPU" in summary["notes"]
        assert summary["pack"]["stp"] == before["pack"]["stp"]
        for member, other in zip(summary["members"], before["members"], strict=True):
            assert member["rate"] == other["rate"]
            assert member["gpu_memory_mb"] == other["gpu_memory_mb"]
            assert member["energy_j"] is None
            assert any(note.startswith("energy unknown") for note in member["notes"])
    (again["alone"] / "report" / "gpu.parquet").unlink()
    (member,) = summarise(again["alone"])["members"]
    assert (member["sm_share"], member["energy_j"], member["stall"]["device"]) == (None,) * 3
    assert member["slowdown"] == 1


@pytest.mark.parametrize("name", SHARED)
def test_a_member_without_rows_is_unknown_by_name(
    again: dict[str, Path], replay: Replay, name: str
) -> None:
    change_table(again[name], "members", lambda rows: rows.filter(pc.not_equal(rows["member"], 3)))
    summary, before = summarise(again[name]), replay.summaries[name]
    lost = summary["members"][2]
    assert lost["rate"]["steps_per_s"] is None
    assert lost["rate"]["unknown"] == "it has no samples"
    assert "the monitor has not seen it" in lost["notes"]
    for key in ("steps", "slowdown", "gpu_memory_mb", "cpu_s", "sm_share", "energy_j"):
        assert lost[key] is None, key
    assert lost["state"] == "COMPLETED"
    assert summary["pack"]["stp"] is None
    assert 0 < summary["pack"]["stp_at_least"] < before["pack"]["stp"]
    assert any(f"{lost['id']}: slowdown" in reason for reason in summary["pack"]["unknown"])
    assert summary["unexplained"]["sm_active"]["members_unknown"] == [3]
    for member, other in zip(summary["members"], before["members"], strict=True):
        if member is not lost:
            assert member["rate"] == other["rate"]
            assert member["slowdown"] == other["slowdown"]


MEMBER_LOSSES: Mapping[str, Callable[[dict[str, Any]], bool]] = {
    "steps": lambda m: m["rate"]["steps_per_s"] is None and bool(m["rate"]["unknown"]),
    "first_step_at": lambda m: m["rate"]["steps_per_s"] > 0,
    "last_step_at": lambda m: m["rate"]["steps_per_s"] > 0,
    "gpu_memory_mb": lambda m: m["gpu_memory_mb"] is None,
    "host_memory_mb": lambda m: m["host_memory_peak_mb"] is None,
    "cpu_s": lambda m: m["cpu_s"] is None and m["cpu_cores"] is None,
    "read_bytes": lambda m: m["read_bytes"] is None,
    "written_bytes": lambda m: m["written_bytes"] is None,
    "skipped": lambda m: m["skipped"] is None,
    "samples": lambda m: m["samples"] is None and m["rate"]["samples_per_s"] is None,
    "wait_s": lambda m: m["stall"]["data"] is None and any("wait" in n for n in m["notes"]),
    "progress": lambda m: m["progress"] is None,
}


@pytest.mark.parametrize(
    "name", leave_to_parts(["alone", "timeslice", "delayed"], but=["timeslice"])
)
@pytest.mark.parametrize("column", MEMBER_LOSSES)
def test_a_column_of_members_that_an_older_monitor_lacks_is_null(
    again: dict[str, Path], replay: Replay, name: str, column: str
) -> None:
    change_table(again[name], "members", lambda rows: rows.drop_columns([column]))
    summary = summarise(again[name])
    assert all(MEMBER_LOSSES[column](member) for member in summary["members"])
    assert summary["energy_j"] == replay.summaries[name]["energy_j"]
    if column in ("first_step_at", "last_step_at"):
        for one, other in zip(summary["members"], replay.summaries[name]["members"], strict=True):
            # By the times of readings the second in which it ended counts whole.
            near = pytest.approx(other["rate"]["steps_per_s"], rel=0.08)
            assert one["rate"]["steps_per_s"] == near


@pytest.mark.parametrize("name", leave_to_parts(["alone", "mps"], but=["mps"]))
@pytest.mark.parametrize("column", NOT_NEWER)
def test_a_metric_that_an_older_monitor_lacks_is_null(
    again: dict[str, Path], replay: Replay, name: str, column: str
) -> None:
    change_table(again[name], "gpu", lambda rows: rows.drop_columns([column]))
    summary, before = summarise(again[name]), replay.summaries[name]
    if column in before["gpu_use"]:
        assert summary["gpu_use"][column] is None
        assert before["gpu_use"][column] is not None
    cause = column.removeprefix("throttle_").removesuffix("_s")
    assert (summary["throttled_s"].get(cause, 0) is None) == column.startswith("throttle_")
    # Without its counter energy is the integral of power.
    near = 0.02 if column == "energy_j" else 1e-9
    assert summary["energy_j"] == pytest.approx(before["energy_j"], rel=near)
    assert summary["pack"]["stp"] == before["pack"]["stp"]
    for member in summary["members"]:
        assert member["rate"]["steps_per_s"] is not None
        if column == "utilization":
            assert member["stall"]["device"] is None
        if column == "sm_active" and name == "alone":
            assert member["sm_share"] is None
    if column == "sm_active":
        assert (summary["unexplained"]["sm_active"] or {"measured": None})["measured"] is None


@pytest.mark.parametrize("table", ["gpu", "members"])
def test_half_a_file_is_named_and_read_around(again: dict[str, Path], table: str) -> None:
    path = again["mps"] / "report" / f"{table}.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    summary = summarise(again["mps"])
    assert any(f"{table}.parquet cannot be read" in note for note in summary["notes"])
    assert (summary["energy_j"] is None) == (table == "gpu")
    assert (summary["pack"]["stp"] is None) == (table == "members")


@pytest.mark.parametrize("missing", ["setup.json", "report/monitor.json", "events.jsonl"])
def test_a_file_that_is_missing_beside_the_samples_is_no_exception(
    again: dict[str, Path], replay: Replay, missing: str
) -> None:
    (again["timeslice"] / missing).unlink()
    summary, before = summarise(again["timeslice"]), replay.summaries["timeslice"]
    assert summary["energy_j"] == before["energy_j"]
    assert [m["rate"] for m in summary["members"]] == [m["rate"] for m in before["members"]]
    assert (summary["setup"] is None) == (missing == "setup.json")
    assert (summary["coverage"] is None) == (missing == "report/monitor.json")
    # Either of the two names the GPU's model, by which usage profiles are found.
    assert summary["pack"]["stp"] == before["pack"]["stp"]


def test_the_command_shows_a_recording_that_was_cut_short(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    pack = replay.packs["timeslice"]
    summary_path(pack).unlink()
    cut_short(pack, lost_s=10)
    job_id = RECORDED["timeslice"].job_id
    shown = replay.csub("report", job_id, "--detail")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "could not be read over the whole time" in " ".join(shown.stdout.split())
    (said,) = json.loads(replay.csub("report", job_id, "--json").stdout)
    assert said["energy_j"] is None
    assert said["pack"]["stp"] > 3
    assert len(said["members"]) == 7


NAMING = [("gpu", "at"), ("gpu", "uuid"), ("members", "at"), ("members", "attempt"),
          ("members", "member"), ("members", "start")]  # fmt: skip


@pytest.mark.parametrize(("table", "column"), NAMING)
def test_a_table_without_what_names_its_rows_is_damaged(
    again: dict[str, Path], table: str, column: str
) -> None:
    change_table(again["mps"], table, lambda rows: rows.drop_columns([column]))
    summary = summarise(again["mps"])
    told = f"{table}.parquet is damaged: it has no column {column}"
    assert any(told in note for note in summary["notes"])
    assert len(summary["members"]) == 7
    assert (summary["energy_j"] is None) == (table == "gpu")
    assert (summary["pack"]["stp"] is None) == (table == "members")


@pytest.mark.parametrize(("table", "column"), NAMING)
def test_a_row_of_nobody_is_left_out(
    again: dict[str, Path], replay: Replay, table: str, column: str
) -> None:
    def forget(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index(column)
        values = [*rows[column].to_pylist()[:-20], None, *rows[column].to_pylist()[-19:]]
        return rows.set_column(place, column, pa.array(values, rows.schema.field(place).type))

    change_table(again["mps"], table, forget)
    summary = summarise(again["mps"])
    assert summary["notes"] == []
    assert summary["energy_j"] == replay.summaries["mps"]["energy_j"]
    stp = pytest.approx(replay.summaries["mps"]["pack"]["stp"], rel=0.01)
    assert summary["pack"]["stp"] == stp
