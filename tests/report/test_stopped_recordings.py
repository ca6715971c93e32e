"""Recorded packs with a time put into them in which all members were stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slurm_colloc.store.member_states import append_change

from ..recordings.recorded import H200, RECORDED, SHARED
from ..recordings.replaying import Replay, change_table
from .generated import build_summary

pytestmark = pytest.mark.skipif(not H200.exists(), reason="an sdist has no recordings")

MOMENTS = ("at", "first_step_at", "last_step_at")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return Replay(tmp_path_factory.mktemp("replay"))


def put_in_stop(pack: Path, moment: float, length_s: float) -> None:
    """Let all that follows a moment happen later, and write down that all were stopped."""

    def delay(value: float | None) -> float | None:
        return value if value is None or value <= moment else value + length_s

    def delay_rows(rows: pa.Table) -> pa.Table:
        for name in set(MOMENTS) & set(rows.column_names):
            place = rows.schema.get_field_index(name)
            kind = rows.schema.field(place).type
            values = pa.array([delay(value) for value in rows[name].to_pylist()], kind)
            rows = rows.set_column(place, name, values)
        return rows

    for table in ("gpu", "members"):
        change_table(pack, table, delay_rows)
    members = []
    for path in sorted((pack / "members").glob("*/state.1.json")):
        record: dict[str, Any] = json.loads(path.read_text())
        record |= {name: delay(record[name]) for name in ("started_at", "ended_at")}
        path.write_text(json.dumps(record))
        members.append((int(path.parent.name), 1))
    append_change(pack, moment, paused=members)
    append_change(pack, moment + length_s, resumed=members)


def summarise_stopped(replay: Replay, root: Path, name: str, length_s: float) -> Any:
    shutil.copytree(replay.state / "profiles", root / "profiles")
    pack = RECORDED[name].place(root)
    begin, end = RECORDED[name].find_training()
    put_in_stop(pack, begin + (end - begin) * 0.6, length_s)
    return build_summary(pack, root)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("length_s", [0.7, 30.0])
def test_a_stop_of_all_changes_no_figure_of_a_recorded_pack(
    replay: Replay, tmp_path: Path, name: str, length_s: float
) -> None:
    found, before = summarise_stopped(replay, tmp_path, name, length_s), replay.summaries[name]
    assert found["notes"] == before["notes"]
    for member, other in zip(found["members"], before["members"], strict=True):
        assert member["stopped_s"] == pytest.approx(length_s)
        assert other["stopped_s"] == 0
        for key in ("steps_per_s", "shared_steps_per_s", "warm_up_s", "paused_s", "window_s"):
            assert member["rate"][key] == pytest.approx(other["rate"][key], rel=0.005, abs=1e-6)
        for key in ("slowdown", "cpu_cores", "solo_time_s"):
            assert member[key] == pytest.approx(other[key], rel=0.005)
        assert member["stall"]["data"] == pytest.approx(other["stall"]["data"], abs=0.01)
        assert member["solo"] == other["solo"]
        assert len(member["interference"]) == len(other["interference"])
    pack = found["pack"]
    for key in ("stp", "antt", "overlap_s", "serial_s"):
        assert pack[key] == pytest.approx(before["pack"][key], rel=0.005)
    assert pack["members_most"] == before["pack"]["members_most"]
    assert pack["shared_s"] == pytest.approx(before["pack"]["shared_s"] + length_s)
