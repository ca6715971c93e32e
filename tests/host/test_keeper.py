"""The keeper as the real process that it is, from the runner's side."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.keeper.keeper_messages import (
    ClientJoined,
    ClientLeft,
    ControlProved,
    DaemonDied,
    DaemonTrouble,
    Event,
    Failed,
    Fault,
    KeeperDied,
    Ready,
    ServerClients,
    ServerStatus,
    Status,
    Stopped,
    Sweeping,
    decode,
    encode,
)
from slurm_colloc.host.mps.mps_control import ListedClient
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport
from slurm_colloc.host.mps.start_daemon import start_daemon
from slurm_colloc.host.system.directories import DAEMON_LOG
from slurm_colloc.host.system.node_processes import identify, list_processes

from .conftest import GPU, PATIENCE_S, list_programs_below, write_program
from .test_mps_log import FAULT

NOBODY = 65534
ROOT = Path(__file__).parents[2]
Options = Callable[..., MpsOptions]
E = TypeVar("E")

# A runner that does nothing but have a keeper.
RUNNER = """
import sys, time, select
sys.path.append({root!r})
from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.keeper.keeper_messages import decode
keeper = KeeperClient.start(decode(sys.stdin.readline()))
while keeper.ready is None and keeper.is_alive:
    select.select([keeper], [], [])
    for event in keeper.poll(): print(event, file=sys.stderr)
print(keeper.pid, keeper.ready.daemon_pid, keeper.directory, flush=True)
time.sleep(600)
"""


class Listener:
    """A keeper, and everything it has said."""

    def __init__(self, keeper: KeeperClient) -> None:
        self.keeper = keeper
        self.heard: list[Any] = []

    def hear(self, kind: type[E], which: Callable[[E], bool] = lambda _: True) -> E:
        """Wait for an event; it and those before it are not heard again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for index, event in enumerate(self.heard):
                if isinstance(event, kind) and which(event):
                    del self.heard[: index + 1]
                    return event
            assert self.keeper.is_alive, self.heard
            assert time.monotonic() < deadline, self.heard
            select.select([self.keeper], [], [], 1.0)
            self.heard += self.keeper.poll()

    def stop(self) -> StopReport:
        self.keeper.stop()
        return self.hear(Stopped).report

    def read_log(self) -> str:
        assert self.keeper.directory is not None
        return Path(self.keeper.directory, DAEMON_LOG).read_text()

    def write_log(self, text: str) -> None:
        """What a server on a GPU would write."""
        assert self.keeper.directory is not None
        with Path(self.keeper.directory, DAEMON_LOG).open("a") as file:
            file.write(text)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[MpsOptions], Listener]]:
    """Starts keepers; what they print is no surprise, and none outlives its test."""
    listeners = []
    with (tmp_path / "keeper.err").open("wb") as log:

        def start_one(options: MpsOptions) -> Listener:
            listeners.append(Listener(KeeperClient.start(options, log=log.fileno())))
            return listeners[-1]

        yield start_one
    for listener in listeners:
        listener.keeper.kill()
        listener.keeper.wait(time.monotonic() + PATIENCE_S)
    said = (tmp_path / "keeper.err").read_text()
    assert not said, said


Start = Callable[[MpsOptions], Listener]


@pytest.fixture
def ready(start: Start, options: Options) -> Listener:
    """A keeper whose daemon answers."""
    listener = start(options())
    listener.hear(Ready)
    return listener


def wait_until_nothing_is_left(base: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while list_programs_below(base) or any(base.iterdir()):
        assert time.monotonic() < deadline, (list_programs_below(base), list(base.iterdir()))
        time.sleep(0.01)


def start_client() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "600"], stdin=subprocess.DEVNULL)


# -- the usual way --------------------------------------------------------------------------------


def test_a_daemon_is_started_asked_and_ended(start: Start, options: Options, base: Path) -> None:
    listener = start(options(label="4711"))
    proved = listener.hear(ControlProved)
    ready = listener.hear(Ready)
    assert ready.directory == proved.directory == listener.keeper.directory
    assert ready.pipe_directory == f"{ready.directory}/p"
    assert ready.daemon_pid == proved.daemon_pid
    assert (ready.server_pid, ready.active_ms) == (None, None)
    assert ready.control_ms > 0
    assert listener.keeper.ready == ready
    server_pid = listener.hear(ServerStatus).server_pid
    listener.keeper.ask_status()
    status = listener.hear(Status)
    assert status.servers == (ServerClients(server_pid, os.geteuid(), "INITIALIZING", ()),)
    assert status.problem == ""
    report = listener.stop()
    assert report.is_clean
    assert not listener.keeper.is_alive
    assert listener.keeper.poll() == []
    # Whatever is asked of it now is not heard.
    listener.keeper.ask_status()
    assert_nothing(base)


