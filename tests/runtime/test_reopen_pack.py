"""A pack that Slurm starts again although its end was written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.runtime.attempt import reopen
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import (
    StateRecord,
    begin_attempt,
    read_state,
    remove_environment,
    write_state,
)
from slurm_colloc.store.pack_directory import read_ended, write_ended, write_moved

from ..packs import build_pack, write_packs


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path, "here")
    begin_attempt(write_packs(state, build_pack("s", members=3)), 1)
    return state


def find_state(pack: Path, number: int) -> MemberState | None:
    record = read_state(pack, number, 1)
    return None if record is None else record.state


def test_without_a_last_word_nothing_is_taken_back(state: State) -> None:
    pack = state.pack_path("s.0")
    state.forget_open("s.0")
    assert not reopen(pack, state)
    assert not (state.open / "s.0").exists()


def test_who_was_open_is_open_again(state: State) -> None:
    pack = state.pack_path("s.0")
    write_state(pack, 1, StateRecord(MemberState.RUNNING, 1, starts=1))
    write_ended(pack, SlurmJobState.FAILED)
    state.forget_open("s.0")
    assert reopen(pack, state)
    assert read_ended(pack) is None
    assert (state.open / "s.0").exists()
    assert (find_state(pack, 1), find_state(pack, 2)) == (MemberState.RUNNING, None)


def test_who_was_settled_stays_what_it_was_shown_as(state: State) -> None:
    pack = state.pack_path("s.0")
    write_state(pack, 1, StateRecord(MemberState.RUNNING, 1, starts=1))
    for number in (1, 2, 3):
        remove_environment(pack, number)
    write_ended(pack, SlurmJobState.CANCELLED)
    state.forget_open("s.0")
    assert reopen(pack, state)
    record = read_state(pack, 1, 1)
    assert record is not None
    assert (record.state, record.starts) == (MemberState.CANCELLED, 1)
    assert record.reason == "its pack had ended (CANCELLED) before it was requeued"
    # Nobody is open, so nobody has to look at the pack.
    assert not (state.open / "s.0").exists()


def test_who_has_ended_or_was_submitted_again_elsewhere_is_left_alone(state: State) -> None:
    pack = state.pack_path("s.0")
    write_state(pack, 1, StateRecord(MemberState.COMPLETED, 1, starts=1))
    write_moved(pack, 2, "s.0")
    for number in (1, 2):
        remove_environment(pack, number)
    write_ended(pack, SlurmJobState.CANCELLED)
    assert reopen(pack, state)
    record = read_state(pack, 1, 1)
    assert record is not None
    assert (record.state, record.reason) == (MemberState.COMPLETED, "")
    assert find_state(pack, 2) is None
