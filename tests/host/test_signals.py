"""The one module that signals: who may be signalled, by the kernel's word alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.host.system import node_processes, signals
from slurm_colloc.host.system.node_processes import (
    ControlGroup,
    Process,
    ProcessId,
    ProcessSession,
    identify,
    is_alive,
)
from slurm_colloc.host.system.signals import (
    GONE,
    SENT,
    SignalRecord,
    end_child,
    send_signal,
)

from .hook_node import NOBODY, OTHER, PATIENCE_S
from .waiting import Start

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

KILL = signal.SIGKILL


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> SignalRecord:
    """An empty record for each test."""
    found = SignalRecord()
    monkeypatch.setattr(signals, "RECORD", found)
    return found


@pytest.fixture(params=["pidfd", "without"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This kernel, and one that has no pidfd."""
    if request.param == "without":

        def refuse(_pid: int) -> int:
            raise OSError(errno.ENOSYS, "pidfd_open")

        monkeypatch.setattr(node_processes, "_pidfd_open", refuse)


class Anything:
    """A group that everything is in: what remains is the rest of the checks."""

    def list_members(self) -> list[ProcessId]:
        return []

    def contains(self, _process: Process) -> bool:
        return True


def identify_child(child: subprocess.Popen[bytes]) -> ProcessId:
    identity = identify(child.pid)
    assert identity is not None
    return identity


@pytest.mark.usefixtures("kernel")
def test_a_member_of_the_owners_is_signalled_and_that_is_kept(
    start: Start, record: SignalRecord
) -> None:
    child = start(uid=NOBODY)
    group = ProcessSession(identify_child(child))
    told = send_signal(child.pid, KILL, owner=NOBODY, group=group, reason="its job is over")
    assert told == SENT
    assert child.wait(PATIENCE_S) == -KILL
    [sent] = record.sent
    assert (sent.pid, sent.uid, sent.number, sent.reason) == (
        child.pid,
        NOBODY,
        KILL,
        "its job is over",
    )
    assert sent.name.startswith("python")
    assert send_signal(child.pid, KILL, owner=NOBODY, group=group, reason="again") == GONE


@pytest.mark.usefixtures("kernel")
def test_another_users_process_is_never_signalled(start: Start, record: SignalRecord) -> None:
    for uid in (OTHER, 0):
        child = start(uid=uid)
        told = send_signal(child.pid, KILL, owner=NOBODY, group=Anything(), reason="a lie")
        assert f"is user {uid}'s" in told
        assert is_alive(identify_child(child))
    assert (record.sent, len(record.refused)) == ([], 2)


def test_a_process_whose_effective_user_is_another_is_not_signalled(start: Start) -> None:
    child = start(f"os.setresuid({NOBODY}, 0, 0)")
    told = send_signal(child.pid, KILL, owner=NOBODY, group=Anything(), reason="a lie")
    assert f"is user {NOBODY}'s (effective 0)" in told
    assert child.poll() is None


def test_a_process_outside_the_group_is_never_signalled(start: Start) -> None:
    inside, outside = start(uid=NOBODY), start(uid=NOBODY)
    told = send_signal(
        outside.pid,
        KILL,
        owner=NOBODY,
        group=ProcessSession(identify_child(inside)),
        reason="a lie",
    )
    assert "is not in the group" in told
    assert outside.poll() is None


@pytest.mark.parametrize("named", ["1", "0", "-1", "own"])
def test_pid_1_this_process_and_process_groups_are_refused(named: str) -> None:
    pid = os.getpid() if named == "own" else int(named)
    for owner in (NOBODY, None):
        told = send_signal(pid, 0, owner=owner, group=Anything(), reason="a lie")
        assert "never signalled" in told


def test_uid_0_is_refused_whoever_asks(start: Start) -> None:
    child = start()
    for owner in (0, -1):
        told = send_signal(child.pid, KILL, owner=owner, group=Anything(), reason="a lie")
        assert "owns nothing" in told
    assert child.poll() is None


def test_a_hook_has_no_processes_of_its_own(start: Start, record: SignalRecord) -> None:
    child = start()
    record.is_hook = True
    told = send_signal(child.pid, KILL, owner=None, group=Anything(), reason="a lie")
    assert "a hook has no processes of its own" in told
    assert child.poll() is None


