"""Whatever a job's processes and files have become: nothing outside the group is signalled.

Each history is a group of root's with processes of one user's in it, processes of others near it,
a daemon that answers what it likes, and a run directory full of what a user can make. Then the job
is undone, as an epilog does it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.host.hooks.epilog import UNDOING_S, JobUndo
from slurm_colloc.host.hooks.hook_job import READY, Checkpoint
from slurm_colloc.host.hooks.hook_report import deadline
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.mps.daemon_limits import DaemonLimits, make_limited_groups
from slurm_colloc.host.system import signals
from slurm_colloc.host.system.control_groups import read_hierarchies, remove_groups
from slurm_colloc.host.system.node_processes import ProcessId, identify
from slurm_colloc.host.system.signals import SignalRecord

from .hook_node import NOBODY, OTHER

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

HISTORIES = int(os.environ.get("CSUB_HOSTILE_HISTORIES", "60"))
LABEL = f"hostile-{os.getpid()}"
# What the hook's own deadline allows, so that a budget that is exceeded is seen.
BUDGET_S = UNDOING_S + 5.0

# What a process of the group does with itself; `{pid}` is another one's.
BEHAVIOURS = {
    "waits": "time.sleep(600)",
    "ignores": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; time.sleep(600)",
    "stops": "os.kill(os.getpid(), 19)",
    "forks": "[os.fork() for _ in range(3)]; time.sleep(600)",
    "leaves its session": "os.fork() or os.setsid(); time.sleep(600)",
    "is renamed": "open('/proc/self/comm', 'wb').write(b') R 1 1\\n(\\x1b'); time.sleep(600)",
    "has ended": "os._exit(0)",
    "leaves a zombie": "os.fork() or os._exit(0); time.sleep(600)",
    "forks again and again": (
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 17)]\n"
        "while True:\n    time.sleep(0.002)\n    try: os.fork() and os._exit(0)\n"
        "    except OSError: pass"
    ),
}
# What lies in the user's part of the run directory.
FILES = (
    *("file", "link to root", "link to nowhere", "loop", "fifo", "socket", "deep", "newline"),
    *("unreadable", "hard link", "many", "device name"),
)


@dataclass(frozen=True)
class History:
    """One job's past.

    Attributes:
        inside: What processes in the group do.
        uids: Whose each of them is.
        files: What the user has made.
        leader: The daemon's record: `right`, `wrong start`, `other session`, `damaged`, `missing`.
        answer: What a false daemon says; None where none listens.
        phase_changes: Fields of the checkpoint that are not as the prolog wrote them.
    """

    inside: tuple[str, ...]
    files: tuple[str, ...]
    leader: str
    answer: bytes | None
    is_session_only: bool


histories = st.builds(
    History,
    inside=st.lists(st.sampled_from(sorted(BEHAVIOURS)), max_size=3).map(tuple),
    files=st.lists(st.sampled_from(FILES), max_size=5, unique=True).map(tuple),
    leader=st.sampled_from(("right", "wrong start", "other session", "damaged", "missing")),
    answer=st.none() | st.binary(max_size=200),
    is_session_only=st.booleans(),
)


def start(code: str, uid: int, paths: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """A process in a session of its own; in the groups before it is the user's."""

    def become() -> None:
        for path in paths:
            Path(path, "cgroup.procs").write_text("0")
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    program = f"import os, signal, sys, time\nos.write(1, b'u')\nos.close(1)\n{code}\n"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=become,
        start_new_session=True,
        cwd="/",
    )
    assert child.stdout is not None
    assert child.stdout.read(1) == b"u"
    child.stdout.close()
    return child


@pytest.fixture(scope="module")
def strangers() -> Iterator[list[ProcessId]]:
    """Processes of root, of another user and of the same user, none of them in the group."""
    children = [start("time.sleep(3600)", uid) for uid in (0, OTHER, NOBODY)]
    yield [identity for child in children if (identity := identify(child.pid)) is not None]
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="hh", dir="/var/tmp"))
    found.chmod(0o755)
    (found / "secret").write_text("of root")
    yield found
    shutil.rmtree(found, ignore_errors=True)


