"""Processes are found only as what they are."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from slurm_colloc.host.system import node_processes
from slurm_colloc.host.system.node_processes import (
    ProcessId,
    identify,
    is_alive,
    read_environment,
    read_process,
    read_uid,
    wait_until_ended,
)

from ..sessions import list_session
from .waiting import Start

PATIENCE_S = 60


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

        monkeypatch.setattr(node_processes, "_pidfd_open", refuse)


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
    assert (zombie.state, zombie.has_ended) == ("Z", True)
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


def test_a_process_tells_its_user_and_its_environment(start: Start) -> None:
    child = start(environment={"COLOUR": "red"})
    assert read_uid(child.pid) == os.geteuid()
    assert read_environment(child.pid).get("COLOUR") == "red"
    assert read_environment(child.pid).get("COL") is None
    assert read_process(2**22 + 1) is None
    assert identify(2**22 + 1) is None
    assert read_uid(2**22 + 1) is None