def assert_nothing(base: Path) -> None:
    assert list_programs_below(base) == []
    assert list(base.iterdir()) == []


def test_the_keeper_is_the_parent_and_leads_another_session(ready: Listener) -> None:
    assert ready.keeper.ready is not None
    table = {process.id.pid: process for process in list_processes()}
    daemon = table[ready.keeper.ready.daemon_pid]
    assert daemon.parent_pid == ready.keeper.pid
    assert daemon.session_id == daemon.id.pid
    assert table[ready.keeper.pid].session_id == ready.keeper.pid
    assert ready.stop().is_clean


def read_links(pid: int) -> set[str]:
    """What the descriptors of a process are; a process that is starting closes some meanwhile."""
    links = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.add(str(entry.readlink()))
    return links


def test_daemon_and_server_have_no_end_of_the_keepers_channel(ready: Listener) -> None:
    assert ready.keeper.ready is not None
    server_pid = ready.hear(ServerStatus).server_pid
    deadline = time.monotonic() + PATIENCE_S
    while not Path(ready.keeper.ready.directory, "l", f"stub.{server_pid}").exists():
        # Between fork and exec it has what its daemon has.
        assert time.monotonic() < deadline, ready.read_log()
        time.sleep(0.01)
    channel = {link for link in read_links(ready.keeper.pid) if link.startswith("pipe:")}
    assert len(channel) == 2
    for pid in (ready.keeper.ready.daemon_pid, server_pid):
        assert not read_links(pid) & channel
    assert ready.stop().is_clean


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_whole_step_ends_neither_keeper_nor_daemon(
    ready: Listener, number: signal.Signals
) -> None:
    os.kill(ready.keeper.pid, number)
    ready.keeper.ask_status()
    assert ready.hear(Status).problem == ""
    assert ready.stop().is_clean