def plant(place: Path, kind: str, secret: Path) -> None:
    """Make one thing as the user could; root's file is never the user's."""
    path = place / f"planted {kind}"
    nowhere, itself = Path("/nowhere/at/all"), Path(path.name)
    links = {"link to root": secret, "link to nowhere": nowhere, "loop": itself}
    if kind in links:
        path.symlink_to(links[kind])
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "unreadable":
        path.mkdir(mode=0)
    elif kind == "deep":
        place.joinpath(*("d" * 40)).mkdir(parents=True)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.suppress(OSError):
            made.bind(str(path))
    else:
        names = {"newline": ["a\nb\x1b[2J\udcff"], "many": [f"m{n}" for n in range(500)]}
        for name in names.get(kind, [path.name]):
            (place / name).touch()
        if kind == "hard link":
            os.link(path, place / "twice")


def plant_all(place: Path, history: History, secret: Path) -> None:
    for name in ("p", "l"):
        (place / name).mkdir(parents=True)
        for kind in history.files:
            plant(place / name, kind, secret)
        for path in (place / name, *(place / name).rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def write_leader(
    run: RunDirectory, history: History, leader: subprocess.Popen[bytes] | None, stranger: ProcessId
) -> None:
    if history.leader == "missing":
        return
    first = None if leader is None else identify(leader.pid)
    record = run.open_leader_record("11", "0")
    if history.leader == "damaged":
        text = b"11 \xff\n/etc/passwd"
    elif history.leader == "other session":
        # As if pids had gone round: the number is another process's by now, of the same user.
        text = b"%d %d %d\n" % (stranger.pid, stranger.start_ticks - 5, NOBODY)
    elif first is None:
        text = b""
    else:
        start_ticks = first.start_ticks - (history.leader == "wrong start")
        text = b"%d %d %d\n" % (first.pid, start_ticks, NOBODY)
    os.write(record, text)
    os.close(record)


@contextlib.contextmanager
def listening(place: Path, answer: bytes | None) -> Iterator[None]:
    """A false daemon that answers at once and with anything; nobody is to ask it."""
    if answer is None:
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place / "p" / "control"))
        listener.listen()
        listener.setblocking(False)
        yield
        with pytest.raises(BlockingIOError):
            listener.accept()


@given(history=histories)
@settings(
    max_examples=HISTORIES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_nothing_outside_the_group_is_signalled_and_nothing_of_it_is_left(
    history: History, strangers: list[ProcessId], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SignalRecord()
    record.is_hook = True
    monkeypatch.setattr(signals, "RECORD", record)
    secret = home / "secret"
    hierarchies = () if history.is_session_only else read_hierarchies()
    groups = make_limited_groups(hierarchies, LABEL, DaemonLimits((), 1024, 64))
    run = RunDirectory(str(home / "run"), makes=True)
    children: list[subprocess.Popen[bytes]] = []
    place = home / "run" / "11" / "0"
    try:
        children += [start(BEHAVIOURS[name], NOBODY, groups.paths) for name in history.inside]
        run.write(
            Checkpoint("11", NOBODY, NOBODY, phase=READY, daemons=("0",), cgroups=groups.paths)
        )
        run.make_directory("11", 8)
        plant_all(place, history, secret)
        leader = children[0] if children else None
        write_leader(run, history, leader, strangers[2])
        checkpoint = run.read("11")
        assert checkpoint is not None
        with listening(place, history.answer), deadline(BUDGET_S):
            undone = JobUndo(run, checkpoint).undo()
        assert undone.unsafe == []
        # No word of a user's, and no number in one, has moved root to anything.
        assert [identify(one.pid) for one in strangers] == strangers
        assert secret.read_text() == "of root"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o644
        if groups.paths:
            for path in groups.paths:
                assert not Path(path).exists()
            assert undone.is_complete, (undone, history)
            assert run.read("11") is None
            assert not place.parent.exists()
        assert {entry.uid for entry in record.sent} <= {NOBODY}
        assert not {entry.pid for entry in record.sent} & {one.pid for one in strangers}
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.wait()
        if history.is_session_only:
            end_users_processes(strangers)
        remove_groups(groups.paths)
        for _ in range(20):
            run.remove_directory("11")
            if not run.sweep_aside(time.monotonic() + 2.0):
                break
        run.remove("11")
        run.close()


def end_users_processes(strangers: list[ProcessId]) -> None:
    """Without groups some have left their session: only a test's own wait programs, by parent."""
    keep = {one.pid for one in strangers}
    for _ in range(20):
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in keep:
                continue
            with contextlib.suppress(OSError):
                if (
                    entry.stat().st_uid == NOBODY
                    and b"os.write(1, b'u')" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
