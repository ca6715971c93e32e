"""`csub clean`: what is over and old goes, and nothing else, also after a kill at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.report.member_survey import (
    survey_packs,
)
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import (
    State,
    build_index_path,
    measure_bytes,
    remove_pack,
    remove_remains,
)
from slurm_colloc.store.member_states import StateRecord, begin_attempt, write_state
from slurm_colloc.store.pack_directory import write_ended

from ..calls import run_csub
from ..packs import build_pack, write_packs

DAY_S = 86400


def make_over(state: State, name: str, job_id: str, *, age_s: float, cluster: str = "") -> Path:
    """A pack as its runner leaves it, ended so long ago."""
    path = write_packs(state, build_pack(name, cluster=cluster), job_id=job_id)
    ended_at = time.time() - age_s
    attempt = begin_attempt(path, 1)
    for number in (1, 2):
        inbox.take(str(path), number)
        record = StateRecord(
            MemberState.COMPLETED, attempt, starts=1, started_at=ended_at - 60, ended_at=ended_at
        )
        write_state(path, number, record)
    inbox.close(str(path))
    state.forget_open(f"{name}.0")
    os.utime(path, (ended_at, ended_at))
    return path


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state" / "slurm_colloc", "here")
    state.prepare()
    return state


def csub(state: State, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = state.root.parent
    environment = {"HOME": str(root), "XDG_STATE_HOME": str(root), "PATH": "/nonexistent"}
    return run_csub(*arguments, environment=environment, directory=root)


def test_old_packs_go_with_their_index_and_young_ones_stay(state: State) -> None:
    old = make_over(state, "old", "L1", age_s=31 * DAY_S)
    young = make_over(state, "young", "L2", age_s=29 * DAY_S)
    tried = csub(state, "clean", "--older-than", "30d", "--dry-run")
    assert tried.stdout.startswith("1 pack with 2 members would be removed, ")
    assert tried.stdout.endswith("; kept: 1\n")
    assert old.exists()
    done = csub(state, "clean")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 pack with 2 members removed, ")
    assert (old.exists(), young.exists()) == (False, True)
    assert not build_index_path(state.root, "L1", "").exists()
    gone = csub(state, "show", "L1")
    assert gone.returncode == 7
    assert "csub has no job L1" in gone.stderr
    assert csub(state, "show", "L2").returncode == 0
    assert csub(state, "clean", "--older-than", "4w").stdout.startswith("1 pack with 2 members")
    assert list(state.packs.iterdir()) == list(state.making.iterdir()) == []
    bad = csub(state, "clean", "--older-than", "30")
    assert bad.returncode == 2
    assert "--older-than: '30' is not an age" in bad.stderr


def test_what_is_open_unfinished_or_of_another_cluster_stays(state: State) -> None:
    open_pack = make_over(state, "open", "L1", age_s=90 * DAY_S)
    (state.open / "open.0").touch()
    elsewhere = make_over(state, "elsewhere", "5", age_s=90 * DAY_S, cluster="there")
    held = make_over(state, "held", "L3", age_s=90 * DAY_S)
    (held / "members" / "0002" / "state.1.json").unlink()
    (held / "members" / "0002" / "held").touch()
    write_ended(held, SlurmJobState.COMPLETED)
    unsettled = make_over(state, "unsettled", "L4", age_s=90 * DAY_S)
    (unsettled / "inbox").mkdir()
    changed = make_over(state, "changed", "L5", age_s=90 * DAY_S)
    os.utime(changed)
    damaged = make_over(state, "damaged", "L6", age_s=90 * DAY_S)
    (damaged / "pack.json").write_text("{")
    for path in (held, unsettled, damaged):
        os.utime(path, (0, 0))
    done = csub(state, "clean", "--older-than", "1d")
    assert done.stdout.startswith("0 packs with 0 members removed")
    assert f"left as it is: {damaged / 'pack.json'} is damaged" in done.stderr
    for path in (elsewhere, held, unsettled, changed, damaged):
        assert path.exists(), path
    # The runner of a pack without Slurm is dead: the sweep marks it first, which is a change.
    assert open_pack.exists()


def test_a_removal_that_was_killed_is_finished_by_the_next_call(state: State) -> None:
    """The removing process stops at its n-th change of the file system, for every n."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from slurm_colloc.store.all_packs import remove_pack, remove_remains\n"
        "from slurm_colloc.store.all_packs import State\n"
        "left = int(sys.argv[2])\n"
        "def trip(event, _):\n"
        "    global left\n"
        "    if event in ('os.rename', 'os.remove', 'os.rmdir', 'os.unlink'):\n"
        "        left -= 1\n"
        "        if left < 0:\n"
        "            os.kill(os.getpid(), 9)\n"
        "sys.addaudithook(trip)\n"
        "state = State(Path(sys.argv[1]), 'here')\n"
        "remove_pack(state, 'doomed.0')\n"
        "remove_remains(state)\n"
    )
    kills = 0
    while True:
        path = make_over(state, "doomed", "L7", age_s=90 * DAY_S)
        ended = subprocess.run(
            [sys.executable, "-c", code, str(state.root), str(kills)], check=False
        )
        # Whole or out of sight, never in between.
        assert not path.exists() or len(list(path.rglob("spec.json"))) == 2
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
        kills += 1
        views = survey_packs(state, state.list_all(), None)
        assert [len(view.members) for view in views] == [2] * path.exists()
        remove_pack(state, "doomed.0")
        remove_remains(state)
        assert list(state.packs.iterdir()) == list(state.making.iterdir()) == []
        assert list(state.jobs.iterdir()) == []
    assert kills > 10


def test_two_at_once_remove_a_pack_once(state: State) -> None:
    make_over(state, "s", "L1", age_s=90 * DAY_S)
    assert remove_pack(state, "s.0") is True
    assert remove_pack(state, "s.0") is False


def test_a_file_with_several_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    alone = measure_bytes(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert measure_bytes(tmp_path) == alone >= 100_000


def test_half_written_files_of_killed_calls_go_and_others_stay(state: State) -> None:
    folder = state.root / "profiles"
    folder.mkdir()
    old = [folder / "a.json.tmp4711", state.jobs / "12.json.tmp1", state.root / "last.tmp33"]
    kept = [folder / "a.json", folder / "b.json.tmp4712", folder / "c.tmp", folder / ".tmp1"]
    for path in (*old, *kept):
        path.write_text("{}")
        os.utime(path, (0, 0))
    os.utime(kept[1])
    (folder / "d.tmp5").symlink_to(kept[0])
    elsewhere = state.root.parent / "elsewhere"
    elsewhere.mkdir()
    kept_elsewhere = elsewhere / "a.json.tmp4711"
    kept_elsewhere.write_text("{}")
    os.utime(kept_elsewhere, (0, 0))
    (state.root / "linked").symlink_to(elsewhere)
    remove_remains(state)
    assert kept_elsewhere.exists()
    assert not any(path.exists() for path in old)
    assert sorted(folder.iterdir()) == sorted([*kept, folder / "d.tmp5"])
