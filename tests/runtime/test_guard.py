"""The parent of a runner: it hands signals on, ends as the runner does, and waits for files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_RUN = """
import os, signal, sys, time
from slurm_colloc.runtime.guard import stand_guard
heard = []
guarded = stand_guard()
for number in (signal.SIGTERM, signal.SIGURG, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(number))
for directory in sys.argv[2:]:
    guarded.announce(directory)
print(os.getpid(), os.getppid(), flush=True)
what = sys.argv[1]
if what == "hear":
    while len(heard) < 3:
        time.sleep(0.01)
    print(sorted(heard), flush=True)
elif what.isdigit():
    sys.exit(int(what))
else:
    time.sleep(60)
"""


def start(*words: str) -> tuple[subprocess.Popen[str], int]:
    """A guard, and the pid of the runner that it guards."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _RUN, *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    runner, guard = map(int, process.stdout.readline().split())
    assert guard == process.pid != runner
    return process, runner


@pytest.mark.parametrize("status", [0, 1, 137])
def test_it_ends_with_the_runner_s_exit_status(status: int) -> None:
    process, _ = start(str(status), "/")
    # Nothing is waited for: this directory is always there.
    assert process.wait(60) == status
    process.communicate()


def test_it_hands_on_what_it_is_sent() -> None:
    process, _ = start("hear")
    for number in (signal.SIGUSR1, signal.SIGURG, signal.SIGTERM):
        process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    wanted = sorted([signal.SIGUSR1, signal.SIGURG, signal.SIGTERM])
    assert said.strip() == str([int(number) for number in wanted])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_after_a_killed_runner_it_waits_for_the_directories_and_ends_likewise(
    tmp_path: Path, number: signal.Signals
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.symlink_to("/nowhere")
    process, runner = start("wait", str(first), str(second), str(tmp_path / "gone"))
    os.kill(runner, number)
    for path in (first, second):
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        path.rmdir() if path is first else path.unlink()
    assert process.wait(60) == -number
    process.communicate()


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    process, runner = start("wait", str(tmp_path))
    os.kill(runner, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
