"""Ending a group: whatever its members do, and nothing beyond it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.mps.daemon_limits import DaemonLimits, make_limited_groups
from slurm_colloc.host.system import signals
from slurm_colloc.host.system.control_groups import (
    NAME,
    Hierarchy,
    make_group,
    read_hierarchies,
    remove_groups,
)
from slurm_colloc.host.system.node_processes import (
    ControlGroup,
    ProcessSession,
    identify,
    list_processes,
)
from slurm_colloc.host.system.signals import LOOK_S, SignalRecord, end_members, kill_group

from ..sessions import list_session
from .hook_node import NOBODY, OTHER, PATIENCE_S
from .waiting import Start

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

LABEL = f"test-{os.getpid()}"
# What a program does that does not want to end; each goes on for ever.
FORK_BOMB = """
for number in range(1, 65):
    signal.signal(number, signal.SIG_IGN) if number not in (9, 19, 32, 33) else None
import sys
sys.stdout.flush()
print('up', flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
KINDS = ("all", "v1 with a freezer", "v1 without", "v2", "session")


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> SignalRecord:
    found = SignalRecord()
    monkeypatch.setattr(signals, "RECORD", found)
    return found


def choose_hierarchies(kind: str) -> tuple[Hierarchy, ...]:
    """The trees that a node of this kind would have."""
    found = read_hierarchies()
    if kind == "v2":
        return tuple(one for one in found if one.version == 2)
    if kind.startswith("v1"):
        found = tuple(one for one in found if one.version == 1)
    if kind == "v1 without":
        found = tuple(one for one in found if "freezer" not in one.controllers)
    return found


@contextlib.contextmanager
def group_with(kind: str, *pids: int) -> Iterator[ControlGroup]:
    """A group of a kind that these processes are in, the first of which leads a session."""
    if kind == "session":
        leader = identify(pids[0])
        assert leader is not None
        yield ControlGroup((), [ProcessSession(leader)])
        return
    hierarchies = choose_hierarchies(kind)
    if not hierarchies:
        pytest.skip(f"no cgroup tree of this kind here: {kind}")
    limits = DaemonLimits((), 512, 64)
    made = make_limited_groups(hierarchies, LABEL, limits)
    try:
        for path in made.paths:
            for pid in pids:
                Path(path, "cgroup.procs").write_text(str(pid))
        yield ControlGroup(made.paths)
    finally:
        assert remove_groups(made.paths) == ()


def end(group: ControlGroup, owner: int = NOBODY, budget_s: float = 10.0) -> str:
    """End a group; what is left of it, in words."""
    found = kill_group(group, owner, reason="test", deadline=time.monotonic() + budget_s)
    words = [f"unkillable {p.id.pid}" for p in found.unkillable]
    return " ".join(words + [f"left {p.id.pid}" for p in found.left])


@pytest.mark.parametrize("kind", KINDS)
def test_all_members_end_and_nothing_else(start: Start, kind: str, record: SignalRecord) -> None:
    inside, outside = start(uid=NOBODY), start(uid=NOBODY)
    with group_with(kind, inside.pid) as group:
        assert end(group) == ""
        assert inside.wait(PATIENCE_S) == -signal.SIGKILL
        assert end(group) == ""
    assert outside.poll() is None
    assert {entry.pid for entry in record.sent} == {inside.pid}
    assert {entry.uid for entry in record.sent} == {NOBODY}


@pytest.mark.parametrize("kind", ["all", "v1 with a freezer", "v1 without"])
def test_a_fork_bomb_that_leaves_its_session_and_ignores_signals(kind: str) -> None:
    hierarchies = choose_hierarchies(kind)
    if not any("pids" in one.controllers or one.version == 2 for one in hierarchies):
        pytest.skip(f"no cgroup tree of this kind here: {kind}")
    made = make_limited_groups(hierarchies, LABEL, DaemonLimits((), 2048, 64))
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"import os, signal\n{FORK_BOMB}"],
            stdout=subprocess.PIPE,
            preexec_fn=lambda: become(made.paths, NOBODY),
            start_new_session=True,
            cwd="/",
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        group = ControlGroup(made.paths)
        deadline = time.monotonic() + PATIENCE_S
        while len(group.list_members()) < 20:
            assert time.monotonic() < deadline
        assert end(group) == ""
        assert group.list_members() == []
        child.wait(PATIENCE_S)
        child.stdout.close()
    finally:
        assert remove_groups(made.paths) == ()


