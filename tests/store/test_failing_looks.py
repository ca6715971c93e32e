"""What a file system that fails does not show is not taken for gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.instrument.results import FILE
from slurm_colloc.store.all_packs import State, build_index_path, remove_remains
from slurm_colloc.store.atomic_files import (
    hold_lock,
    is_locked,
    is_there,
    make_directory,
    read_record,
    write_atomic,
)
from slurm_colloc.store.indexes import JobIndex
from slurm_colloc.store.member_states import (
    is_held,
    leave_behind,
    may_have_begun,
    remove_environment,
    was_left,
    write_held,
)
from slurm_colloc.store.pack_directory import (
    drop_unentered,
    has_entered,
    is_unanswered,
    list_members,
    read_moved,
    write_moved,
)
from slurm_colloc.store.report_files import keep_tracker_runs, read_tracker_runs
from slurm_colloc.store.runner_requests import (
    Action,
    Request,
    is_cancel_asked,
    write_request,
)

from ..packs import build_pack, write_packs

ERRORS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of two members."""
    return write_packs(State(tmp_path / "state", "here"), build_pack("s"))


@pytest.fixture
def noted(pack: Path) -> Path:
    """The same pack with a job id, and what says that member 1 has moved to itself."""
    state = State(pack.parent.parent, "here")
    record = state.read_pack("s.0")
    assert record is not None
    state.record_pack_job(record, "7")
    write_moved(pack, 1, "s.0")
    return pack


