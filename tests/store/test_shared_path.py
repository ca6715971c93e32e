"""Files on a path that several machines share, and that may crash."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import cast

import pytest

from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import ABANDONED_S, State, remove_remains
from slurm_colloc.store.atomic_files import (
    name_temporary,
    read_file_clock,
    write_all,
    write_atomic,
    write_json,
)
from slurm_colloc.store.written_ends import RunnerProcess, write_runner
from slurm_colloc.submission.upkeep.sweep import look_at_open_packs, sweep

from ..packs import build_pack, write_packs


def test_a_temporary_name_is_of_one_process_of_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pack.json"
    here = {name_temporary(path) for _ in range(3)}
    monkeypatch.setattr(os, "uname", lambda: type("Host", (), {"nodename": "n-2.site.org"}))
    there = name_temporary(path)
    assert len({*here, there}) == 4
    assert there.startswith(f"{path}.tmp{os.getpid()}-n_2_site_org-")


def test_the_content_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name.partition(".tmp")[0]
        done.append(f"sync {name} {os.fstat(descriptor).st_size}")
        sync(descriptor)

    def note_rename(source: str, target: Path) -> None:
        done.append(f"name {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    write_all({tmp_path / "a": b"1", tmp_path / "b": b"22"})
    assert done == ["sync a 1", "sync b 2", "name a", "name b"]
    done.clear()
    # An empty file has nothing to lose, and the newest figures are written again in a moment.
    write_atomic(tmp_path / "mark", b"")
    write_json(tmp_path / "latest.json", {}, outlives_crash=False)
    assert done == ["name mark", "name latest.json"]


def test_the_clock_of_the_files_counts_for_their_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(tmp_path / "state", "here")
    state.prepare()
    young = state.making / "s.new"
    half = state.jobs / "here.1.json.tmp77"
    young.touch()
    half.touch()
    # This machine is an hour ahead of the file server.
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    assert abs(read_file_clock(state.jobs) - now()) < 60
    assert state.list_making() == []
    state.drop_making("s")
    assert half.exists(), "another process may still be writing it"
    monkeypatch.undo()
    young.touch()
    os.utime(young, (now() - 60, now() - 60))
    os.utime(half, (now() - 60, now() - 60))
    assert state.list_making() == ["s"]
    state.drop_making("s")
    assert not half.exists()
    assert not list(state.root.rglob("clock*"))


def test_what_a_killed_writer_has_left_goes_in_the_end_by_either_name(tmp_path: Path) -> None:
    state = State(tmp_path / "state", "here")
    state.prepare()
    old = [state.root / "x.json.tmp17", Path(name_temporary(state.root / "x.json"))]
    for path in old:
        path.touch()
        os.utime(path, (time.time() - 2 * ABANDONED_S,) * 2)
    young = Path(name_temporary(state.root / "y.json"))
    young.touch()
    remove_remains(state)
    assert [path.name for path in state.root.iterdir() if re.search("tmp", path.name)] == [
        young.name
    ]


def test_a_pack_without_slurm_is_settled_on_its_own_host_alone(tmp_path: Path) -> None:
    state = State(tmp_path / "state", "here")
    path = write_packs(state, build_pack("s", local=True))
    (path / "alive").touch()
    state.forget_lock("s")
    write_runner(path, RunnerProcess("login2", 7, 4711))
    slurm = cast(SlurmAccess, None)
    for host, open_packs in (("login2", ["s.0"]), (os.uname().nodename, [])):
        write_runner(path, RunnerProcess(host, 7, 4711))
        sweep(state, slurm, look_at_open_packs(state, []), None, Settings())
        assert state.list_open() == open_packs
