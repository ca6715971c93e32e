"""The parent of a runner: it hands signals on, ends as the runner does, and what it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slurm_colloc
from slurm_colloc.host.system.node_processes import read_parent

from ..wait_until import wait_until

ROOT = Path(slurm_colloc.__file__).parents[1]

_RUN = """
import os, signal, sys, time
from slurm_colloc.runtime import guard
from slurm_colloc.runtime.guard import stand_guard
heard = []
def requeue(pack, number, at):
    print(f"{pack} killed by", number, flush=True)
    if sys.argv[2] == "answers late" and not os.path.exists("/proc/self/fd/9"):
        os.dup2(1, 9)
        return None
    if sys.argv[2] == "fails":
        raise RuntimeError("no Slurm, no memory, whatever")
    return sys.argv[2] in ("ends", "answers late")
guard.ASK_AGAIN_S = 0.5
guarded = stand_guard("p", requeue)
for number in (signal.SIGTERM, signal.SIGURG, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(number))
for directory in sys.argv[3:]:
    guarded.announce(directory)
what = sys.argv[1]
child = 0
if what == "leave":
    # As an srun does: it outlives the runner, in a group of its own.
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGURG, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        time.sleep(60)
        os._exit(0)
    what = "wait"
print(os.getpid(), os.getppid(), child, flush=True)
if what == "hear":
    while len(heard) < 3:
        time.sleep(0.01)
    print(sorted(heard), flush=True)
elif what.isdigit():
    sys.exit(int(what))
else:
    time.sleep(60)
"""


def start(
    what: str, *directories: str, requeue: str = "no"
) -> tuple[subprocess.Popen[str], int, int]:
    """A guard, the pid of the runner that it guards, and that of what the runner has started."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _RUN, what, requeue, *directories],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    runner, guard, child = map(int, process.stdout.readline().split())
    assert guard == process.pid != runner
    return process, runner, child


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("status", [0, 1, 137])
def test_it_ends_with_the_runner_s_exit_status(status: int) -> None:
    process, _, _ = start(str(status), "/", requeue="ends")
    # Nothing is waited for, though this directory is always there, and nothing is revived.
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == status


def test_it_sees_its_runner_end_where_ends_of_children_were_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _RUN, "3", "no"], stdout=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert process.wait(timeout=60) == 3


def test_it_hands_on_what_it_is_sent() -> None:
    process, _, _ = start("hear")
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
    process, runner, _ = start("wait", str(first), str(second), str(tmp_path / "gone"))
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
    process, runner, _ = start("wait", str(tmp_path))
    os.kill(runner, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_once_the_files_are_gone_it_asks_what_is_to_be_done_about_a_killed_runner(
    tmp_path: Path, number: signal.Signals
) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    process, runner, _ = start("wait", str(directory), requeue="no")
    os.kill(runner, number)
    directory.rmdir()
    said, _ = process.communicate(timeout=60)
    assert said == f"p killed by {int(number)}\n"
    assert process.returncode == -number


def test_where_slurm_ends_the_rest_it_waits_for_that_and_no_signal_ends_it_before() -> None:
    process, runner, child = start("leave", requeue="ends")
    os.kill(runner, signal.SIGKILL)
    assert read_line(process) == "p killed by 9"
    assert read_parent(child) == process.pid
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGURG):
        process.send_signal(number)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGKILL
    # It was the parent, so nothing is left of it.
    assert not Path(f"/proc/{child}").exists()
    process.communicate()