def become(paths: tuple[str, ...], uid: int) -> None:
    for path in paths:
        Path(path, "cgroup.procs").write_text("0")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_looks_like_anything_changes_nothing(start: Start, kind: str) -> None:
    child = start("open('/proc/self/comm', 'w').write(') S 1 1 1 (x\\n\\x1b[2J')", uid=NOBODY)
    with group_with(kind, child.pid) as group:
        assert end(group) == ""
        assert child.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_process_is_ended(start: Start, kind: str) -> None:
    child = start(uid=NOBODY)
    os.kill(child.pid, signal.SIGSTOP)
    with group_with(kind, child.pid) as group:
        assert end(group) == ""
        assert child.wait(PATIENCE_S) == -signal.SIGKILL


@contextlib.contextmanager
def traced(pid: int, options: int = 0x40) -> Iterator[int]:
    """A process that is traced from outside; what ptrace answered, 0 for success.

    0x40 is PTRACE_O_TRACEEXIT: it will stop once more, in the middle of its own end.
    """
    seize = 0x4206
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    read_end, write_end = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        libc.ptrace(seize, pid, None, options)
        os.write(write_end, bytes([ctypes.get_errno()]))
        time.sleep(600)
        os._exit(0)
    try:
        yield os.read(read_end, 1)[0]
    finally:
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("kind", ["all", "v1 without", "session"])
def test_a_process_that_is_traced_ends_with_its_tracer_at_the_latest(
    start: Start, kind: str
) -> None:
    child = start(uid=NOBODY)
    with group_with(kind, child.pid) as group, traced(child.pid, 0) as problem:
        assert problem == 0
        assert end(group) == ""
    other = start(uid=NOBODY)
    with group_with(kind, other.pid) as group:
        with traced(other.pid):
            # It stays in its own end, with all that it has open; the tracer is in no group.
            assert end(group) == f"unkillable {other.pid}"
        assert end(group) == ""
    assert other.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["v1 without", "session"])
def test_a_member_that_is_another_users_is_left_alone_and_told(
    start: Start, kind: str, record: SignalRecord
) -> None:
    child = start(uid=OTHER)
    with group_with(kind, child.pid) as group:
        assert end(group, budget_s=0.2) == f"left {child.pid}"
        assert child.poll() is None
        assert any(f"is user {OTHER}'s" in text for text in record.refused)
        child.kill()
        child.wait()


def test_unkillable_is_only_what_was_sent_kill_and_seen_twice(start: Start) -> None:
    freezer = Path("/sys/fs/cgroup/freezer")
    if not (freezer / "tasks").exists():
        pytest.skip("needs the freezer of cgroup v1, where a process sits in state D")
    child = start(uid=NOBODY)
    place = freezer / f"colloc-test-{child.pid}"
    place.mkdir()
    try:
        with group_with("v1 without", child.pid) as group:
            (place / "tasks").write_text(str(child.pid))
            (place / "freezer.state").write_text("FROZEN")
            # Too little time for two looks: it is still there, and that is all that is said.
            assert end(group, budget_s=LOOK_S) == f"left {child.pid}"
            started = time.monotonic()
            assert end(group, budget_s=10.0) == f"unkillable {child.pid}"
            assert time.monotonic() - started >= 2 * LOOK_S
            (place / "freezer.state").write_text("THAWED")
            child.wait(PATIENCE_S)
            assert end(group) == ""
    finally:
        (place / "freezer.state").write_text("THAWED")
        child.wait(PATIENCE_S)
        place.rmdir()


def test_a_session_knows_what_left_and_what_came_later(start: Start) -> None:
    child = start(
        "if os.fork() == 0:\n    time.sleep(600)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n",
        uid=NOBODY,
    )
    before = {p.id.pid for p in list_processes() if p.parent_pid == child.pid}
    leader = identify(child.pid)
    assert leader is not None
    child.kill()
    child.wait()
    try:
        # The leader has gone; its number is nobody else's while the session has a member.
        members = ProcessSession(leader).list_members()
        assert len(members) == 1
        assert members[0].pid in before
        assert end(ControlGroup((), [ProcessSession(leader)])) == ""
        assert ProcessSession(leader).list_members() == []
    finally:
        for pid in before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_polite_signals_first_where_that_is_wanted(start: Start) -> None:
    child = start("for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)")
    leader = identify(child.pid)
    assert leader is not None
    steps = ((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1), (signal.SIGKILL, PATIENCE_S))
    left = end_members(ProcessSession(leader), steps, owner=None, reason="test")
    assert left == ()
    assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_stopped_process_gets_the_polite_signal(start: Start) -> None:
    child = start()
    leader = identify(child.pid)
    assert leader is not None
    os.kill(child.pid, signal.SIGSTOP)
    end_members(ProcessSession(leader), ((signal.SIGTERM, PATIENCE_S),), owner=None, reason="test")
    assert child.wait(PATIENCE_S) == -signal.SIGTERM