@pytest.fixture(params=ERRORS, ids=os.strerror)
def blind(
    noted: Path,  # noqa: ARG001 - it is there before
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """No file can be looked at."""

    def fail(path: str, *_: object, **__: object) -> os.stat_result:
        raise OSError(request.param, os.strerror(request.param), str(path))

    with monkeypatch.context() as failing:
        failing.setattr(os, "lstat", fail)
        failing.setattr(os, "stat", fail)
        yield


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize(
    "look",
    [
        lambda pack: is_there(pack / "pack.json"),
        lambda pack: is_held(pack, 1),
        lambda pack: was_left(pack, 1),
        lambda pack: has_entered(pack, 1),
        list_members,
    ],
)
def test_what_cannot_be_seen_is_said(pack: Path, look: Callable[[Path], object]) -> None:
    with pytest.raises(StateError, match="cannot look at "):
        look(pack)


def test_no_member_is_removed_because_it_cannot_be_seen(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, *_: object, **__: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as failing:
        failing.setattr(os, "lstat", fail)
        failing.setattr(os, "stat", fail)
        with pytest.raises(StateError):
            drop_unentered(pack)
    assert list_members(pack) == [1, 2]


def test_what_is_there_and_what_is_not(pack: Path) -> None:
    assert is_there(pack / "pack.json")
    assert not is_there(pack / "other.json")
    assert not is_there(pack / "pack.json" / "below")
    (pack / "broken").symlink_to("nowhere")
    assert is_there(pack / "broken")


def test_a_member_is_left_behind_where_a_link_fails_although_it_was_made(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_held(pack, 1)
    link = os.link

    def lose(source: str, target: str) -> None:
        link(source, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO), target)

    monkeypatch.setattr(os, "link", lose)
    assert leave_behind(pack, 1)
    assert was_left(pack, 1)


def test_a_file_is_written_although_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is asked again for a rename that it has done finds nothing to rename."""
    replace = os.replace

    def lose(source: str, target: str) -> None:
        replace(source, target)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)

    with monkeypatch.context() as failing:
        failing.setattr(os, "replace", lose)
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_that_was_taken_away_meanwhile_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: str, _target: str) -> None:
        Path(source).unlink()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StateError, match="No such file"):
        write_atomic(tmp_path / "file", b"new")


@pytest.mark.usefixtures("blind")
def test_a_directory_that_cannot_be_seen_is_not_said_to_exist(tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        make_directory(tmp_path)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno in ERRORS


def test_a_file_in_the_place_of_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="File exists"):
        make_directory(tmp_path / "file")


def test_a_lock_that_is_given_back_with_an_error_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "close", fail)
        with hold_lock(tmp_path / "lock", 0) as locked:
            assert locked
    with hold_lock(tmp_path / "lock", 0) as locked:
        assert locked


def test_an_environment_that_cannot_be_removed_is_said(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    with monkeypatch.context() as failing:
        failing.setattr(os, "unlink", fail)
        with pytest.raises(StateError, match="Stale file handle"):
            remove_environment(pack, 1)
    remove_environment(pack, 1)
    # That it is gone already is all right.
    remove_environment(pack, 1)


@contextlib.contextmanager
def failing_at(monkeypatch: pytest.MonkeyPatch, call: str, name: str) -> Iterator[None]:
    """A call of os fails for paths that end so."""
    real = getattr(os, call)

    def fail(path: object, *words: object, **named: object) -> object:
        if isinstance(path, str | Path) and str(path).endswith(name):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *words, **named)

    with monkeypatch.context() as failing:
        failing.setattr(os, call, fail)
        yield


def test_a_lock_that_cannot_be_looked_at_is_not_taken_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep would drop the submission of a csub that lives."""
    with (
        hold_lock(tmp_path / "s.lock", 0),
        failing_at(monkeypatch, "open", "s.lock"),
        pytest.raises(StateError, match="Stale file handle"),
    ):
        is_locked(tmp_path / "s.lock")
    assert not is_locked(tmp_path / "none.lock")
    assert not is_locked(tmp_path / "s.lock" / "below")


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize(
    "look",
    [
        is_unanswered,
        lambda pack: read_moved(pack, 1),
        lambda pack: State(pack.parent.parent, "here").find_packs("7"),
    ],
)
def test_neither_a_pack_nor_a_mark_is_gone_because_it_cannot_be_seen(
    pack: Path, look: Callable[[Path], object]
) -> None:
    with pytest.raises(StateError, match="cannot look at "):
        look(pack)


def test_the_index_of_a_pack_that_cannot_be_seen_stays(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(noted.parent.parent, "here")
    with failing_at(monkeypatch, "lstat", "/s.0"), failing_at(monkeypatch, "stat", "/s.0"):
        remove_remains(state)
    assert state.find_packs("7") == ["s.0"]


def test_parts_of_a_submission_are_not_lost_with_an_index_that_cannot_be_read(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(noted.parent.parent, "here")
    state.add_parts("7", [("t", (0,))])
    record = state.read_pack("s.0")
    assert record is not None
    path = build_index_path(state.root, "7", "here")
    with failing_at(monkeypatch, "open", path.name), pytest.raises(StateError):
        state.record_pack_job(record, "7")
    index = read_record(path, JobIndex)
    assert index is not None
    assert index.list_parts() == (("s", (0,)), ("t", (0,)))


def test_takers_that_cannot_be_listed_are_not_none(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel of all members would leave those in other packs running."""
    state = State(noted.parent.parent, "here")
    with failing_at(monkeypatch, "listdir", ".takers"), pytest.raises(StateError, match="Stale"):
        state.find_packs("7")
    with failing_at(monkeypatch, "listdir", "sources"), pytest.raises(StateError, match="Stale"):
        state.list_sources("s.0")


def test_a_cancel_that_cannot_be_read_is_not_taken_for_none(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = write_request(pack, Request(Action.CANCEL, 1))
    with (
        failing_at(monkeypatch, "open", Path(asked).name),
        pytest.raises(StateError, match="Stale file handle"),
    ):
        is_cancel_asked([(pack, 1)])
    assert is_cancel_asked([(pack, 1)])


def test_a_member_whose_start_cannot_be_seen_is_not_held_for_sure(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing_at(monkeypatch, "listdir", "/0001"), pytest.raises(StateError, match="Stale"):
        may_have_begun(pack, 1, 1, 0)
    assert not may_have_begun(pack, 1, 1, 0)
    assert not may_have_begun(pack, 9, 1, 0)


def test_runs_of_trackers_that_cannot_be_read_are_not_written_over(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (1, 2):
        noted = tmp_path / "starts" / f"0001.{start}"
        noted.mkdir(parents=True)
        run = {"tracker": "mlflow", "run": f"r{start}"}
        (noted / FILE).write_text(f"{json.dumps(run)}\n")
        if start == 1:
            keep_tracker_runs(str(tmp_path / "starts"), pack)
            (noted / FILE).unlink()
    kept = f"report/{FILE}"
    with failing_at(monkeypatch, "open", kept), pytest.raises(StateError, match="Stale"):
        keep_tracker_runs(str(tmp_path / "starts"), pack)
    keep_tracker_runs(str(tmp_path / "starts"), pack)
    assert [run.run for run in read_tracker_runs(pack)] == ["r1", "r2"]
