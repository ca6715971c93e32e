"""A private daemon: NVIDIA's real control program, with a server that needs no GPU."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.keeper.keeper import wait_for_active
from slurm_colloc.host.mps.mps_control import (
    ControlProgram,
    MpsPrograms,
    build_daemon_environment,
    find_library_path,
    read_peer,
)
from slurm_colloc.host.mps.mps_state import MpsOptions
from slurm_colloc.host.mps.start_daemon import RunningMps, start_daemon, start_server
from slurm_colloc.host.mps.stop_daemon import recover, stop_daemon, sweep
from slurm_colloc.host.system.directories import DAEMON_LOG, Owner
from slurm_colloc.host.system.node_processes import identify, read_uid

from ..sessions import list_session
from .conftest import GPU, PATIENCE_S, list_programs_below, write_program

UNSEEN = "GPU-00000000-1111-2222-3333-444444444444"
NOBODY = 65534
DAEMON_USER = 1
FREEZER = Path("/sys/fs/cgroup/freezer")
Options = Callable[..., MpsOptions]
Start = Callable[..., RunningMps]
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


def wait_for_server(running: RunningMps) -> int:
    """Start a server and wait until its program runs."""
    start_server(running)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for server_pid in running.control.read_servers() or ():
            if Path(running.directory.log_path, f"stub.{server_pid}").exists():
                running.note_server(server_pid)
                return server_pid
        assert time.monotonic() < deadline, Path(running.directory.path, DAEMON_LOG).read_text()
        time.sleep(0.01)


def read_descriptors(pid: int) -> set[str]:
    directory = Path(f"/proc/{pid}/fd")
    return {str(entry.readlink()) for entry in directory.iterdir()}


def assert_nothing_is_left(base: Path) -> None:
    assert list_programs_below(base) == []
    assert list(base.iterdir()) == []


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts daemons; a test of their end ends them itself."""
    started = []

    def start_one(options: MpsOptions, owner: Owner | None = None) -> RunningMps:
        started.append(start_daemon(options, owner=owner))
        return started[-1]

    yield start_one
    for running in started:
        assert running.child is not None
        running.child.kill()
        running.child.wait()


@pytest.fixture
def running(start: Start, options: Options) -> RunningMps:
    """A daemon that answers."""
    return start(options())


# -- starting -------------------------------------------------------------------------------------


def test_a_daemon_is_ours_alone_and_proven(running: RunningMps, base: Path) -> None:
    assert running.child is not None
    peer = read_peer(running.directory.pipe_path)
    assert peer is not None
    assert (peer.pid, peer.uid) == (running.child.pid, os.geteuid())
    assert running.daemon == identify(running.child.pid)
    assert running.control_ms > 0
    # It leads a session of its own.
    assert [process.id for process in list_session(running.daemon.pid)] == [running.daemon]
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert not report.forced
    assert report.quit_ms is not None
    assert_nothing_is_left(base)


