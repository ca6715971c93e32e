from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.errors import NotFound, SlurmNoAnswer, SlurmRefused, StateError
from slurm_colloc.model.chain import ChainRecord, Link
from slurm_colloc.model.comment_token import PACK_TOKEN
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmJob
from slurm_colloc.store import all_packs, inbox
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.pack_directory import (
    is_local_alive,
    list_members,
    read_ended,
    read_slurm_job_id,
    read_spec,
    write_chain,
)
from slurm_colloc.submission.upkeep.sweep import OpenPack, look_at_open_packs, sweep

from ..packs import ENVIRONMENT, SCRIPT, build_pack, write_packs

PATIENCE_S = 60


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state", "here")
    state.prepare()
    return state


def list_tree(root: Path) -> dict[str, int]:
    """All paths below a directory, with their permissions."""
    return {str(path.relative_to(root)): path.stat().st_mode & 0o777 for path in root.rglob("*")}


EMPTY = {"packs": 0o700, "open": 0o700, "jobs": 0o700, "making": 0o700}


def look(state: State) -> list[OpenPack]:
    damaged: list[StateError] = []
    found = look_at_open_packs(state, damaged)
    assert damaged == []
    return found


def sweep_with(state: State, *jobs: SlurmJob) -> list[str]:
    index = {job.job_id: job for job in jobs}
    return sweep(state, SlurmAccess(), look(state), index, Settings())


def build_job(job_id: str, comment: str = "", job_state: str = "RUNNING") -> SlurmJob:
    return SlurmJob(job_id, SlurmJobState.parse(job_state), "0:01", "1:00", "node1", "", comment)


def test_a_pack_is_written_whole_private_and_with_its_members_waiting(state: State) -> None:
    pack = build_pack("s")
    umask = os.umask(0)
    try:
        with state.writing([pack]):
            pass
    finally:
        os.umask(umask)
    path = state.pack_path("s.0")
    assert list_tree(path) == {
        "pack.json": 0o600,
        "pack.log": 0o600,
        "control": 0o700,
        "inbox": 0o700,
        "inbox/0001.json": 0o600,
        "inbox/0002.json": 0o600,
        "members": 0o700,
        "members/0001": 0o700,
        "members/0001/env": 0o600,
        "members/0001/script": 0o700,
        "members/0001/spec.json": 0o600,
        "members/0002": 0o700,
        "members/0002/env": 0o600,
        "members/0002/script": 0o700,
        "members/0002/spec.json": 0o600,
    }
    assert inbox.list_waiting(str(path)) == list_members(path) == [1, 2]
    assert state.read_pack("s.0") == pack.record
    assert read_spec(path, 2) == pack.members[1].spec
    assert (path / "members/0001/script").read_bytes() == SCRIPT
    assert (path / "members/0002/env").read_bytes() == ENVIRONMENT
    assert state.list_open() == state.list_all() == ["s.0"]


def test_equal_scripts_and_environments_are_stored_once(state: State) -> None:
    members = write_packs(state, build_pack("s", members=5)) / "members"
    for name in ("script", "env"):
        inodes = {path.stat().st_ino for path in members.glob(f"*/{name}")}
        assert len(inodes) == 1
    # The end of one member takes its name away, not the neighbours' content.
    (members / "0001" / "env").unlink()
    assert (members / "0005" / "env").read_bytes() == ENVIRONMENT


