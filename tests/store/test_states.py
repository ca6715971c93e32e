from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.store import atomic_files
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.member_states import (
    StateRecord,
    begin_attempt,
    read_attempt,
    read_state,
    remove_environment,
    write_state,
)
from slurm_colloc.store.runner_requests import (
    Action,
    Request,
    forget_request,
    list_requests,
    write_request,
)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    (tmp_path / "members" / "0001").mkdir(parents=True)
    (tmp_path / "control").mkdir()
    return tmp_path


STATES = st.builds(
    StateRecord,
    state=st.sampled_from(MemberState),
    attempt=st.just(1),
    starts=st.integers(0, 9),
    started_at=st.none() | st.floats(0, 1e11),
    ended_at=st.none() | st.floats(0, 1e11),
    exit_code=st.none() | st.builds(ExitCode, st.integers(0, 255), st.integers(0, 64)),
    node=st.none() | st.text(),
    gpus=st.lists(st.text()).map(tuple),
    cpus=st.lists(st.integers(0, 999)).map(tuple),
    step=st.none() | st.text(),
    wall_limit_s=st.none() | st.integers(0),
    reason=st.text(),
)


@given(record=STATES)
def test_a_state_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, record: StateRecord
) -> None:
    pack = tmp_path_factory.getbasetemp() / "states"
    (pack / "members" / "0001").mkdir(parents=True, exist_ok=True)
    write_state(pack, 1, record)
    assert read_state(pack, 1, 1) == record


def test_the_newest_attempt_wins_whenever_the_older_one_writes(pack: Path) -> None:
    assert begin_attempt(pack, 1) == 1
    assert begin_attempt(pack, 1) == 2
    write_state(pack, 1, StateRecord(MemberState.RUNNING, 2))
    write_state(pack, 1, StateRecord(MemberState.FAILED, 1, reason="the old one still writes"))
    newest = read_state(pack, 1, read_attempt(pack))
    assert newest is not None
    assert newest.state is MemberState.RUNNING


def test_an_older_attempt_counts_where_the_newest_wrote_nothing(pack: Path) -> None:
    write_state(pack, 1, StateRecord(MemberState.COMPLETED, 1))
    found = read_state(pack, 1, 3)
    assert found is not None
    assert (found.state, found.attempt) == (MemberState.COMPLETED, 1)
    assert read_state(pack, 1, 0) is None


def test_attempts_grow_with_slurms_restarts_and_never_shrink(pack: Path) -> None:
    assert read_attempt(pack) == 0
    assert [begin_attempt(pack, least) for least in (1, 4, 2, 2)] == [1, 4, 5, 6]


def test_a_damaged_attempt_is_named(pack: Path) -> None:
    (pack / "attempt").write_text("two\n")
    with pytest.raises(StateError, match=r"attempt is damaged: it must hold one number"):
        read_attempt(pack)


@pytest.mark.parametrize(
    "content", ['{"schema":1}', '{"schema":1,"state":"HAPPY"}', '{"schema":1,"state":"RUNNING"}']
)
def test_a_damaged_state_is_named(pack: Path, content: str) -> None:
    path = pack / "members" / "0001" / "state.1.json"
    path.write_text(content)
    with pytest.raises(StateError, match=f"{path} is damaged"):
        read_state(pack, 1, 1)


def test_the_environment_goes_away_and_may_be_gone(pack: Path) -> None:
    path = pack / "members" / "0001" / "env"
    path.touch()
    remove_environment(pack, 1)
    remove_environment(pack, 1)
    assert not path.exists()


def test_requests_come_in_order_and_stay_until_they_are_done(pack: Path) -> None:
    requests = [
        Request(Action.SIGNAL, 1, signal=10, steps_only=True, reason="scancel -s"),
        Request(Action.CANCEL, 2),
        Request(Action.REQUEUE, 1, reason='quotes " and\nnewlines'),
    ]
    paths = [Path(write_request(pack, request)) for request in requests]
    assert all(path.exists() for path in paths)
    found = list_requests(pack)
    assert found == requests
    assert [Path(request.path) for request in found] == paths
    # Not lost with the process that has read it.
    assert list_requests(pack) == requests
    for request in found:
        forget_request(request.path)
    assert list_requests(pack) == []
    assert not any(path.exists() for path in paths)


def test_a_request_that_cannot_be_read_now_is_kept_and_stops_no_other(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_request(pack, Request(Action.CANCEL, 1))
    write_request(pack, Request(Action.CANCEL, 2))

    def read(asked: str) -> dict[str, Any] | None:
        if asked == path:
            raise StateError("cannot read it: Input/output error") from OSError(errno.EIO, "")
        return read_json(asked)

    monkeypatch.setattr(atomic_files, "read_json", read)
    unreadable: list[StateError] = []
    assert [request.number for request in list_requests(pack, unreadable)] == [2]
    assert len(unreadable) == 1
    monkeypatch.undo()
    assert [request.number for request in list_requests(pack)] == [1, 2]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"schema":1,"action":"explode","number":1}', '{"schema":1,"x":1}', "[]"]
)
def test_a_damaged_request_is_dropped_and_stops_no_other(pack: Path, content: str) -> None:
    (pack / "control" / "1-bad.json").write_text(content)
    (pack / "control" / "half.json.tmp17").write_text("{")
    good = Request(Action.CANCEL, 1)
    write_request(pack, good)
    assert list_requests(pack) == [good]
    assert not (pack / "control" / "1-bad.json").exists()
    assert (pack / "control" / "half.json.tmp17").exists()