def test_the_environment_is_clean(running: RunningMps, programs: Path) -> None:
    words = Path(f"/proc/{running.daemon.pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
    environment = dict(word.decode().split("=", 1) for word in words)
    assert environment == {
        "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C",
        "CUDA_VISIBLE_DEVICES": GPU,
        "CUDA_MPS_PIPE_DIRECTORY": running.directory.pipe_path,
        "CUDA_MPS_LOG_DIRECTORY": running.directory.log_path,
        "CUDA_MPS_PROTOCOL_VERSION": "2",
        **find_library_path(os.environ),
    }
    stop_daemon(running, asks_nvml=False)


def test_daemon_and_server_inherit_no_descriptor(
    start: Start, options: Options, tmp_path: Path
) -> None:
    leaks = [os.open(tmp_path / f"leak{n}", os.O_CREAT | os.O_RDWR) for n in range(3)]
    os.dup2(leaks[0], 200)
    for leak in (*leaks, 200):
        os.set_inheritable(leak, True)
    try:
        running = start(options())
        server_pid = wait_for_server(running)
        for pid in (running.daemon.pid, server_pid):
            found = read_descriptors(pid)
            assert not {name for name in found if "leak" in name}
            # The lock says that the keeper lives, so nobody else may hold it.
            assert f"{running.directory.path}/lock" not in found
            # From 580 on the daemon has the driver's own files open.
            assert {n for n in found if n.startswith("/") and not n.startswith("/dev/nvidia")} <= {
                "/dev/null",
                f"{running.directory.path}/daemon.log",
                f"{running.directory.pipe_path}/control_lock",
                f"{running.directory.pipe_path}/log",
            }
    finally:
        for leak in (*leaks, 200):
            os.close(leak)
    assert stop_daemon(running, asks_nvml=False).is_clean


@pytest.mark.parametrize("length", [87, 88])
def test_the_real_daemon_takes_87_bytes_and_no_more(
    programs: Path, base: Path, length: int
) -> None:
    """The limit that `directories` keeps is the real one."""
    home = base / ("y" * (length - len(f"{base}//p")))
    pipe = home / "p"
    pipe.mkdir(parents=True)
    assert len(os.fsencode(pipe)) == length
    environment = build_daemon_environment(
        MpsPrograms(f"{programs}/nvidia-cuda-mps-control", f"{programs}/nvidia-cuda-mps-server"),
        gpus=(GPU,),
        pipe_directory=str(pipe),
        log_directory=str(home),
        added=find_library_path(os.environ),
    )
    with subprocess.Popen(
        [programs / "nvidia-cuda-mps-control", "-f"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as daemon:
        deadline = time.monotonic() + PATIENCE_S
        while daemon.poll() is None and read_peer(str(pipe)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert daemon.poll() == (None if length == 87 else 1)
        daemon.kill()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\nexit 244\n", "exit status 244: libcuda.so.1 was not found"),
        ("#!/bin/sh\nexit 100\n", "exit status 100: CUDA finds none of the GPUs"),
        (
            '#!/bin/sh\necho in vain >"$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 100\n',
            "exit status 100: in vain",
        ),
        ("#!/bin/sh\nexit 1\n", "exit status 1: it says nothing"),
        ("#!/bin/sh\necho no such device >&2; exit 3\n", "exit status 3: no such device"),
        ("#!/bin/sh\nkill -9 $$\n", "signal 9: it says nothing"),
        ("not a program", "cannot be started"),
    ],
)
def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(
    options: Options, programs: Path, base: Path, text: str, words: str
) -> None:
    control = programs / "nvidia-cuda-mps-control"
    control.unlink()
    write_program(control, text)
    with pytest.raises(NodeError) as caught:
        start_daemon(options())
    assert words in caught.value.message
    assert_nothing_is_left(base)


def test_a_daemon_that_makes_no_socket_is_ended_at_the_limit(
    options: Options, programs: Path, base: Path
) -> None:
    control = programs / "nvidia-cuda-mps-control"
    control.unlink()
    write_program(control, "#!/bin/sh\ntrap '' TERM INT\nsleep 600 &\nwait\n")
    with pytest.raises(NodeError, match="made no control socket: it says nothing"):
        start_daemon(options(control_cap_s=0.3))
    assert_nothing_is_left(base)


def test_somebody_else_on_the_socket_is_no_daemon(
    options: Options, programs: Path, base: Path
) -> None:
    """Who listens is asked of the kernel: here it is a child of the program that was started."""
    control = programs / "nvidia-cuda-mps-control"
    control.unlink()
    write_program(
        control,
        "#!/usr/bin/python3 -IS\n"
        "import os, socket, time\n"
        "if os.fork(): time.sleep(600)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control')\n"
        "s.listen()\n"
        "time.sleep(600)\n",
    )
    with pytest.raises(NodeError, match="not the MPS daemon, listens on its control socket"):
        start_daemon(options())
    assert_nothing_is_left(base)


def test_a_missing_program_is_a_reason(
    options: Options, programs: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine may have the programs where they are usually installed.
    monkeypatch.setattr("slurm_colloc.host.mps.mps_control.PROGRAM_DIRECTORIES", ())
    (programs / "nvidia-cuda-mps-server").unlink()
    with pytest.raises(NodeError, match="nvidia-cuda-mps-server is not installed"):
        start_daemon(options())
    assert_nothing_is_left(base)


def wait(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def test_a_server_that_cannot_start_is_a_reason(
    start: Start, options: Options, programs: Path, base: Path
) -> None:
    write_program(programs / "nvidia-cuda-mps-server", "#!/bin/sh\nexit 3\n")
    running = start(options(active_cap_s=PATIENCE_S))
    start_server(running)
    with pytest.raises(NodeError, match="exited with status 3"):
        wait_for_active(running, wait)
    stop_daemon(running, asks_nvml=False)
    assert_nothing_is_left(base)


def test_a_server_that_never_becomes_active_is_a_reason(start: Start, options: Options) -> None:
    running = start(options(active_cap_s=0.3))
    start_server(running)
    with pytest.raises(NodeError, match=r"no MPS server became ACTIVE within 0\.3 s"):
        wait_for_active(running, wait)
    assert stop_daemon(running, asks_nvml=False).is_clean


def test_a_daemon_that_dies_while_its_server_starts_is_a_reason(
    start: Start, options: Options
) -> None:
    running = start(options())
    start_server(running)
    os.kill(running.daemon.pid, signal.SIGKILL)
    with pytest.raises(NodeError, match="ended at once with signal 9"):
        wait_for_active(running, wait)
    assert stop_daemon(running, asks_nvml=False).is_clean


# -- ending ---------------------------------------------------------------------------------------


def test_a_server_that_does_not_end_gets_one_sigint_from_its_daemon(
    running: RunningMps, base: Path
) -> None:
    wait_for_server(running)
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert not report.forced
    assert_nothing_is_left(base)


def test_a_server_that_ignores_sigint_makes_quit_hang_and_is_killed(
    start: Start, options: Options, base: Path
) -> None:
    running = start(options(environment={"STUB_SERVER": "stubborn"}))
    wait_for_server(running)
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert report.forced
    assert report.quit_ms is None
    assert "quit: no answer within 2 s" in report.notes
    assert_nothing_is_left(base)


def test_a_stopped_daemon_hangs_every_command_and_is_killed(
    running: RunningMps, base: Path
) -> None:
    wait_for_server(running)
    os.kill(running.daemon.pid, signal.SIGSTOP)
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert report.forced
    assert "the MPS daemon did not say who its servers are: no answer within 2 s" in report.notes
    assert_nothing_is_left(base)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_of_a_killed_daemon_is_ended_too(
    running: RunningMps, base: Path, number: signal.Signals, driver: int
) -> None:
    server_pid = wait_for_server(running)
    os.kill(running.daemon.pid, number)
    assert running.child is not None
    running.child.wait(PATIENCE_S)
    # 550 leaves it behind. NVIDIA's own server of 580 ends by itself.
    assert identify(server_pid) is not None or driver >= 580
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert identify(server_pid) is None
    assert_nothing_is_left(base)


def test_the_daemon_of_a_killed_server_ends_well(running: RunningMps, base: Path) -> None:
    os.kill(wait_for_server(running), signal.SIGKILL)
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert not report.forced
    assert_nothing_is_left(base)


def test_logs_are_copied_before_they_are_removed(
    start: Start, options: Options, tmp_path: Path
) -> None:
    running = start(options(logs_to=str(tmp_path)))
    wait_for_server(running)
    report = stop_daemon(running, asks_nvml=False, logs_prefix="mps.1.")
    assert report.logs == (str(tmp_path / "mps.1.daemon.log"),)
    text = (tmp_path / "mps.1.daemon.log").read_text()
    assert "Starting control daemon" in text
    assert "Starting new server" in text
    assert (tmp_path / "mps.1.daemon.log").stat().st_mode & 0o777 == 0o600


def test_a_long_log_keeps_its_beginning_and_its_end(
    start: Start, options: Options, tmp_path: Path
) -> None:
    running = start(options(logs_to=str(tmp_path)))
    log = Path(running.directory.path, DAEMON_LOG)
    deadline = time.monotonic() + PATIENCE_S
    while "Starting control daemon" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(300_000))
    stop_daemon(running, asks_nvml=False)
    data = (tmp_path / "daemon.log").read_bytes()
    assert 1_000_000 < len(data) < 1_200_000
    assert b"Starting control daemon" in data
    assert b"bytes left out]" in data
    assert b"Exit with status 0" in data


def test_logs_that_cannot_be_copied_keep_nothing_else_from_being_done(
    start: Start, options: Options, base: Path
) -> None:
    running = start(options(logs_to="/nowhere/at/all"))
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert report.logs == ()
    assert "could not be copied to /nowhere/at/all" in report.notes[0]
    assert_nothing_is_left(base)


def test_an_unreadable_nvml_is_said_and_not_taken_for_an_empty_gpu(running: RunningMps) -> None:
    # A GPU that NVML does not show, should there be NVML on this machine.
    running.state = replace(running.state, gpus=(UNSEEN,))
    report = stop_daemon(running)
    assert report.gpu_processes is None
    assert any(note.startswith("the GPU was not checked: ") for note in report.notes)


class WithClients(ControlProgram):
    """The real control program, and clients as a real server would tell them."""

    def __init__(self, inner: ControlProgram, clients: list[int]) -> None:
        self._inner = inner
        self._clients = clients
        self.terminated: list[str] = []

    def quit(self, timeout_s: float):  # type: ignore[no-untyped-def]
        return self._inner.quit(timeout_s)

    def ask(self, command: str, timeout_s: float = 5.0):  # type: ignore[no-untyped-def]
        if command.startswith("terminate_client"):
            self.terminated.append(command)
        return self._inner.ask(command, timeout_s)

    def read_clients(self, server_pid: int, timeout_s: float = 5.0) -> tuple[int, ...] | None:
        del server_pid, timeout_s
        return tuple(pid for pid in self._clients if identify(pid) is not None)


def start_client() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "600"], stdin=subprocess.DEVNULL)


def test_a_client_that_stays_is_terminated_and_killed(running: RunningMps, base: Path) -> None:
    server_pid = wait_for_server(running)
    client = start_client()
    control = WithClients(running.control, [client.pid])
    running.control = control
    report = stop_daemon(running, grace_s=0.1, asks_nvml=False)
    assert client.wait(PATIENCE_S) == -signal.SIGKILL
    assert control.terminated == [f"terminate_client {server_pid} {client.pid}"]
    assert report.is_clean
    assert report.forced
    assert f"clients had to be ended: {client.pid}" in report.notes
    assert_nothing_is_left(base)


def test_a_client_that_leaves_in_time_is_left_in_peace(running: RunningMps) -> None:
    wait_for_server(running)
    client = subprocess.Popen(["/bin/sleep", "0.2"])
    control = WithClients(running.control, [client.pid])
    running.control = control
    report = stop_daemon(running, grace_s=PATIENCE_S, asks_nvml=False)
    assert client.wait(PATIENCE_S) == 0
    assert control.terminated == []
    assert not report.forced


def test_a_client_that_cannot_be_killed_is_the_one_hard_failure(
    running: RunningMps, base: Path
) -> None:
    if os.geteuid() != 0 or not (FREEZER / "tasks").exists():
        pytest.skip("needs root and the freezer of cgroup v1, where a process sits in state D")
    wait_for_server(running)
    client = start_client()
    group = FREEZER / f"colloc-test-{client.pid}"
    group.mkdir()
    try:
        (group / "tasks").write_text(str(client.pid))
        (group / "freezer.state").write_text("FROZEN")
        running.control = WithClients(running.control, [client.pid])
        report = stop_daemon(running, grace_s=0.1, asks_nvml=False)
        assert report.unkillable == (client.pid,)
        assert not report.is_clean
        # The directory stays as evidence; daemon and server are ended all the same.
        assert not report.directory_removed
        assert Path(running.directory.path, "state.json").exists()
        assert list_programs_below(base) == []
    finally:
        (group / "freezer.state").write_text("THAWED")
        client.wait(PATIENCE_S)
        group.rmdir()
    # Once it has gone, the next pack of the user clears up.
    (swept,) = sweep((str(base),))
    assert swept.report is not None
    assert swept.report.is_clean
    assert_nothing_is_left(base)


# -- what others have left ------------------------------------------------------------------------


def abandon(running: RunningMps) -> str:
    """As if what had started it had been killed: nobody holds the lock."""
    running.logs.close()
    running.directory.close()
    return running.directory.path


def test_a_directory_whose_keeper_lives_is_let_alone(running: RunningMps, base: Path) -> None:
    with pytest.raises(BlockingIOError):
        recover(running.directory.path)
    assert sweep((str(base),)) == ()
    assert identify(running.daemon.pid) is not None
    stop_daemon(running, asks_nvml=False)


def test_what_a_killed_keeper_has_left_is_ended_by_whoever_comes(
    running: RunningMps, base: Path, tmp_path: Path
) -> None:
    server_pid = wait_for_server(running)
    report = recover(abandon(running), logs_to=str(tmp_path))
    assert report.is_clean
    assert identify(server_pid) is None
    assert (tmp_path / "mps.left.daemon.log").exists()
    assert_nothing_is_left(base)


def test_a_server_whose_daemon_is_gone_is_found_by_its_directory(
    running: RunningMps, base: Path
) -> None:
    start_server(running)
    server_pid = wait_for_server(running)
    os.kill(running.daemon.pid, signal.SIGKILL)
    assert running.child is not None
    running.child.wait(PATIENCE_S)
    state = Path(running.directory.path, "state.json")
    # Nobody had seen it.
    state.write_text(state.read_text().replace(str(server_pid), "1"))
    assert recover(abandon(running)).is_clean
    assert identify(server_pid) is None
    assert_nothing_is_left(base)


def test_a_daemon_that_was_not_written_down_yet_is_found_too(
    running: RunningMps, base: Path
) -> None:
    state = Path(running.directory.path, "state.json")
    pid, ticks = running.daemon.pid, running.daemon.start_ticks
    state.write_text(state.read_text().replace(f'"daemon": [{pid}, {ticks}]', '"daemon": null'))
    assert recover(abandon(running)).is_clean
    assert_nothing_is_left(base)


def test_pids_of_an_earlier_boot_are_nobody(running: RunningMps, base: Path) -> None:
    state = Path(running.directory.path, "state.json")
    path = abandon(running)
    state.write_text(state.read_text().replace(running.state.boot, "earlier"))
    assert recover(path).is_clean
    assert identify(running.daemon.pid) == running.daemon
    os.kill(running.daemon.pid, signal.SIGKILL)
    assert list(base.iterdir()) == []


def test_a_process_that_has_the_daemons_pid_by_chance_is_not_touched(
    running: RunningMps, base: Path
) -> None:
    stranger = start_client()
    identity = identify(stranger.pid)
    assert identity is not None
    state = Path(running.directory.path, "state.json")
    daemon = f"[{running.daemon.pid}, {running.daemon.start_ticks}]"
    # Another one had it until a moment ago.
    text = state.read_text().replace(daemon, f"[{stranger.pid}, {identity.start_ticks - 1}]")
    stop_daemon(running, asks_nvml=False, has_directory=False)
    state.write_text(text)
    assert recover(running.directory.path).is_clean
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(PATIENCE_S)
    assert_nothing_is_left(base)


def test_a_sweep_ends_what_dead_packs_have_left_and_nothing_else(
    start: Start, options: Options, base: Path
) -> None:
    dead = start(options(label="4711"))
    alive = start(options(label="4712"))
    wait_for_server(dead)
    path = abandon(dead)
    (base / "csubm-00000000").symlink_to("/etc")
    (swept,) = sweep((str(base), str(base)))
    assert (swept.path, swept.label) == (path, "4711")
    assert swept.report is not None
    assert swept.report.is_clean
    assert identify(alive.daemon.pid) == alive.daemon
    assert stop_daemon(alive, asks_nvml=False).is_clean


def test_a_sweep_removes_what_was_never_finished(base: Path) -> None:
    old, young = base / "csubm-11111111", base / "csubm-22222222"
    for path in (old, young):
        path.mkdir(mode=0o700)
    os.utime(old, (0, 0))
    (swept,) = sweep((str(base),))
    assert swept.path == str(old)
    assert list(base.iterdir()) == [young]


def test_what_a_sweep_has_begun_to_remove_is_waited_for(running: RunningMps, base: Path) -> None:
    path = abandon(running)
    Path(path, "lock").unlink()

    def go_on() -> None:
        assert running.child is not None
        os.kill(running.daemon.pid, signal.SIGKILL)
        running.child.wait(PATIENCE_S)
        shutil.rmtree(path)

    ending = threading.Timer(0.3, go_on)
    ending.start()
    with pytest.raises(FileNotFoundError):
        recover(path, patience_s=PATIENCE_S)
    ending.join()
    assert list_programs_below(base) == []


def test_what_a_killed_sweep_has_left_half_removed_is_ended_and_removed(
    running: RunningMps, base: Path
) -> None:
    path = abandon(running)
    Path(path, "lock").unlink()
    assert recover(path, patience_s=0.1).is_clean
    assert_nothing_is_left(base)


def test_what_a_killed_sweep_has_left_without_its_state_is_removed(base: Path) -> None:
    path = base / "csubm-33333333"
    path.mkdir(mode=0o700)
    assert recover(str(path)).is_clean
    assert_nothing_is_left(base)


def test_a_damaged_state_is_told_and_kept(running: RunningMps, base: Path) -> None:
    state = Path(running.directory.path, "state.json")
    text = state.read_text()
    path = abandon(running)
    state.write_text("{")
    (swept,) = sweep((str(base),))
    assert swept.report is None
    assert "is damaged" in swept.reason
    state.write_text(text)
    assert recover(path).is_clean


# -- several packs, several users -----------------------------------------------------------------


def test_two_packs_of_one_user_do_not_know_each_other(
    start: Start, options: Options, base: Path
) -> None:
    first, second = start(options()), start(options())
    servers = wait_for_server(first), wait_for_server(second)
    assert first.control.read_servers() == (servers[0],)
    assert second.control.read_servers() == (servers[1],)
    assert stop_daemon(first, asks_nvml=False).is_clean
    assert identify(servers[1]) is not None
    assert stop_daemon(second, asks_nvml=False).is_clean
    assert_nothing_is_left(base)


def read_ids(pid: int) -> dict[str, list[int]]:
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        words[0].rstrip(":"): [int(word) for word in words[1:]]
        for words in lines
        if words[0] in ("Uid:", "Gid:", "Groups:", "NoNewPrivs:")
    }