def test_what_a_process_forks_meanwhile_is_ended_too(start: Start) -> None:
    child = start(
        "def fork(*_):\n"
        "    if os.fork(): os._exit(0)\n"
        "signal.signal(signal.SIGTERM, fork)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    )
    leader = identify(child.pid)
    assert leader is not None
    steps = ((signal.SIGTERM, 0.2), (signal.SIGKILL, PATIENCE_S))
    assert end_members(ProcessSession(leader), steps, owner=None, reason="test") == ()
    assert list_session(child.pid) == ()


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["all", "v2"])
def test_devices_of_other_jobs_cannot_be_opened(tmp_path: Path, kind: str) -> None:
    hierarchies = choose_hierarchies(kind)
    if not hierarchies:
        pytest.skip(f"no cgroup tree of this kind here: {kind}")
    devices = {}
    for minor in (0, 1, 7, 199, 254, 255):
        path = tmp_path / f"nvidia{minor}"
        os.mknod(path, 0o20666, os.makedev(195, minor))
        devices[minor] = str(path)
    made = make_limited_groups(hierarchies, LABEL, DaemonLimits((1, 7), 512, 64, 1))
    try:
        if "devices" in made.missing:
            pytest.skip(f"devices cannot be limited here: {made.refused}")
        look = (
            "import os, sys\n"
            "for path in sys.argv[1:]:\n"
            "    try: os.open(path, os.O_RDWR)\n"
            "    except OSError as error: print(path, error.errno)\n"
            "open('/dev/null', 'w'); open('/dev/zero')\n"
        )
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", look, *devices.values()],
            preexec_fn=lambda: become(made.paths, 0),
            capture_output=True,
            text=True,
            check=True,
        )
        # EPERM is the group's word; another error is the driver's, or of its absence.
        told = dict(line.split() for line in ended.stdout.splitlines())
        denied = {minor for minor, path in devices.items() if told.get(path) == str(errno.EPERM)}
        assert denied == {0, 199}
    finally:
        assert remove_groups(made.paths) == ()


def test_host_memory_and_processes_are_limited() -> None:
    made = make_limited_groups(read_hierarchies(), LABEL, DaemonLimits((0,), 64, 20))
    try:
        if made.missing:
            pytest.skip(f"not to be had here: {made.missing}")
        eat = "import sys; data = bytearray(300 << 20); data[::4096] = b'x' * len(data[::4096])"
        fork = (
            "import os\nn = 0\n"
            "try:\n    while n < 100:\n        n += 1\n"
            "        if os.fork() == 0: os.read(0, 1); os._exit(0)\n"
            "except OSError: print(n)\n"
        )
        eater = subprocess.run(
            [sys.executable, "-c", eat],
            preexec_fn=lambda: become(made.paths, NOBODY),
            cwd="/",
            check=False,
        )
        assert eater.returncode == -signal.SIGKILL
        forker = subprocess.run(
            [sys.executable, "-I", "-S", "-c", fork],
            preexec_fn=lambda: become(made.paths, NOBODY),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            check=True,
        )
        assert 0 < int(forker.stdout or 100) <= 20
    finally:
        assert remove_groups(made.paths) == ()


def test_what_a_node_cannot_limit_is_told() -> None:
    made = make_limited_groups((), LABEL, DaemonLimits((0,), 64, 20))
    assert made.missing == ("devices", "host memory", "processes")
    nowhere = Hierarchy("/proc/nowhere", 1, ("memory",))
    made = make_limited_groups((nowhere,), LABEL, DaemonLimits((0,), 64, 20))
    assert made.paths == ()
    assert "/proc/nowhere" in made.refused[0]
    with pytest.raises(OSError, match="/proc/nowhere"):
        make_group(nowhere, LABEL)


def test_forks_are_forbidden_before_the_first_signal(start: Start) -> None:
    if not choose_hierarchies("v1 without"):
        pytest.skip("no cgroup of version 1 here")
    child = start(uid=NOBODY)
    with group_with("v1 without", child.pid) as group:
        assert isinstance(group, ControlGroup)
        group.forbid_forks()
        limits = [
            Path(hierarchy.mount, NAME, LABEL, "pids.max") for hierarchy in read_hierarchies()
        ]
        assert {path.read_text().strip() for path in limits if path.exists()} == {"0"}
        assert end(group) == ""


def test_groups_are_made_while_other_hooks_take_the_common_parent_away(tmp_path: Path) -> None:
    hierarchy = Hierarchy(str(tmp_path), 1)
    others = (
        "import os, sys\n"
        "while True:\n"
        "    try: os.mkdir(sys.argv[1])\n"
        "    except OSError: pass\n"
        "    try: os.rmdir(sys.argv[1])\n"
        "    except OSError: pass\n"
    )
    child = subprocess.Popen([sys.executable, "-c", others, str(tmp_path / NAME)])
    try:
        for number in range(2000):
            assert remove_groups([make_group(hierarchy, f"{LABEL}-{number}")]) == ()
    finally:
        child.kill()
        child.wait()
