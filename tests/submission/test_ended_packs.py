"""What of a pack that is over never started; a failure to look submits none of it again."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import MemberState
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import (
    StateRecord,
    begin_attempt,
    read_state,
    write_held,
    write_state,
)
from slurm_colloc.store.pack_directory import write_moved
from slurm_colloc.store.written_ends import write_down_ends
from slurm_colloc.submission.upkeep.ended_packs import list_held, list_never_started

from ..packs import build_pack, write_packs


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of two members, of which none has started."""
    return write_packs(State(tmp_path / "state", "here"), build_pack("s"))


def test_whose_wrapper_was_up_or_who_is_cancelled_or_elsewhere_is_no_such_member(
    pack: Path,
) -> None:
    assert list_never_started(pack) == [1, 2]
    first = pack / "members" / "0001"
    for name in ("run.1.1.started", "cancelled", "over.t.0"):
        (first / name).touch()
        assert list_never_started(pack) == [2]
        (first / name).unlink()
    write_moved(pack, 1, "s.0")
    assert list_never_started(pack) == [2]
    # What it was moved to is gone: that came to nothing.
    write_moved(pack, 1, "t.0")
    assert list_never_started(pack) == [1, 2]


def test_ends_that_no_runner_has_noted_are_written_down_and_others_left(pack: Path) -> None:
    begin_attempt(pack, 1)
    for number in (1, 2):
        write_state(pack, number, StateRecord(MemberState.RUNNING, 1, starts=1, node="n1"))
        folder = pack / "members" / f"000{number}"
        (folder / "run.1.1.started").write_text('{"schema": 1}')
        ended = {"schema": 1, "wait_status": 0, "at": 7.0, "terminated": number == 2}
        (folder / "run.1.1.exit").write_text(json.dumps(ended))
    write_down_ends(pack)
    first, second = (read_state(pack, number, 1) for number in (1, 2))
    assert first is not None
    assert (first.state, first.ended_at, first.node) == (MemberState.COMPLETED, 7.0, "n1")
    assert second is not None
    assert second.state is MemberState.RUNNING
    # What makes no sense tells nothing.
    (pack / "members" / "0002" / "run.1.1.exit").write_text("{")
    write_down_ends(pack)
    assert read_state(pack, 2, 1) == second


@pytest.mark.parametrize("look", [list_never_started, list_held])
@pytest.mark.parametrize("marks", [("run.1.1.started",), ("cancelled",)])
@pytest.mark.parametrize("call", ["lstat", "stat", "listdir", "scandir"])
def test_none_is_submitted_again_because_its_marks_cannot_be_seen(
    pack: Path,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[Path], list[int]],
    marks: tuple[str, ...],
    call: str,
) -> None:
    folder = pack / "members" / "0001"
    write_held(pack, 1)
    for name in marks:
        (folder / name).touch()
    expected = look(pack)
    real = getattr(os, call)

    def fail(path: object = ".", *words: object, **named: object) -> object:
        if isinstance(path, str | Path) and str(path).startswith(str(folder)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *words, **named)

    with monkeypatch.context() as failing:
        failing.setattr(os, call, fail)
        try:
            found = look(pack)
        except StateError:
            return
    assert found == expected
