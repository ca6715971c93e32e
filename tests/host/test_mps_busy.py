"""A daemon that serves somebody else's control program, and so turns every other one away."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mps.mps_control import BUSY, was_turned_away
from slurm_colloc.host.mps.mps_state import MpsOptions
from slurm_colloc.host.mps.start_daemon import RunningMps, start_daemon, start_server
from slurm_colloc.host.mps.stop_daemon import stop_daemon, sweep
from slurm_colloc.host.system.child_programs import Outcome
from slurm_colloc.host.system.node_processes import identify

from .conftest import PATIENCE_S

Options = Callable[..., MpsOptions]
# Some attempts of a control program that is turned away.
SHORT_S = 0.5


class FrontEnd:
    """A control program that somebody leaves open, as in a shell inside a member."""

    def __init__(self, running: RunningMps) -> None:
        environment = Path(f"/proc/{running.daemon.pid}/environ").read_bytes().split(b"\0")
        self._process = subprocess.Popen(
            [running.state.programs.control],
            env=dict(word.split(b"=", 1) for word in environment if word),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(b"get_default_client_priority\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        log = Path(running.directory.path, "daemon.log")
        while "Cmd:get_default_client_priority" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)


@pytest.fixture
def running(options: Options) -> Iterator[RunningMps]:
    """A daemon that answers."""
    found = start_daemon(options(label="4711"))
    yield found
    assert found.child is not None
    found.child.kill()
    found.child.wait()


@pytest.fixture
def front_end(running: RunningMps) -> Iterator[FrontEnd]:
    """Somebody else's control program, until the end of the test."""
    found = FrontEnd(running)
    yield found
    found.close()


def test_no_answer_is_not_taken_for_an_empty_one(running: RunningMps) -> None:
    assert running.control.read_servers() == ()
    front_end = FrontEnd(running)
    answer = running.control.ask("get_server_list", SHORT_S)
    assert (answer.returncode, answer.stdout, answer.problem) == (None, "", BUSY)
    assert running.control.read_servers(SHORT_S) is None
    assert running.control.read_clients(1, SHORT_S) is None
    front_end.close()
    assert running.control.read_servers() == ()


def test_a_question_is_asked_again_until_it_is_heard(running: RunningMps) -> None:
    front_end = FrontEnd(running)
    closer = threading.Timer(0.5, front_end.close)
    closer.start()
    answer = running.control.ask("bogus", PATIENCE_S)
    closer.join()
    assert (answer.stdout, answer.problem) == ('Unknown command "bogus"\n', "")


@pytest.mark.usefixtures("front_end")
def test_a_server_that_was_not_asked_for_is_not_waited_for(running: RunningMps) -> None:
    with pytest.raises(NodeError, match=f"starts no server: {BUSY}"):
        start_server(running)


@pytest.mark.usefixtures("front_end")
def test_a_sweep_lets_a_daemon_live_that_somebody_talks_to(running: RunningMps, base: Path) -> None:
    running.logs.close()
    running.directory.close()
    (swept,) = sweep((str(base),))
    assert (swept.report, swept.reason) == (None, "its daemon serves a control program")
    assert identify(running.daemon.pid) == running.daemon


@pytest.mark.usefixtures("front_end")
def test_a_pack_ends_its_own_daemon_all_the_same(running: RunningMps, base: Path) -> None:
    report = stop_daemon(running, asks_nvml=False)
    assert report.is_clean
    assert report.forced
    assert f"the MPS daemon did not say who its servers are: {BUSY}" in report.notes
    assert "quit: the MPS daemon goes on" in report.notes
    assert list(base.iterdir()) == []


@pytest.mark.parametrize(
    ("outcome", "turned_away"),
    [
        (Outcome(0, "", ""), True),
        (Outcome(1, "", "Cannot send command to MPS control daemon process\n"), True),
        (Outcome(1, "", ""), True),
        (Outcome(1, "", "Cannot find MPS control daemon process\n"), False),
        (Outcome(0, "7\n", ""), False),
        (Outcome(None, "", "", "no answer within 1 s"), False),
    ],
)
def test_how_a_daemon_turns_a_control_program_away(outcome: Outcome, *, turned_away: bool) -> None:
    assert was_turned_away(outcome) is turned_away
