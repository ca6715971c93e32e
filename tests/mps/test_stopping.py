"""How a control daemon ends, and what it takes with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import identify

from .backends import HANG_S, PATIENCE_S, Mps, read_stat

SLEEPING = "exec sleep 1000"
STUBBORN = "trap '' INT\nwhile :; do sleep 1; done"


def wait_for_end(mps: Mps, pid: int) -> None:
    mps.wait(lambda: identify(pid) is None, f"the end of {pid}")


def test_quit_ends_the_daemon_soon_after_it_has_answered(mps: Mps) -> None:
    mps.start()
    daemon = mps.pid
    assert mps.ask("quit").all == (0, "", "")
    wait_for_end(mps, daemon)
    assert mps.log()[-1] == "Exit with status 0"
    # The sockets stay, and nobody listens there.
    left = {path.name for path in mps.pipes.iterdir()}
    assert left == {"control", "control_lock", "control_privileged"}
    assert mps.ask("get_server_list").errors == "Cannot find MPS control daemon process\n"


def test_once_the_process_has_gone_the_same_directory_takes_another(mps: Mps) -> None:
    for _ in range(3):
        mps.start()
        assert mps.ask("get_server_list").all == (0, "", "")
        wait_for_end(mps, quit_and_name(mps))


def test_a_restart_before_the_process_has_gone_wedges_550_and_not_580(mps: Mps) -> None:
    if not mps.backend.is_simulated:
        # Seen with 550 in four of six runs of up to 100 cycles; never with 580 in ten cycles.
        pytest.skip("with a real daemon it takes up to 100 cycles, or more")
    nobody = "Cannot find MPS control daemon process\n"
    answers = []
    for _ in range(10 if mps.backend.version < 580 else 3):
        mps.start()
        mps.ask("quit")
        assert mps.start(check=False).all == (0, "", "")
        answers.append(mps.ask("get_server_list"))
        if answers[-1].errors == nobody:
            break
        wait_for_end(mps, quit_and_name(mps))
    if mps.backend.version >= 580:
        assert [answer.all for answer in answers] == [(0, "", "")] * 3
        return
    # It holds the lock, has closed its sockets and stays so.
    assert answers[-1].errors == nobody
    refused = (1, "An instance of this daemon is already running\n", "")
    assert mps.start(check=False).all == refused
    for identity in mps.find_processes():
        os.kill(identity.pid, signal.SIGKILL)
        wait_for_end(mps, identity.pid)
    mps.start()


def quit_and_name(mps: Mps) -> int:
    daemon = mps.pid
    mps.ask("quit")
    return daemon


def test_quits_exit_status_is_mostly_the_first_servers_that_failed(mps: Mps) -> None:
    mps.use_server("exit 3")
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    mps.wait_for_log(r"^Server \d+ exited with status 3$")
    daemon = mps.pid
    # The daemon closes with a message unread, so its answer may be lost: then it is 0.
    assert mps.ask("quit").status in (0, 3)
    wait_for_end(mps, daemon)
    assert mps.log()[-1] == "Exit with status 3"


def test_quit_waits_without_limit_for_a_server_that_is_not_ready(mps: Mps) -> None:
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server = mps.server()
    assert mps.hangs("quit", is_taken=True)
    # It gets no signal, and commands do not come back as long as the daemon waits. The daemon takes
    # the next control program once it has seen that this one has gone.
    assert identify(server) is not None
    mps.wait(lambda: mps.log()[-2:] == ["Cmd:quit", "UI closed"], "the control program's end")
    assert mps.hangs("get_server_list")
    os.kill(server, signal.SIGKILL)
    mps.wait(lambda: mps.peer_pid() is None, "the daemon's end")


def test_quit_with_a_time_limit_sends_one_sigint_then(mps: Mps) -> None:
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    mps.server()
    before = time.monotonic()
    assert mps.ask("quit -t 1").status == 0
    assert time.monotonic() - before >= 0.9
    log = mps.log()
    assert "quit command issued with timeout of 1" in log
    assert any(line.startswith("Force shutting down server") for line in log)


def test_quit_with_a_time_limit_waits_for_ever_for_a_server_that_ignores_sigint(mps: Mps) -> None:
    mps.use_server(STUBBORN)
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server, daemon = mps.server(), mps.pid
    # The shell sets its trap first.
    mps.wait(lambda: read_signals(server, "SigIgn") & 1 << (signal.SIGINT - 1), "the trap")
    quitting = mps.open_front_end()
    assert quitting.stdin is not None
    quitting.stdin.write("quit -t 0\n")
    quitting.stdin.close()
    mps.wait_for_log("^Force shutting down server")
    time.sleep(HANG_S)
    assert quitting.poll() is None
    assert identify(server) is not None
    # Meanwhile a second control program gets nothing, with either exit status.
    assert mps.ask("get_server_list").output == ""
    os.kill(server, signal.SIGKILL)
    quitting.wait(PATIENCE_S)
    wait_for_end(mps, daemon)


def test_a_forced_shutdown_of_a_server_is_one_sigint_too(mps: Mps) -> None:
    mps.use_server(f"trap 'echo INT >> {mps.directory}/signals' INT\nwhile :; do sleep 0.1; done")
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server = mps.server()
    signals = mps.directory / "signals"
    # The shell sets its trap first.
    mps.wait(lambda: read_signals(server, "SigCgt") & 1 << (signal.SIGINT - 1), "the trap")
    assert mps.ask(f"shutdown_server {server} -f").all == (0, "", "")
    mps.wait(signals.exists, "the signal")
    assert mps.servers() == [server]
    assert signals.read_text() == "INT\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_daemon_at_once_and_leaves_its_files_and_a_silent_server(
    mps: Mps, number: signal.Signals
) -> None:
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server, daemon = mps.server(), mps.pid
    os.kill(daemon, number)
    wait_for_end(mps, daemon)
    if mps.backend.simulation is not None:
        # It belongs to init or a subreaper now, and still to the daemon's session. NVIDIA's own
        # server of 580 ends with its daemon (test_faults.py).
        assert int(read_stat(server)[1]) != daemon
        assert int(read_stat(server)[3]) == daemon
    assert {path.name for path in mps.pipes.iterdir()} == {
        "control",
        "control_lock",
        "control_privileged",
        "log",
        "nvidia-cuda-mps-control.pid",
    }


def read_signals(pid: int, name: str) -> int:
    """A mask of /proc/PID/status: SigIgn for what is ignored, SigCgt for what is caught."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(f"{name}:")).split()[1], 16)
