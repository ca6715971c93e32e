"""Processes are found and ended only as what they are."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.host import processes
from slurm_colloc.host.processes import (
    ProcessId,
    end_processes,
    identify,
    is_alive,
    list_session,
    read_environment_value,
    read_namespace_pids,
    read_process,
    read_uid,
    send_signal,
    wait_until_ended,
)

PATIENCE_S = 60
FREEZER = Path("/sys/fs/cgroup/freezer")
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that wait; they are gone at the end."""
    children = []

    def start_one(
        code: str = "", *, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        program = f"import signal, os, time\n{code}\nprint('up', flush=True)\ntime.sleep(600)\n"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        children.append(child)
        return child

    yield start_one
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def identify_child(child: subprocess.Popen[bytes]) -> ProcessId:
    identity = identify(child.pid)
    assert identity is not None
    return identity


@pytest.fixture(params=["pidfd", "without"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This kernel, and one that has no pidfd."""
    if request.param == "without":

        def refuse(_pid: int) -> int:
            raise OSError(errno.ENOSYS, "pidfd_open")

        monkeypatch.setattr(processes, "_pidfd_open", refuse)


@pytest.mark.usefixtures("kernel")
def test_a_process_that_has_the_pid_of_an_earlier_one_is_not_signalled(start: Start) -> None:
    child = start()
    right = identify_child(child)
    wrong = ProcessId(right.pid, right.start_ticks - 1)
    assert not send_signal(wrong, signal.SIGKILL)
    assert not is_alive(wrong)
    assert is_alive(right)
    assert send_signal(right, signal.SIGKILL)
    assert child.wait(PATIENCE_S) == -signal.SIGKILL
    assert not send_signal(right, signal.SIGKILL)


@pytest.mark.usefixtures("kernel")
def test_the_end_of_processes_is_awaited_and_those_that_stay_are_told(start: Start) -> None:
    short, long = start(), start()
    identities = [identify_child(short), identify_child(long)]
    short.kill()
    left = wait_until_ended(identities, time.monotonic() + 0.2)
    assert left == (identities[1],)
    long.kill()
    assert wait_until_ended(identities, time.monotonic() + PATIENCE_S) == ()


def test_a_process_that_has_ended_but_was_not_collected_is_not_alive(start: Start) -> None:
    child = start()
    identity = identify_child(child)
    child.kill()
    wait_until_ended([identity], time.monotonic() + PATIENCE_S)
    zombie = read_process(child.pid)
    assert zombie is not None
    assert (zombie.state, zombie.has_ended, zombie.is_unkillable) == ("Z", True, False)
    assert not is_alive(identity)
    os.kill(child.pid, 0)
    assert list_session(child.pid) == ()


def test_a_process_whose_first_thread_has_ended_is_alive(start: Start) -> None:
    child = start(
        "import threading, ctypes\n"
        "threading.Thread(target=lambda: time.sleep(600)).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    deadline = time.monotonic() + PATIENCE_S
    while b"Z" not in Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process = read_process(child.pid)
    assert process is not None
    assert not process.has_ended


def test_a_process_that_ignores_the_polite_signals_is_killed(start: Start) -> None:
    child = start("for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)")
    identity = identify_child(child)
    steps = ((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1), (signal.SIGKILL, PATIENCE_S))
    left = end_processes(lambda: [identity] if is_alive(identity) else [], steps)
    assert left == ()
    assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_stopped_process_gets_the_polite_signal(start: Start) -> None:
    child = start()
    identity = identify_child(child)
    send_signal(identity, signal.SIGSTOP)
    end_processes(lambda: [identity] if is_alive(identity) else [], ((signal.SIGTERM, PATIENCE_S),))
    assert child.wait(PATIENCE_S) == -signal.SIGTERM


def test_what_a_process_forks_meanwhile_is_ended_too(start: Start) -> None:
    child = start(
        "def fork(*_):\n"
        "    if os.fork(): os._exit(0)\n"
        "signal.signal(signal.SIGTERM, fork)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    )
    leader = child.pid
    left = end_processes(
        lambda: [process.id for process in list_session(leader)],
        ((signal.SIGTERM, 0.2), (signal.SIGKILL, PATIENCE_S)),
    )
    assert left == ()
    assert list_session(leader) == ()


def test_a_process_stuck_in_the_kernel_is_told_and_not_waited_for(start: Start) -> None:
    if os.geteuid() != 0 or not (FREEZER / "tasks").exists():
        pytest.skip("needs root and the freezer of cgroup v1, where a process sits in state D")
    child = start()
    identity = identify_child(child)
    group = FREEZER / f"colloc-test-{child.pid}"
    group.mkdir()
    try:
        (group / "tasks").write_text(str(child.pid))
        (group / "freezer.state").write_text("FROZEN")
        left = end_processes(
            lambda: [identity] if is_alive(identity) else [], ((signal.SIGKILL, 0.3),)
        )
        assert [(process.id, process.is_unkillable) for process in left] == [(identity, True)]
    finally:
        (group / "freezer.state").write_text("THAWED")
        child.wait(PATIENCE_S)
        group.rmdir()


def test_a_process_tells_its_user_its_environment_and_its_pids(start: Start) -> None:
    child = start(environment={"COLOUR": "red"})
    assert read_uid(child.pid) == os.geteuid()
    assert read_environment_value(child.pid, "COLOUR") == "red"
    assert read_environment_value(child.pid, "COL") is None
    assert read_namespace_pids(child.pid) == (child.pid,)
    assert read_process(2**22 + 1) is None
    assert identify(2**22 + 1) is None
    assert read_uid(2**22 + 1) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_the_pid_inside_a_namespace_is_told_as_well(start: Start) -> None:
    child = start(
        "import ctypes\n"
        "if ctypes.CDLL(None).unshare(0x20000000) != 0: os._exit(9)\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(write, b'.')\n"
        "    time.sleep(600)\n"
        "os.read(read, 1)\n"
    )
    (inner,) = (p for p in list_session(child.pid) if p.id.pid != child.pid)
    pids = read_namespace_pids(inner.id.pid)
    send_signal(inner.id, signal.SIGKILL)
    assert pids == (inner.id.pid, 1)
