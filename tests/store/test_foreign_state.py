"""A state directory of somebody else: it offers what reads, and refuses what writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc import ownership
from slurm_colloc.errors import StateError
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.plan import WaitTable
from slurm_colloc.store.all_packs import State, StateReader, open_own_state, open_state
from slurm_colloc.store.atomic_files import (
    hold_lock,
    is_locked,
    make_directory,
    write_all,
    write_json,
)
from slurm_colloc.store.kept_answers import keep
from slurm_colloc.store.pack_directory import read_end_limit, write_ended

from ..packs import build_pack, write_packs

OWNER = 61234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def _nothing_stays_protected() -> Iterator[None]:
    yield
    ownership._protected.clear()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """The state directory of another user, with a pack in it."""
    root = tmp_path / "state"
    write_packs(State(root, "here"), build_pack("s"), job_id="4711")
    for path in (root, *root.rglob("*")):
        os.chown(path, OWNER, OWNER)
    return root


def list_stamps(root: Path) -> list[tuple[str, int, int]]:
    found = [(str(path), path.lstat()) for path in (root, *sorted(root.rglob("*")))]
    return [(name, status.st_ctime_ns, status.st_uid) for name, status in found]


@needs_root
@pytest.mark.root
def test_it_can_be_read_and_has_no_operation_that_writes(foreign: Path) -> None:
    before = list_stamps(foreign)
    state = open_state(foreign, "here")
    assert type(state) is StateReader
    assert (state.owner_uid, state.owner_name) == (OWNER, f"uid {OWNER}")
    assert state.find_packs("4711") == state.list_open() == state.list_all() == ["s.0"]
    assert state.read_pack("s.0") == build_pack("s").record
    assert not state.is_being_submitted("s")
    for name in ("prepare", "writing", "discard", "forget_open", "record_job", "drop_making"):
        assert not hasattr(state, name)
    with pytest.raises(StateError, match=f"belongs to uid {OWNER}, you are root: you can read it"):
        open_own_state(foreign)
    assert list_stamps(foreign) == before


def take_lock(path: Path) -> None:
    with hold_lock(path, 0):
        pass


WRITES: list[Callable[[Path], object]] = [
    lambda root: write_json(root / "new.json", {}),
    lambda root: write_all({root / "packs" / "s.0" / "pack.json": b""}),
    lambda root: write_ended(root / "packs" / "s.0", SlurmJobState.COMPLETED),
    lambda root: make_directory(root / "waits"),
    make_directory,
    lambda root: take_lock(root / "packs" / "s.0" / "lock"),
    lambda root: take_lock(root / "open" / ".." / "new.lock"),
]


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("write", WRITES)
def test_what_writes_by_a_path_is_refused_as_well(
    foreign: Path, write: Callable[[Path], object]
) -> None:
    open_state(foreign, "here")
    before = list_stamps(foreign)
    with pytest.raises(StateError, match="only uid 61234 can change it"):
        write(foreign)
    keep(foreign, "of-", None, WaitTable(0, {}, ""))
    assert list_stamps(foreign) == before


def test_the_callers_own_and_others_of_the_same_process_stay_writable(tmp_path: Path) -> None:
    ownership.protect(tmp_path / "a", OWNER)
    assert isinstance(open_state(tmp_path / "ab"), State)
    open_own_state(tmp_path / "ab").prepare()
    write_json(tmp_path / "ab" / "x.json", {})
    with pytest.raises(StateError, match=f"belongs to uid {OWNER}"):
        make_directory(tmp_path / "a")


@needs_root
@pytest.mark.root
def test_root_makes_no_state_in_another_users_home(tmp_path: Path) -> None:
    os.chown(tmp_path, OWNER, OWNER)
    root = tmp_path / ".local" / "state" / "slurm_colloc"
    assert type(open_state(root)) is StateReader
    with pytest.raises(StateError):
        open_own_state(root)
    assert list(tmp_path.iterdir()) == []


def test_to_look_at_a_lock_neither_takes_nor_disturbs_it(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert not is_locked(path)
    path.write_bytes(b"")
    path.chmod(0o400)
    assert not is_locked(path)
    other = os.open(path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)
    # Somebody else looks at the same moment.
    assert not is_locked(path)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert is_locked(path)
    os.close(other)
    os.mkfifo(tmp_path / "pipe")
    assert not is_locked(tmp_path / "pipe")


def test_the_end_of_a_pack_is_when_slurm_says_or_when_it_was_written(tmp_path: Path) -> None:
    assert read_end_limit(tmp_path) is None
    write_ended(tmp_path, SlurmJobState.CANCELLED, 1234)
    # Slurm rounds down: it can have been any moment of that second.
    assert read_end_limit(tmp_path) == 1235
    write_ended(tmp_path, SlurmJobState.CANCELLED)
    os.utime(tmp_path / "ended.json", (99, 99))
    assert read_end_limit(tmp_path) == 99