def test_where_slurm_has_not_answered_it_asks_again_and_stands_meanwhile() -> None:
    process, runner, child = start("leave", requeue="answers late")
    os.kill(runner, signal.SIGKILL)
    assert read_line(process) == "p killed by 9"
    assert Path(f"/proc/{child}").exists()
    # A signal does not end it either.
    process.send_signal(signal.SIGTERM)
    assert read_line(process) == "p killed by 9"
    os.kill(child, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()


def test_it_asks_again_where_nothing_is_left_of_what_its_runner_had_started() -> None:
    process, runner, _ = start("wait", requeue="answers late")
    os.kill(runner, signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert said == "p killed by 9\np killed by 9\n"
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("requeue", ["no", "fails"])
def test_where_nothing_follows_it_ends_at_once(requeue: str) -> None:
    process, runner, child = start("leave", requeue=requeue)
    os.kill(runner, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert Path(f"/proc/{child}").exists()
    os.kill(child, signal.SIGKILL)
    process.communicate()


def test_orphans_of_a_living_runner_are_collected() -> None:
    # An orphan that ended, and would stay as a zombie below a guard that does not look.
    program = """
import os, sys, time
from slurm_colloc.runtime.guard import stand_guard
stand_guard("p", lambda *_: False)
read_end, write_end = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(write_end, str(os.getpid()).encode() + b"\\n")
        time.sleep(0.2)
    os._exit(0)
os.wait()
orphan = int(os.read(read_end, 99))
while os.path.exists(f"/proc/{orphan}"):
    time.sleep(0.01)
sys.exit(7)
"""
    ended = subprocess.run([sys.executable, "-I", "-c", program], check=False, timeout=60)
    assert ended.returncode == 7


def test_a_guard_is_up_before_what_its_runner_needs_is_loaded() -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import slurm_colloc.runtime.__main__
print([name for name in sys.modules if name.split(".")[0] in ("slurm_colloc", "typing", "pathlib")])
"""
    argv = [sys.executable, "-I", "-S", "-c", program, str(ROOT)]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(
        ["slurm_colloc", "slurm_colloc.runtime", "slurm_colloc.process_name",
         "slurm_colloc.runtime.guard",
          "slurm_colloc.runtime.__main__"]
    )  # fmt: skip


# -- several runners --------------------------------------------------------------------------

_SETS = """
import os, signal, sys, time
from slurm_colloc.runtime.guard import fork_keeping_signals, stand_guard
def requeue(pack, number, at):
    print(f"{pack} killed by", number, flush=True)
    return sys.argv[1] == "ends"
def resume(pack):
    print("resumed", pack, flush=True)
guarded = stand_guard("s", requeue, resume, has_starter=True)
heard = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(int(number)))
go_read, go_write = os.pipe()
runners = {}
for name in "abc":
    pid = fork_keeping_signals()
    if pid == 0:
        os.close(go_write)
        os.read(go_read, 1)
        break
    runners[pid] = name
else:
    guarded.name_runners(runners)
    print(*runners, os.getppid(), flush=True)
    os.write(go_write, b"!!!")
    if sys.argv[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)
while not heard:
    time.sleep(0.01)
print(name, heard, flush=True)
sys.exit({"a": 3, "b": 7, "c": 0}[name])
"""


def start_sets(what: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A guard of three runners, and their pids."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _SETS, what], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    *runners, guard = map(int, process.stdout.readline().split())
    assert guard == process.pid
    wait_until(lambda: all(read_parent(pid) == guard for pid in runners), "they are adopted")
    return process, runners


@pytest.mark.parametrize("what", ["no", "dies"])
def test_all_runners_hear_what_the_guard_is_sent_and_it_ends_as_the_worst(what: str) -> None:
    process, _ = start_sets(what)
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=60)
    heard = [line for line in said.splitlines() if "killed" not in line]
    assert sorted(heard) == ["a [10]", "b [10]", "c [10]"]
    assert process.returncode == 7


def test_where_a_killed_runner_is_not_requeued_the_others_go_on() -> None:
    process, runners = start_sets("no")
    os.kill(runners[1], signal.SIGKILL)
    assert read_line(process) == "resumed b"
    assert read_line(process) == "b killed by 9"
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=60)
    assert sorted(said.splitlines()) == ["a [10]", "c [10]"]
    assert process.returncode == -signal.SIGKILL


def test_where_slurm_ends_the_job_the_others_hear_of_it_and_are_waited_for() -> None:
    process, runners = start_sets("ends")
    os.kill(runners[0], signal.SIGSEGV)
    assert read_line(process) == "resumed a"
    assert read_line(process) == "a killed by 11"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert sorted(said.splitlines()) == ["b [15]", "c [15]"]
    assert process.returncode == -signal.SIGSEGV


def test_a_starter_that_fails_ends_it_as_a_runner_would() -> None:
    program = """
import sys
from slurm_colloc.runtime.guard import stand_guard
stand_guard("s", lambda *_: False, has_starter=True)
sys.exit(6)
"""
    ended = subprocess.run([sys.executable, "-I", "-c", program], check=False, timeout=60)
    assert ended.returncode == 6


_HEARD_AT_ONCE = """
import os, signal, time
from slurm_colloc.runtime.guard import fork_keeping_signals
heard = []
signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
lost = 0
for _ in range(200):
    pid = fork_keeping_signals()
    if pid == 0:
        deadline = time.monotonic() + 1.0
        while not heard and time.monotonic() < deadline:
            time.sleep(0.001)
        os._exit(0 if heard else 1)
    os.kill(pid, signal.SIGUSR1)
    lost += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print("lost", lost)
"""


def test_a_signal_that_comes_before_the_child_runs_is_heard() -> None:
    argv = [sys.executable, "-I", "-c", _HEARD_AT_ONCE]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert told == "lost 0\n"
