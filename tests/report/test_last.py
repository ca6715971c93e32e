"""`last`: the newest submission, whether it made a pack or joined one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from slurm_colloc.errors import NotFound
from slurm_colloc.report.member_survey import find_last
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.inbox import claim_number, enter
from slurm_colloc.store.pack_directory import NewPack, write_joiner

from ..packs import build_member, build_pack


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state", "here")
    state.prepare()
    return state


def submit(state: State, name: str, job_id: str, at: float, **changes: object) -> Path:
    """A submission of two members at a time in seconds."""
    pack = build_pack(name, cluster="here")
    record = dataclasses.replace(pack.record, created_at=at, **changes)  # type: ignore[arg-type]
    with state.writing([NewPack(record, pack.members)]):
        pass
    state.record_job([record], job_id)
    path = state.pack_path(f"{name}.0")
    os.utime(path / "members", (at, at))
    return path


def join(path: Path, number: int, submission: str, at: float, *, enters: bool = True) -> None:
    """A job that joins a pack later; one that is killed before the end never enters."""
    member = build_member(number)
    spec = dataclasses.replace(member.spec, joined=submission, joined_at=at)
    assert claim_number(str(path), number)
    write_joiner(path, dataclasses.replace(member, spec=spec))
    if enters:
        assert enter(str(path), number)
    os.utime(path / "members", (at, at))


def test_the_newest_pack_is_the_last_submission(state: State) -> None:
    with pytest.raises(NotFound, match="there is no submission in"):
        find_last(state)
    submit(state, "20260101-000000-b", "12", 2000)
    submit(state, "20260101-000000-a", "13", 3000)
    submit(state, "20260101-000001-c", "11", 1000)
    assert str(find_last(state)) == "13"


def test_a_job_that_joined_a_pack_is_a_submission(state: State) -> None:
    path = submit(state, "a", "12", 1000)
    submit(state, "b", "13", 2000)
    join(path, 3, "x", 5000)
    join(path, 4, "y", 6000)
    assert str(find_last(state)) == "12/4"
    join(path, 5, "z", 6001)
    assert str(find_last(state)) == "12/5"
    submit(state, "c", "14", 7000)
    assert str(find_last(state)) == "14"


def test_a_joiner_that_never_entered_is_none(state: State) -> None:
    path = submit(state, "a", "12", 1000)
    submit(state, "b", "13", 2000)
    join(path, 3, "x", 9000, enters=False)
    assert str(find_last(state)) == "13"


def test_what_csub_submitted_again_by_itself_is_none(state: State) -> None:
    submit(state, "a", "12", 1000)
    submit(state, "b", "13", 9000, resubmissions=1)
    assert str(find_last(state)) == "12"


def test_a_submission_of_another_cluster_is_none(state: State) -> None:
    submit(state, "a", "12", 1000)
    submit(state, "b", "13", 9000, cluster="there")
    assert str(find_last(state)) == "12"


def test_a_damaged_pack_hinders_nobody(state: State) -> None:
    submit(state, "a", "12", 1000)
    path = submit(state, "b", "13", 9000)
    (path / "pack.json").write_text("{")
    assert str(find_last(state)) == "12"