def test_daemon_and_server_do_not_inherit_that_signals_are_ignored(ready: Listener) -> None:
    assert ready.keeper.ready is not None
    server_pid = ready.hear(ServerStatus).server_pid
    for pid in (ready.keeper.ready.daemon_pid, server_pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        masks = {line[:6]: int(line[7:], 16) for line in lines if line[:6] in ("SigIgn", "SigBlk")}
        assert masks["SigBlk"] == 0
        for number in (signal.SIGTERM, signal.SIGINT):
            assert not masks["SigIgn"] & (1 << (number - 1))
    assert ready.stop().is_clean


def test_nothing_that_the_runner_does_waits_for_a_stopped_keeper(ready: Listener) -> None:
    os.kill(ready.keeper.pid, signal.SIGSTOP)
    for _ in range(3000):
        # Far more than a pipe holds.
        ready.keeper.ask_status()
    assert not any(isinstance(event, Status) for event in ready.keeper.poll())
    os.kill(ready.keeper.pid, signal.SIGCONT)
    ready.hear(Status)
    ready.keeper.kill()
    ready.hear(KeeperDied)
    assert ready.keeper.recover().is_clean


def test_an_old_node_has_a_keeper_too(options: Options, older_python: Path, base: Path) -> None:
    listener = Listener(KeeperClient.start(options(), python=str(older_python)))
    listener.hear(Ready)
    listener.keeper.ask_status()
    assert listener.hear(Status).problem == ""
    assert listener.stop().is_clean
    assert_nothing(base)


def test_an_old_node_can_load_every_module(older_python: Path) -> None:
    folder = ROOT / "slurm_colloc" / "host"
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    code = "import sys; sys.path.append(sys.argv.pop())\n"
    code += "".join(f"import slurm_colloc.host.{name}\n" for name in names)
    done = subprocess.run(
        [older_python, "-I", "-S", "-c", code, ROOT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_keeper_writes_no_bytecode_into_the_installation(tmp_path: Path, base: Path) -> None:
    """Under a limit or on a full disk half a file would stay, and no keeper would start again."""
    shutil.copytree(
        ROOT / "slurm_colloc",
        tmp_path / "slurm_colloc",
        ignore=shutil.ignore_patterns("__pycache__", "sandbox"),
    )
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "from slurm_colloc.host.keeper.keeper_client import KeeperClient\n"
        "from slurm_colloc.host.keeper.keeper_messages import decode\n"
        "keeper = KeeperClient.start(decode(sys.stdin.readline()), log=2)\n"
        "print(keeper.wait(float('inf')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-IBS", "-c", code, tmp_path],
        input=encode(MpsOptions(gpus=(GPU,), bases=(str(base / "missing"),))),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    assert b"Failed(" in done.stdout
    assert list(tmp_path.rglob("*.pyc")) == []


# -- what cannot be started -----------------------------------------------------------------------


def test_what_cannot_be_started_is_told_in_words(
    start: Start, options: Options, programs: Path, base: Path
) -> None:
    control = programs / "nvidia-cuda-mps-control"
    control.unlink()
    write_program(control, "#!/bin/sh\necho no such device; exit 3\n")
    failed = start(options()).hear(Failed)
    assert "ended at once with exit status 3: no such device" in failed.reason
    assert_nothing(base)


def test_a_server_that_does_not_become_active_is_told_and_cleared_away(
    start: Start, options: Options, base: Path, tmp_path: Path
) -> None:
    listener = start(options(needs_active=True, active_cap_s=0.3, logs_to=str(tmp_path)))
    listener.hear(ControlProved)
    assert "no MPS server became ACTIVE within 0.3 s" in listener.hear(Failed).reason
    assert (tmp_path / "mps.1.daemon.log").exists()
    assert_nothing(base)


def test_a_runner_that_loses_patience_gets_everything_undone(
    start: Start, options: Options, base: Path
) -> None:
    listener = start(options(needs_active=True, active_cap_s=PATIENCE_S))
    listener.hear(ControlProved)
    assert listener.stop().is_clean
    assert_nothing(base)


def test_without_a_usable_directory_all_reasons_are_told(
    start: Start, options: Options, base: Path
) -> None:
    failed = start(options(bases=(str(base / "a"), str(base / "b")))).hear(Failed)
    assert f"{base}/a: No such file or directory; {base}/b: No such file" in failed.reason


# -- what the logs say ----------------------------------------------------------------------------


def test_a_fault_is_pushed_with_its_suspects(ready: Listener) -> None:
    ready.write_log(FAULT)
    assert ready.hear(ServerStatus, lambda event: event.server_pid == 474).status == "FAULT"
    fault = ready.hear(Fault)
    assert (fault.server_pid, fault.suspects, fault.named_pid) == (474, (424, 426), 424)
    assert fault.text.splitlines() == FAULT.splitlines()
    assert ready.stop().is_clean


def test_a_status_comes_after_every_fault_that_was_there_when_it_was_asked_for(
    ready: Listener,
) -> None:
    ready.hear(ServerStatus)
    for _ in range(3):
        ready.write_log(FAULT)
        ready.keeper.ask_status()
        # The fault comes as two events.
        events: list[Event] = []
        while not any(isinstance(event, Status) for event in events):
            assert ready.keeper.is_alive
            select.select([ready.keeper], [], [], PATIENCE_S)
            events += ready.keeper.poll()
        assert [type(event) for event in events] == [ServerStatus, Fault, Status]
        ready.write_log(
            "[2026-11-21 14:37:42.266 Server   474] Destroy server context on device 0\n"
        )
        assert ready.hear(ServerStatus).status == "ACTIVE"
    assert ready.stop().is_clean


def test_clients_and_troubles_are_pushed(ready: Listener) -> None:
    client = start_client()
    stamp = "[2026-11-21 14:37:31.138"
    ready.write_log(
        f"{stamp} Server   474] Client {{PID: {client.pid}, Context ID: 0}} connected\n"
    )
    assert ready.hear(ClientJoined).pid == client.pid
    ready.write_log(f"{stamp} Server   474] Client process {client.pid} disconnected\n")
    assert ready.hear(ClientLeft).pid == client.pid
    ready.write_log(f"{stamp} Control  1] Failed to start server using uid 0. No reason\n")
    assert ready.hear(DaemonTrouble).text == "Failed to start server using uid 0. No reason"
    client.kill()
    client.wait()
    assert ready.stop().is_clean


# -- what dies ------------------------------------------------------------------------------------


def test_a_killed_daemon_is_told_and_a_fresh_one_started_elsewhere(
    start: Start, options: Options, base: Path, tmp_path: Path
) -> None:
    listener = start(options(logs_to=str(tmp_path)))
    first = listener.hear(Ready)
    server_pid = listener.hear(ServerStatus).server_pid
    os.kill(first.daemon_pid, signal.SIGKILL)
    died = listener.hear(DaemonDied)
    assert died.exit_status == -signal.SIGKILL
    listener.keeper.ask_status()
    assert listener.hear(Status).problem == "the MPS daemon has ended"
    listener.keeper.restart()
    second = listener.hear(Ready)
    assert second.directory != first.directory
    assert identify(server_pid) is None
    assert [entry.name for entry in base.iterdir()] == [Path(second.directory).name]
    assert listener.stop().is_clean
    assert sorted(entry.name for entry in tmp_path.glob("mps.*")) == [
        "mps.1.daemon.log",
        "mps.2.daemon.log",
    ]
    assert_nothing(base)


def test_a_killed_server_is_told(ready: Listener, base: Path) -> None:
    server_pid = ready.hear(ServerStatus).server_pid
    os.kill(server_pid, signal.SIGKILL)
    ended = ready.hear(ServerStatus)
    assert (ended.server_pid, ended.status) == (server_pid, "EXITED")
    ready.keeper.ask_status()
    assert ready.hear(Status).servers == ()
    assert ready.stop().is_clean
    assert_nothing(base)


def test_what_a_killed_keeper_leaves_the_runner_removes(ready: Listener, base: Path) -> None:
    ready.hear(ServerStatus)
    ready.keeper.kill()
    assert ready.hear(KeeperDied).exit_status == -signal.SIGKILL
    assert list_programs_below(base) != []
    assert ready.keeper.recover().is_clean
    assert_nothing(base)
    assert ready.keeper.recover().is_clean


def test_a_keeper_that_answers_no_more_is_killed_and_its_daemon_ended(
    ready: Listener, base: Path
) -> None:
    os.kill(ready.keeper.pid, signal.SIGSTOP)
    ready.keeper.stop()
    heard = ready.keeper.wait(time.monotonic() + 0.1)
    assert not any(isinstance(event, Stopped) for event in heard)
    assert ready.keeper.recover().is_clean
    assert not ready.keeper.is_alive
    assert_nothing(base)


def test_a_keeper_that_is_killed_before_it_has_said_where_is_cleared_away_too(
    start: Start, options: Options, base: Path
) -> None:
    listener = start(options())
    deadline = time.monotonic() + PATIENCE_S
    while not list_programs_below(base):
        assert time.monotonic() < deadline
    listener.keeper.kill()
    while listener.keeper.is_alive:
        # Nothing that it says is listened to.
        listener.keeper.directory = None
        listener.keeper.wait(time.monotonic() + PATIENCE_S)
    listener.keeper.directory = None
    assert listener.keeper.recover().is_clean
    assert_nothing(base)


@pytest.mark.parametrize("user", ["same", "other"])
def test_a_killed_runner_leaves_nothing(options: Options, base: Path, user: str) -> None:
    if user == "other" and os.geteuid() != 0:
        pytest.skip("needs to be root")
    python = "/usr/bin/python3" if user == "other" else sys.executable
    with subprocess.Popen(
        [python, "-I", "-c", RUNNER.format(root=str(ROOT))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        user=NOBODY if user == "other" else None,
        group=NOBODY if user == "other" else None,
        extra_groups=[] if user == "other" else None,
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(encode(options()))
        runner.stdin.flush()
        keeper_pid, daemon_pid = (int(word) for word in runner.stdout.readline().split()[:2])
        keeper, daemon = identify(keeper_pid), identify(daemon_pid)
        assert keeper is not None
        assert daemon is not None
        runner.kill()
    wait_until_nothing_is_left(base)
    deadline = time.monotonic() + PATIENCE_S
    while identify(keeper_pid) == keeper or identify(daemon_pid) == daemon:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clients_of_a_killed_runner_may_go_on_for_a_while_without_the_files(
    options: Options, base: Path, tmp_path: Path
) -> None:
    listener = Listener(
        KeeperClient.start(options(logs_to=str(tmp_path), orphan_grace_s=PATIENCE_S))
    )
    listener.hear(Ready)
    server_pid = listener.hear(ServerStatus).server_pid
    client = start_client()
    listener.write_log(
        f"[2026-11-21 14:37:31.138 Server   {server_pid}] "
        f"Client {{PID: {client.pid}, Context ID: 0}} connected\n"
    )
    listener.hear(ClientJoined)
    assert listener.keeper._child.stdin is not None
    listener.keeper._child.stdin.close()
    deadline = time.monotonic() + PATIENCE_S
    while list(base.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    logs = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert identify(server_pid) is not None, (logs, client.poll())
    assert listener.keeper._child.poll() is None
    client.kill()
    client.wait()
    wait_until_nothing_is_left(base)
    listener.keeper.wait(time.monotonic() + PATIENCE_S)
    assert "connected" in (tmp_path / "mps.1.daemon.log").read_text()


def test_clients_that_never_end_are_not_waited_for_longer_than_their_grace(
    options: Options, base: Path
) -> None:
    listener = Listener(KeeperClient.start(options(orphan_grace_s=0.2)))
    listener.hear(Ready)
    server_pid = listener.hear(ServerStatus).server_pid
    client = start_client()
    listener.write_log(
        f"[2026-11-21 14:37:31.138 Server   {server_pid}] "
        f"Client {{PID: {client.pid}, Context ID: 0}} connected\n"
    )
    listener.hear(ClientJoined)
    assert listener.keeper._child.stdin is not None
    listener.keeper._child.stdin.close()
    wait_until_nothing_is_left(base)
    listener.keeper.wait(time.monotonic() + PATIENCE_S)
    client.kill()
    client.wait()


def test_clients_go_on_as_long_as_the_guard_of_the_runner_stands(
    options: Options, base: Path
) -> None:
    # The keeper's parent is what adopted it: here it never had another one.
    listener = Listener(KeeperClient.start(options(orphan_grace_s=0.2, guard_pid=os.getpid())))
    listener.hear(Ready)
    server_pid = listener.hear(ServerStatus).server_pid
    client = start_client()
    listener.write_log(
        f"[2026-11-21 14:37:31.138 Server   {server_pid}] "
        f"Client {{PID: {client.pid}, Context ID: 0}} connected\n"
    )
    listener.hear(ClientJoined)
    assert listener.keeper._child.stdin is not None
    listener.keeper._child.stdin.close()
    deadline = time.monotonic() + PATIENCE_S
    while list(base.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(2)
    assert identify(server_pid) is not None
    client.kill()
    client.wait()
    wait_until_nothing_is_left(base)
    listener.keeper.wait(time.monotonic() + PATIENCE_S)


def test_what_an_earlier_pack_has_left_is_cleared_away_in_the_background(
    start: Start, options: Options, base: Path
) -> None:
    dead = start_daemon(options(label="4711"))
    dead.logs.close()
    dead.directory.close()
    listener = start(options())
    listener.hear(Ready)
    swept = listener.hear(Sweeping)
    assert (swept.path, swept.label) == (dead.directory.path, "4711")
    assert swept.report is not None
    assert swept.report.is_clean
    assert dead.child is not None
    dead.child.wait(PATIENCE_S)
    listener.keeper.ask_status()
    assert listener.hear(Status).problem == ""
    assert listener.stop().is_clean
    assert_nothing(base)


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        MpsOptions(gpus=(GPU,), environment={"a": "b"}),
        Ready("/d", "/d/p", 1, None, "13.0", 1.5, None, ("/tmp: full",)),
        Fault(1, (2, 3), None, "line\nline"),
        Status(
            (ServerClients(1, 0, None, (ListedClient(2, 1),)),),
            "why",
        ),
        Stopped(StopReport(1.0, None, True, (3,), None, False, ("left",), (), ("note",))),
        Sweeping("/d", "4711", None, "it serves"),
        KeeperDied(None),
    ],
)
def test_a_message_is_read_as_it_was_written(message: object) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize("line", [b"", b"{", b"{}", b'{"kind":"Popen"}', b'{"kind":"Ready"}'])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(StateError):
        decode(line)


def test_a_keeper_whose_channel_is_closed_at_once_does_nothing(tmp_path: Path, base: Path) -> None:
    write_program(tmp_path / "unused", "")
    listener = Listener(
        KeeperClient.start(MpsOptions(gpus=(GPU,), bases=(str(base),), path="/nowhere"))
    )
    assert listener.keeper._child.stdin is not None
    listener.keeper._child.stdin.close()
    events = listener.keeper.wait(time.monotonic() + PATIENCE_S)
    assert events
    assert_nothing(base)