@is_root
def test_root_starts_a_daemon_that_is_the_users_in_every_respect(
    start: Start, options: Options, base: Path
) -> None:
    running = start(options(), owner=Owner(NOBODY, NOBODY - 1, (NOBODY - 1, 4321)))
    server_pid = wait_for_server(running)
    for pid in (running.daemon.pid, server_pid):
        ids = read_ids(pid)
        assert ids["Uid"] == [NOBODY] * 4
        assert ids["Gid"] == [NOBODY - 1] * 4
        assert sorted(ids["Groups"]) == [4321, NOBODY - 1]
        assert ids["NoNewPrivs"] == [1]
    # What root has to know of it later stands in root's own checkpoint.
    assert not Path(running.directory.path, "state.json").exists()
    assert stop_daemon(running, asks_nvml=False).is_clean
    assert_nothing_is_left(base)


@is_root
def test_packs_of_two_users_do_not_disturb_each_other(
    start: Start, options: Options, base: Path
) -> None:
    mine = start(options(), owner=Owner(NOBODY, NOBODY, (NOBODY,)))
    theirs = start(options(), owner=Owner(DAEMON_USER, DAEMON_USER, (DAEMON_USER,)))
    servers = wait_for_server(mine), wait_for_server(theirs)
    assert [read_uid(server) for server in servers] == [NOBODY, DAEMON_USER]
    stranger = ControlProgram(
        mine.state.programs,
        build_daemon_environment(
            mine.state.programs,
            gpus=(GPU,),
            pipe_directory=mine.directory.pipe_path,
            log_directory=mine.directory.log_path,
            added=find_library_path(os.environ),
        ),
        Owner(DAEMON_USER, DAEMON_USER, (DAEMON_USER,)),
    )
    assert stranger.read_servers() is None
    assert stop_daemon(mine, asks_nvml=False).is_clean
    assert theirs.control.read_servers() == (servers[1],)
    assert stop_daemon(theirs, asks_nvml=False).is_clean
    assert_nothing_is_left(base)


def test_a_look_at_the_socket_of_nobody_is_none(tmp_path: Path) -> None:
    assert read_peer(str(tmp_path)) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unused:
        unused.bind(str(tmp_path / "control"))
        assert read_peer(str(tmp_path)) is None