def test_a_process_that_has_the_pid_of_an_earlier_one_is_in_no_session_of_its(
    start: Start,
) -> None:
    child = start(uid=NOBODY)
    right = identify_child(child)
    for earlier in (right.start_ticks - 1, right.start_ticks + 1):
        group = ProcessSession(ProcessId(right.pid, earlier))
        assert group.list_members() == []
        told = send_signal(child.pid, KILL, owner=NOBODY, group=group, reason="a lie")
        assert "is not in the group" in told
    assert child.poll() is None


def test_a_process_that_changes_its_user_between_the_looks_is_not_signalled(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(uid=NOBODY)
    looks = iter([(NOBODY,) * 4, (OTHER,) * 4])
    monkeypatch.setattr(signals, "read_uids", lambda _pid: next(looks))
    told = send_signal(child.pid, KILL, owner=NOBODY, group=Anything(), reason="a lie")
    assert f"is user {OTHER}'s" in told
    assert child.poll() is None


def test_what_is_kept_for_the_audit_line_is_bounded(record: SignalRecord) -> None:
    for number in range(1000):
        record.add(signals.SentSignal(number, NOBODY, "\x1b[2J\n", 9, "test"))
        record.refuse(f"process {number}")
    told = record.describe()
    assert told["signals_in_all"] == 1000
    assert len(str(told)) < 10000


def test_a_child_is_ended_whose_ever_it_is_and_no_other_process(start: Start) -> None:
    own = start(uid=OTHER)
    end_child(own.pid)
    assert own.wait(PATIENCE_S) == -KILL
    grandchild = start(
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(600)\n"
        "import sys; sys.stderr.write('')\n"
        "open('/dev/shm/csub-test-grandchild', 'w').write(str(pid))"
    )
    note = Path("/dev/shm/csub-test-grandchild")
    pid = int(note.read_text())
    note.unlink()
    try:
        for stranger in (pid, 1, os.getpid(), os.getppid()):
            end_child(stranger)
        assert identify(pid) is not None
    finally:
        os.kill(pid, KILL)
        grandchild.kill()


def test_a_control_group_holds_what_root_has_put_into_it(start: Start) -> None:
    root = Path("/sys/fs/cgroup")
    mount = next((m for m in (root / "pids", root) if (m / "cgroup.procs").exists()), None)
    if mount is None:
        pytest.skip("no cgroup tree here")
    path = mount / "slurm_colloc" / f"test-{os.getpid()}"
    path.mkdir(parents=True)
    inside, outside = start(uid=NOBODY), start(uid=NOBODY)
    try:
        (path / "cgroup.procs").write_text(str(inside.pid))
        group = ControlGroup([str(path)])
        assert group.list_members() == [identify_child(inside)]
        told = send_signal(outside.pid, KILL, owner=NOBODY, group=group, reason="a lie")
        assert "is not in the group" in told
        assert send_signal(inside.pid, KILL, owner=NOBODY, group=group, reason="test") == SENT
        assert inside.wait(PATIENCE_S) == -KILL
        assert outside.poll() is None
    finally:
        inside.kill()
        inside.wait()
        path.rmdir()


def test_only_one_module_of_the_node_side_signals() -> None:
    """By name and by method: what ruff cannot see is a method of somebody else's object."""
    program = (
        "import ast, pathlib, sys\n"
        "words = {'kill', 'killpg', 'pidfd_send_signal', 'send_signal', 'terminate'}\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.py')):\n"
        "    if path.name == 'signals.py':\n"
        "        continue\n"
        "    for node in ast.walk(ast.parse(path.read_text())):\n"
        "        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):\n"
        "            if node.func.attr in words:\n"
        "                print(path.name, node.lineno, node.func.attr)\n"
    )
    host = Path(signals.__file__).parent
    ended = subprocess.run(
        [sys.executable, "-c", program, str(host)], capture_output=True, text=True, check=True
    )
    # What is not `self` is looked at one by one: the runner asks its keeper, which is a method.
    assert ended.stdout == ""
