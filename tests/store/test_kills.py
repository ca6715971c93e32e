"""What is known of killed runners of a pack."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.written_ends import (
    RunnerKill,
    find_kill,
    forget_kill,
    list_kills,
    read_kill,
    read_run_times,
    write_kill,
)


def test_every_start_of_the_batch_script_has_a_record_of_its_own(tmp_path: Path) -> None:
    assert list_kills(tmp_path) == []
    first = RunnerKill(0, 1, 9, 12.5)
    # It was killed before it began an attempt.
    early = RunnerKill(1, 1, 11, 13.5, "it may not be requeued")
    tenth = RunnerKill(10, 4, 9, 14.5)
    for kill in (tenth, early, first):
        write_kill(tmp_path, kill)
    (tmp_path / "killed.x.json").write_text("not ours")
    assert list_kills(tmp_path) == [first, early, tenth]
    assert read_kill(tmp_path, 1) == early
    assert read_kill(tmp_path, 2) is None
    assert find_kill(tmp_path, 1) == early
    assert find_kill(tmp_path, 2) is None
    assert find_kill(tmp_path, 4) == tenth
    forget_kill(tmp_path, 1)
    forget_kill(tmp_path, 1)
    assert find_kill(tmp_path, 1) == first


def test_it_is_told_in_words() -> None:
    assert str(RunnerKill(0, 1, 9, 0.0)) == "its runner was killed by signal 9"
    assert RunnerKill(0, 1, 9, 0.0).outcome == "its pack was requeued"
    assert RunnerKill(0, 1, 9, 0.0, "it may not be requeued").outcome == "it may not be requeued"


def test_a_damaged_record_is_named_and_a_later_versions_field_is_not_minded(
    tmp_path: Path,
) -> None:
    write_json(tmp_path / "killed.0.json", {"restarts": 0, "attempt": 1})
    with pytest.raises(StateError, match=r"killed\.0\.json is damaged"):
        list_kills(tmp_path)
    fields = {"restarts": 0, "attempt": 1, "signal": 9, "at": 1.0, "mood": "bad"}
    write_json(tmp_path / "killed.0.json", fields)
    assert list_kills(tmp_path) == [RunnerKill(0, 1, 9, 1.0)]


def test_what_is_no_pack_has_none(tmp_path: Path) -> None:
    assert list_kills(tmp_path / "gone") == []


def test_when_each_start_ran_is_read_of_what_wrappers_wrote(tmp_path: Path) -> None:
    texts = {
        "run.1.1.exit": '{"schema": 1, "wait_status": 0, "started_at": 10.0, "at": 50.5}',
        "run.2.2.exit": '{"schema": 1, "wait_status": 15, "started_at": 60.0, "at": 70.0}',
        # It runs, that was not told, or it is no such file.
        "run.3.3.started": '{"schema": 1, "at": 80.0}',
        "run.4.4.exit": '{"schema": 1, "wait_status": 0, "at": 90.0}',
        "run.5.5.exit": "damaged",
        "run.x.exit": '{"schema": 1, "wait_status": 0, "started_at": 1.0, "at": 2.0}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    times = {(1, 1): (10.0, 50.5), (2, 2): (60.0, 70.0)}
    assert read_run_times(str(tmp_path), texts) == times
