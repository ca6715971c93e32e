"""Figures as data: CSV, Parquet, JSON and pandas frames."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from slurm_colloc.errors import NotFound, UsageProblem
from slurm_colloc.model.member import ExitCode
from slurm_colloc.report import load_packs
from slurm_colloc.report.data_tables import (
    MEMBER_COLUMNS,
    PACK_COLUMNS,
    render_csv,
    write_cell,
    write_parquet,
)
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.summary_file import find_summary
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import read_state, write_state
from slurm_colloc.store.pack_directory import read_spec, write_spec

from .generated import T0, UUID, Truth, make_pack

EVIL = '=cmd|" /C calc"!A0'


def make_two(root: Path, **options: Any) -> Path:
    truths = [Truth(1, 0, 120, lambda _: 20), Truth(2, 60, 120, lambda _: 9)]
    return make_pack(root, truths, one_family=True, failed=[2], **options)


def set_arguments(pack: Path, number: int, *arguments: str) -> None:
    spec = read_spec(pack, number)
    assert spec is not None
    job = dataclasses.replace(spec.job, arguments=arguments)
    write_spec(pack / "members" / f"{number:04d}", dataclasses.replace(spec, job=job))


def summarise(root: Path, pack: Path) -> Any:
    state = State(root, "here")
    (view,) = survey_packs(state, [pack.name], None)
    return find_summary(state, view)


def test_a_row_tells_which_job_a_member_was_and_how_it_ended(tmp_path: Path) -> None:
    pack = make_two(tmp_path)
    record = read_state(pack, 2, 1)
    assert record is not None
    write_state(pack, 2, dataclasses.replace(record, exit_code=ExitCode(3, 0)))
    first, second = csv.DictReader(io.StringIO(render_csv([(summarise(tmp_path, pack), None)])))
    assert (first["script"], first["arguments"], first["directory"]) == (
        "job.sh", "'--lr 0.1", "/tmp",
    )  # fmt: skip
    assert (first["node"], first["gpu_model"], first["mode"]) == ("node1", "NVIDIA H200", "mps")
    assert (first["exit_code"], second["exit_code"], second["exit_signal"]) == ("0", "3", "0")
    assert first["started_at"] == "2023-11-14T22:13:20.000Z"
    assert second["ended_at"] == "2023-11-14T22:15:20.000Z"
    assert first["job"] == "4711"
    assert float(first["steps_per_s"]) == pytest.approx(20, rel=0.02)


def test_a_formula_in_a_name_or_an_argument_is_none_in_a_spreadsheet(tmp_path: Path) -> None:
    pack = make_two(tmp_path, names=[EVIL, " \uff1d1+1\r\n=2"])
    set_arguments(pack, 1, "@SUM(1)", "x\x1b[31m")
    rows = list(csv.DictReader(io.StringIO(render_csv([(summarise(tmp_path, pack), None)]))))
    assert rows[0]["name"] == f"'{EVIL}"
    assert rows[1]["name"] == "' \uff1d1+1\\r\\n=2"
    # Quoted as a shell would need it, so that it begins with no sign of a formula.
    assert rows[0]["arguments"] == "@SUM(1)".join("''") + " 'x\\x1b[31m'"
    for row in rows:
        for value in row.values():
            assert not value.lstrip().startswith(("=", "@", "\uff1d")), value
            assert "\x1b" not in value
            assert "\n" not in value


def test_a_number_stays_one_in_a_spreadsheet() -> None:
    for text in ("-1", "+0.5", "-1e-3", "-.5", "3"):
        assert write_cell(text) == text
    for text in ("-1+1", "-A1", "+1-cmd|x", "-", "-1e", "-1\n", "-\uff11"):
        assert write_cell(text).startswith("'"), text


def test_parquet_has_moments_and_nulls(tmp_path: Path) -> None:
    pack = make_two(tmp_path / "state")
    path = tmp_path / "members.parquet"
    assert write_parquet(path, [(summarise(tmp_path / "state", pack), None)]) == 2
    table = pq.read_table(path)
    assert table.column_names == [column.name for column in MEMBER_COLUMNS]
    first, second = table.to_pylist()
    assert first["started_at"].timestamp() == T0
    assert str(table.schema.field("started_at").type) == "timestamp[ms, tz=UTC]"
    assert first["arguments"] == "--lr 0.1"
    assert second["predicted_slowdown"] is None
    with pytest.raises(UsageProblem, match="is a directory"):
        write_parquet(tmp_path, [])
    with pytest.raises(UsageProblem, match="cannot write"):
        write_parquet(tmp_path / "none" / "x.parquet", [])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["members.parquet", "state"]


def test_frames_have_packs_members_and_readings(tmp_path: Path) -> None:
    make_two(tmp_path)
    found = load_packs("4711", state_dir=tmp_path)
    assert found.problems == []
    assert list(found.packs.columns) == [column.name for column in PACK_COLUMNS]
    (pack,) = found.packs.to_dict("records")
    assert (pack["job"], pack["gpu_uuid"], pack["members"]) == ("4711", UUID, 2)
    assert (pack["ended_at"] - pack["started_at"]).total_seconds() == pytest.approx(120, abs=0.1)
    assert list(found.members["param_lr"]) == [0.1, 0.2]
    assert list(found.members["exit_code"]) == [0, 1]
    assert found.members["predicted_slowdown"].isna().all()
    samples = found.samples
    assert set(samples["member"]) == {1, 2}
    assert samples["seconds"].min() == 0
    assert samples.groupby("member")["steps"].max()[1] == found.members["steps"][0]
    assert found.gpu_samples["power_w"].max() == 300
    # Only the member that was named; the pack is its pack all the same.
    one = load_packs("4711/2", state_dir=tmp_path)
    assert list(one.members["member"]) == ["4711/2"]
    assert set(one.samples["member"]) == {2}


def test_frames_of_packs_without_a_gpu_that_run_or_of_no_packs(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there are no packs"):
        load_packs(state_dir=tmp_path)
    truths = [Truth(1, 0, 30, lambda _: 9, reports=False, gpu_memory_mb=None)]
    make_pack(tmp_path, truths, gpu=[], setup=False, running=True)
    found = load_packs("last", state_dir=tmp_path)
    assert list(found.packs["final"]) == [False]
    assert found.packs["gpu_uuid"].isna().all()
    assert found.members["steps"].isna().all()
    assert found.members["exit_code"].isna().all()
    assert len(found.gpu_samples) == 0
    assert len(load_packs(since="1h", state_dir=tmp_path).members) == 1
    with pytest.raises(UsageProblem, match="is not an age"):
        load_packs(since="yesterday", state_dir=tmp_path)


def test_a_parquet_file_that_was_cut_in_the_middle_is_named_and_the_rest_is_there(
    tmp_path: Path,
) -> None:
    pack = make_two(tmp_path)
    path = pack / "report" / "members.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.warns(UserWarning, match=r"members\.parquet cannot be read"):
        found = load_packs("4711", state_dir=tmp_path)
    assert len(found.members) == 2
    assert found.members["steps"].isna().all()
    assert len(found.gpu_samples) > 100
    with pytest.warns(UserWarning, match=r"members\.parquet cannot be read"):
        assert len(found.samples) == 0