def test_where_links_cannot_be_made_each_member_has_a_copy(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = write_packs(state, build_pack("s"))
    assert (path / "members/0002/script").read_bytes() == SCRIPT


@pytest.mark.parametrize("problem", [SlurmRefused("no"), KeyboardInterrupt(), ValueError("x")])
def test_a_submission_that_fails_leaves_nothing(state: State, problem: BaseException) -> None:
    entered = False

    def submit() -> None:
        nonlocal entered
        with state.writing([build_pack("s", index, indices=(0, 1)) for index in (0, 1)]):
            entered = True
            raise problem

    with pytest.raises(type(problem)):
        submit()
    assert entered
    assert list_tree(state.root) == EMPTY


def test_a_failure_at_any_single_write_leaves_nothing(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    fail_at = 0

    def count_and_fail(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise OSError(28, "No space left on device")
            return real(*arguments, **named)

        return call

    for name in ("mkdir", "rename", "replace"):
        monkeypatch.setattr(os, name, count_and_fail(getattr(os, name)))
    with state.writing([build_pack("s")]):
        steps = calls
    state.discard("s.0")
    state.forget_lock("s")
    assert steps > 10
    for fail_at in range(1, steps + 1):
        calls = 0
        with pytest.raises(StateError, match="No space left on device: the disk is full"), \
             state.writing([build_pack("s")]):  # fmt: skip
            pytest.fail("the failure was not seen")
        calls = -1000
        assert list_tree(state.root) == EMPTY, fail_at


def test_packs_of_a_job_that_slurm_may_have_stay(state: State) -> None:
    with pytest.raises(SlurmNoAnswer), state.writing([build_pack("s")]):
        raise SlurmNoAnswer("no answer")
    assert state.list_open() == ["s.0"]
    assert not state.is_being_submitted("s")


_KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from packs import build_pack
from slurm_colloc.store import all_packs

state = all_packs.State(Path(sys.argv[1]), "here")
state.prepare()
left = int(sys.argv[2])

def die_at(real):
    def call(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call

for name in ("mkdir", "rename", "replace", "open", "rmdir", "link", "unlink"):
    setattr(os, name, die_at(getattr(os, name)))
new = build_pack("s")
with state.writing([new]):
    pass
state.record_job([new.record], "4711")
print(left)
"""


def run_killed(state: State, at: int) -> subprocess.CompletedProcess[str]:
    program = _KILLED.format(tests=str(Path(__file__).parents[1]))
    return subprocess.run(
        [sys.executable, "-c", program, state.root, str(at)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_after_a_kill_at_any_moment_a_sweep_leaves_no_half_pack(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody else writes here: what is unfinished is so for good.
    for module in (all_packs, all_packs):
        monkeypatch.setattr(module, "UNFINISHED_S", -1.0)
    whole = run_killed(state, 10_000)
    assert whole.returncode == 0, whole.stderr
    steps = 10_000 - int(whole.stdout)
    state.discard("s.0")
    (state.jobs / "here.4711.json").unlink()
    assert list_tree(state.root) == EMPTY
    # The first two and the last steps, and some between: each costs a process.
    for at in sorted({1, 2, 3, steps // 3, steps // 2, *range(steps - 12, steps + 1)}):
        assert run_killed(state, at).returncode == -signal.SIGKILL
        for path in state.packs.iterdir():
            # What is in its place is whole.
            assert read_spec(path, 2).job.number == 2
            assert inbox.list_waiting(str(path)) == [1, 2]
        known = build_job("4711", PACK_TOKEN.format(submission="s"))
        swept = State(state.root, "here")
        if at % 2 or "slurm_job_id" in str(list_tree(state.packs)):
            # Slurm has the job: the pack stays, and is found by its id.
            sweep_with(swept, known)
            for pack_id in swept.list_all():
                assert read_slurm_job_id(swept.pack_path(pack_id)) == "4711"
                assert swept.find_packs("4711") == [pack_id]
                swept.discard(pack_id)
        else:
            sweep_with(swept)
            assert swept.list_all() == []
        assert swept.list_making() == swept.list_open() == []
        (state.jobs / "here.4711.json").unlink(missing_ok=True)
        assert set(list_tree(state.root)) <= set(EMPTY), at


def test_a_child_that_inherits_the_lock_keeps_the_sweep_away(state: State) -> None:
    program = (
        "import os, subprocess, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\n"
        "from packs import build_pack\n"
        "from slurm_colloc.store.all_packs import State\n"
        "state = State(Path(sys.argv[1]), 'here')\n"
        "with state.writing([build_pack('s')]) as lock:\n"
        "    child = subprocess.Popen(['sleep', '120'], pass_fds=[lock], stdout=-3, stderr=-3)\n"
        "    print(child.pid, flush=True)\n"
        "    os._exit(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, state.root], capture_output=True, text=True, check=True
    )
    child = int(ended.stdout)
    try:
        assert state.is_being_submitted("s")
        assert sweep_with(state) == []
        assert state.list_open() == ["s.0"]
        assert state.pack_path("s.0").is_dir()
    finally:
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while state.is_being_submitted("s"):
        assert time.monotonic() < deadline, "the lock outlived its holders"
    assert sweep_with(state) == ["a submission of job was interrupted before it reached Slurm"]
    assert list_tree(state.root) == EMPTY


def test_a_pack_that_is_submitted_while_slurm_is_asked_is_not_judged_by_the_answer(
    state: State,
) -> None:
    new = build_pack("s")
    with state.writing([new]):
        seen = look(state)
        answer: dict[str, SlurmJob] = {}
        state.record_job([new.record], "4711")
    assert sweep(state, SlurmAccess(), seen, answer, Settings()) == []
    write_packs(state, build_pack("t"), job_id="4712")
    assert sweep(state, SlurmAccess(), [], answer, Settings()) == []
    assert state.list_open() == ["s.0", "t.0"]
    assert read_ended(state.pack_path("s.0")) is None


@pytest.mark.parametrize(
    ("last", "expected"),
    [("COMPLETED", SlurmJobState.COMPLETED), ("CANCELLED", SlurmJobState.CANCELLED)],
)
def test_a_sweep_writes_down_slurms_last_word(
    state: State, last: str, expected: SlurmJobState
) -> None:
    write_packs(state, build_pack("s"), job_id="4711")
    assert sweep_with(state, build_job("4711")) == []
    assert state.list_open() == ["s.0"]
    told = sweep_with(state, build_job("4711", job_state=last))
    # Nobody expects that a cancelled pack is heard of again.
    assert len(told) == (0 if last == "CANCELLED" else 1)
    assert all("2 members never started (4711/1-2" in text for text in told)
    assert state.list_open() == []
    assert read_ended(state.pack_path("s.0")) is expected


def test_a_sweep_leaves_the_packs_of_another_cluster_alone(tmp_path: Path) -> None:
    here, there = (State(tmp_path / "state", name) for name in ("here", "there"))
    for state, submission in ((here, "s"), (there, "t")):
        # Both clusters have a job of this number.
        write_packs(state, build_pack(submission, cluster=state.cluster), job_id="4711")
    assert sweep_with(there, build_job("4711", job_state="CANCELLED")) == []
    assert there.list_open() == ["s.0"]
    assert read_ended(here.pack_path("s.0")) is None
    assert here.find_packs("4711") == ["s.0"]
    assert there.find_packs("4711") == ["t.0"]


def test_a_sweep_without_an_answer_of_slurm_changes_nothing(state: State) -> None:
    write_packs(state, build_pack("s"))
    before = list_tree(state.root)
    state.forget_lock("s")
    assert sweep(state, SlurmAccess(), look(state), None, Settings()) == []
    assert list_tree(state.root) == {k: v for k, v in before.items() if k != "making/s.lock"}


def test_a_damaged_pack_is_told_and_hinders_no_other(state: State) -> None:
    for submission in ("s", "t"):
        write_packs(state, build_pack(submission), job_id="4711")
    (state.pack_path("s.0") / "pack.json").write_text("{")
    damaged: list[StateError] = []
    found = look_at_open_packs(state, damaged)
    assert [str(problem).split(" (")[0] for problem in damaged] == [
        f"{state.pack_path('s.0')}/pack.json is damaged"
    ]
    cancelled = {"4711": build_job("4711", job_state="CANCELLED")}
    assert sweep(state, SlurmAccess(), found, cancelled, Settings()) == []
    assert state.list_open() == ["s.0"]


def test_elements_of_an_array_are_found_by_the_arrays_id(state: State) -> None:
    new = [build_pack("s", index, indices=(0, 1, 2)) for index in (0, 1, 2)]
    with state.writing(new):
        pass
    state.record_job([pack.record for pack in new], "4711")
    assert state.find_packs("4711") == ["s.0", "s.1", "s.2"]
    ids = [read_slurm_job_id(state.pack_path(pack_id)) for pack_id in state.list_open()]
    assert ids == ["4711_0", "4711_1", "4711_2"]
    assert not state.is_being_submitted("s")


def test_an_unknown_job_is_told(state: State) -> None:
    with pytest.raises(NotFound, match="csub has no job 4711"):
        state.find_packs("4711")


def test_a_state_directory_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="Not a directory"):
        State(tmp_path / "file" / "state").prepare()


@pytest.mark.root
def test_a_state_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    state = State(tmp_path / "state", "here")
    state.prepare()
    os.chown(state.root, 61234, 61234)
    with pytest.raises(StateError, match="belongs to uid 61234, you are root"):
        state.prepare()


def test_submission_ids_are_never_the_same_twice() -> None:
    assert len({make_submission_id() for _ in range(1000)}) == 1000


def test_a_pack_without_a_runner_is_not_alive(tmp_path: Path) -> None:
    assert not is_local_alive(tmp_path)
    (tmp_path / "alive").touch()
    assert not is_local_alive(tmp_path)


@pytest.mark.parametrize("count", [2, 40])
def test_of_many_packs_the_disk_is_waited_for_once(
    state: State, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    waited: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: waited.append("file"))
    monkeypatch.setattr(all_packs, "sync_file_system", lambda _: waited.append("all"))
    indices = tuple(range(count))
    packs = [build_pack("s", index, indices=indices) for index in indices]
    with state.writing(packs):
        state.record_job([pack.record for pack in packs], "4711")
    few = ["file"] * (2 * count + 1)
    # What stays one by one is the job's index.
    assert waited == (few if count == 2 else ["all", "file", "all"])
    assert len(state.find_packs("4711")) == count


def test_what_has_become_a_part_of_a_submission_stays(state: State) -> None:
    first, second = build_pack("s"), build_pack("t")
    for pack, job_id in ((first, "4711"), (second, "4712")):
        with state.writing([pack]):
            if pack is second:
                # Named before it is there, as a killed csub leaves it.
                state.add_parts("4711", [("t", (0,)), ("never", (0,))])
            state.record_job([pack.record], job_id)
    assert state.find_packs("4711") == ["s.0", "t.0"]
    # The runner of the first writes it again, where csub was killed.
    state.record_pack_job(first.record, "4711")
    assert state.find_packs("4711") == ["s.0", "t.0"]
    assert state.find_packs("4712") == ["t.0"]


class NotCancelling(SlurmAccess):
    def cancel(self, *job_ids: str) -> None:
        raise SlurmRefused(f"{job_ids} cannot be cancelled")

    def read_job(self, job_id: str) -> dict[str, str] | None:  # noqa: ARG002
        return None


def test_a_successor_that_cannot_be_cancelled_stops_no_call(state: State) -> None:
    path = write_packs(state, build_pack("s", chain=3), job_id="4711")
    write_chain(path, ChainRecord((Link("4711"), Link("4712"))))
    found = (
        build_job("4711", job_state="CANCELLED"),
        build_job("4712", job_state="PENDING"),
    )
    jobs = {job.job_id: job for job in found}
    sweep(state, NotCancelling(), look(state), jobs, Settings())
    assert state.list_open() == []
    assert read_ended(path) is SlurmJobState.CANCELLED
