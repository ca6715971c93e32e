"""Signalling the runner of a pack without Slurm: that process and no other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import identify
from slurm_colloc.session.cancel_and_requeue import signal_runner
from slurm_colloc.store.written_ends import RunnerProcess, write_runner


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def describe(process: subprocess.Popen[bytes]) -> RunnerProcess:
    found = identify(process.pid)
    assert found is not None
    return RunnerProcess(os.uname().nodename, found.pid, found.start_ticks)


def assert_spared(process: subprocess.Popen[bytes]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)


def test_the_runner_itself_gets_it(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    write_runner(tmp_path, describe(process))
    signal_runner(tmp_path, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize(
    "change",
    [
        lambda runner: RunnerProcess("login2", runner.pid, runner.start_ticks),
        lambda runner: RunnerProcess(runner.host, runner.pid, runner.start_ticks - 1),
    ],
    ids=["of another host", "that began later"],
)
def test_a_process_with_its_pid_does_not(
    tmp_path: Path, process: subprocess.Popen[bytes], change: object
) -> None:
    assert callable(change)
    write_runner(tmp_path, change(describe(process)))
    signal_runner(tmp_path, signal.SIGKILL)
    assert_spared(process)


@pytest.mark.parametrize("text", [None, "", "{}", '{"schema": 1, "pid": "x"}'])
def test_what_tells_no_process_signals_none(
    tmp_path: Path, process: subprocess.Popen[bytes], text: str | None
) -> None:
    if text is not None:
        (tmp_path / "runner.json").write_text(text)
    signal_runner(tmp_path, signal.SIGKILL)
    assert_spared(process)
