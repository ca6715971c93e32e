from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_colloc.errors import SlurmError
from slurm_colloc.host.system.node_processes import (
    ProcessId,
    find_ancestors,
    find_descendants,
    is_alive,
    list_running_processes,
    read_command_line,
    read_environment,
    read_process,
)
from slurm_colloc_lab.sandbox.daemons import start_daemon
from slurm_colloc_lab.sandbox.sandbox_processes import (
    find_socket_owners,
    send_signal,
    stop_processes,
    wait_until,
)
from slurm_colloc_lab.sandbox.sandbox_spec import Layout


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that waits to be ended."""
    with subprocess.Popen(["sleep", "600"], env={"SANDBOX_MARK": "yes"}) as child:
        yield child
        child.kill()


def identify(child: subprocess.Popen[bytes]) -> ProcessId:
    # A child that has not reached its exec yet still looks like its parent.
    found = []

    def ready() -> bool:
        process = read_process(child.pid)
        if process is None or read_command_line(child.pid)[:1] == (sys.executable,):
            return False
        found.append(process.id)
        return True

    assert wait_until(ready, 10)
    return found[0]


def test_a_process_is_told_apart_from_a_later_one_with_its_pid(
    sleeper: subprocess.Popen[bytes],
) -> None:
    real = identify(sleeper)
    earlier = replace(real, start_ticks=real.start_ticks - 1)
    assert is_alive(real)
    assert not is_alive(earlier)
    assert not send_signal(earlier, signal.SIGKILL)
    assert stop_processes({earlier}, term_s=0) == set()
    assert is_alive(real), "the signal for the earlier process went nowhere"
    assert send_signal(real, signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL


def test_a_zombie_does_not_count_as_alive(sleeper: subprocess.Popen[bytes]) -> None:
    real = identify(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{sleeper.pid}").exists()
    assert not is_alive(real)


def test_what_ignores_term_is_killed() -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = read_process(child.pid)
        assert process is not None
        assert stop_processes({process.id}, term_s=0.2) == set()
        assert child.wait(10) == -signal.SIGKILL


def test_descendants_are_found_through_all_generations() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sh -c 'echo $$; sleep 600; true'; true"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        top = read_process(child.pid)
        assert top is not None

        def find() -> set[ProcessId]:
            return find_descendants({top.id}, list_running_processes())

        assert wait_until(lambda: len(find()) == 2, 10)
        assert grandchild in {identity.pid for identity in find()}
        stop_processes(find() | {top.id}, term_s=0)


def test_our_own_line_holds_this_process_and_its_parent() -> None:
    assert {os.getpid(), os.getppid()} <= find_ancestors(os.getpid(), list_running_processes())


def test_the_owner_of_a_unix_socket_is_found_by_its_directory(short_directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_directory / "s"))
        listener.listen()
        table = list_running_processes()
        owners = find_socket_owners(short_directory, table)
        assert {identity.pid: path for identity, path in owners.items()} == {
            os.getpid(): str(short_directory / "s")
        }
        assert find_socket_owners(short_directory / "other", table) == {}


def test_environments_are_read_where_allowed_and_empty_elsewhere(
    sleeper: subprocess.Popen[bytes],
) -> None:
    identify(sleeper)
    assert read_environment(sleeper.pid) == {"SANDBOX_MARK": "yes"}
    assert read_environment(2**22 + 1) == {}


def test_a_daemon_that_keeps_its_output_open_does_not_hold_us_up(short_directory: Path) -> None:
    layout = Layout(short_directory)
    layout.log.mkdir(parents=True)
    script = f"echo why >&2; sleep 600 & echo $! >{short_directory}/pid"
    start_daemon("daemon", ["/bin/sh", "-c", script], layout)
    left = read_process(int((short_directory / "pid").read_text()))
    assert left is not None
    stop_processes({left.id}, term_s=0)
    assert (layout.log / "daemon.stderr").read_text() == "why\n"


def test_a_daemon_that_does_not_go_into_the_background_is_ended(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(short_directory)
    layout.log.mkdir(parents=True)
    monkeypatch.setattr("slurm_colloc_lab.sandbox.daemons._START_S", 0.5)
    script = f"echo error: stuck >&2; echo $$ >{short_directory}/pid; exec sleep 600"
    with pytest.raises(SlurmError, match="error: stuck"):
        start_daemon("daemon", ["/bin/sh", "-c", script], layout)
    assert read_process(int((short_directory / "pid").read_text())) is None
