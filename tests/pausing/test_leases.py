"""A pause that its runner does not renew ends by itself; one that it renews lasts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import identify, read_process
from slurm_colloc.runtime.pause_members import StepProcesses, StoppedMember
from slurm_colloc.runtime.programs.pause_lease import GOES_ON, LEASE_S, PAUSED

from ..wait_until import wait_until
from .running_member import RunningMember
from .test_step_processes import COUNT, count, stands_still

Start = Callable[..., RunningMember]


def pause(processes: StepProcesses, number: int, member: RunningMember) -> StoppedMember:
    """Pause a member as the runner does."""
    stopped = StoppedMember(wrapper=identify(member.wrapper_pid))
    stopped.renew(time.monotonic())
    processes.stop({number: member.wrapper_pid}, {number: stopped})
    assert stopped.is_whole
    return stopped


@pytest.mark.long
def test_a_pause_lasts_as_long_as_it_is_renewed_and_ends_without(
    start: Start, tmp_path: Path
) -> None:
    members = [start("/bin/bash", "-c", COUNT % "a" + " & " + COUNT % "b") for _ in range(3)]
    files = [[member.folder / name for name in "ab"] for member in members]
    wait_until(lambda: all(count(path) > 3 for pair in files for path in pair), "they count")
    processes = StepProcesses(str(tmp_path))
    kept, _, short = [pause(processes, n, member) for n, member in enumerate(members, 1)]
    short.resume()
    # What its user stops after a pause that was ended is none of ours.
    # (A shell lasts; what it starts to wait has mostly ended by now.)
    child = next(
        process for process in short.processes
        if (found := read_process(process.pid)) is not None and found.name == "bash"
    )  # fmt: skip
    os.kill(child.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    while not all(count(path) > 0 and not stands_still(path) for path in files[1]):
        kept.renew(time.monotonic())
        assert time.monotonic() < stopped_at + LEASE_S + 30
    assert time.monotonic() > stopped_at + LEASE_S - 5
    assert all(stands_still(path) for path in files[0])
    found = read_process(child.pid)
    assert found is not None
    assert found.state == "T"
    os.kill(child.pid, signal.SIGCONT)
    kept.resume()
    wait_until(lambda: not any(map(stands_still, files[0])), "it goes on")


def test_only_its_runner_pauses_a_member_and_its_script_gets_such_signals_as_before(
    start: Start,
) -> None:
    word = (
        f"import signal, time\nsignal.signal({PAUSED:d}, lambda *_: print('heard', flush=True))\n"
    )
    member = start(sys.executable, "-c", f"{word}print('up', flush=True)\ntime.sleep(600)")
    wait_until(lambda: "up" in member.output, "it is up")
    # A wrapper lives on whatever it is told of pauses, in whichever order.
    for number in (GOES_ON, PAUSED, GOES_ON, GOES_ON, PAUSED):
        os.kill(member.wrapper_pid, number)
    time.sleep(0.3)
    assert member.process.poll() is None
    assert "heard" not in member.output
