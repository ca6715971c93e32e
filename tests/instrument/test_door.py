"""A program waits before its first use of a GPU while its runner keeps the door closed.

PyTorch is the real one. Without a GPU its lazy start ends in an exception of its own, which is what
a program sees as soon as it has passed the door.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.instrument.layout import DOOR, GPU_USED

from ..wait_until import wait_until
from .counted_programs import build_environment

pytestmark = pytest.mark.torch

USE_GPU = """
def use_gpu(begin=torch.cuda.init):
    try:
        begin()
    except (AssertionError, RuntimeError):
        pass
"""


class Door:
    """The door of a member, as its runner keeps it.

    Args:
        directory: Of its counter files.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / DOOR
        self.mark = directory / GPU_USED
        self._directory = directory
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._programs: list[subprocess.Popen[str]] = []

    def start(self, code: str, **environment: str) -> subprocess.Popen[str]:
        """Start a program that imports torch."""
        program = subprocess.Popen(
            [sys.executable, "-c", f"import torch\n{USE_GPU}{code}"],
            env=build_environment(self._directory, **environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._programs.append(program)
        return program

    def wait_for(self, program: subprocess.Popen[str]) -> None:
        """Until a process of the program waits at the door."""
        wait_until(self.mark.exists, "it has come", patience_s=60)
        wait_until(lambda: is_waiting(program.pid), "it waits", patience_s=60)

    def open(self, content: bytes = b"") -> None:
        """Let it on."""
        self._path.unlink(missing_ok=True)
        os.write(self._descriptor, content)
        os.close(self._descriptor)
        self._descriptor = -1

    def close(self) -> None:
        """End what is left."""
        for program in self._programs:
            program.kill()
            program.wait()
            for stream in (program.stdin, program.stdout):
                if stream is not None:
                    stream.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)


def is_waiting(pid: int) -> bool:
    """Whether one of a process's threads waits for a lock on a file."""
    tasks = Path(f"/proc/{pid}/task").glob("*/syscall")
    # flock(2) has number 73 on x86-64.
    return any(path.read_text().split()[0] == "73" for path in tasks)


def end(program: subprocess.Popen[str]) -> str:
    """What it has written, once it has ended."""
    out, _ = program.communicate(timeout=60)
    return out


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    kept = Door(tmp_path)
    yield kept
    kept.close()


BEGINNINGS = {
    "init": "torch.cuda.init",
    "a tensor": "lambda: torch.zeros(1, device='cuda')",
    "a module that has imported the function": "torch.cuda.memory._lazy_init",
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_it_waits_before_its_first_use_of_a_gpu(door: Door, begin: str) -> None:
    program = door.start(
        f"torch.cuda.is_available(); print('loaded', flush=True); use_gpu({begin}); print('used')\n"
        "print(torch.cuda._lazy_init.__code__.co_filename.endswith('torch/cuda/__init__.py'))"
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "loaded\n"
    door.wait_for(program)
    door.open()
    # And of the door nothing is left.
    assert end(program) == "used\nTrue\n"


def test_without_a_door_it_goes_on_and_says_that_it_has_come(door: Door) -> None:
    door.open()
    assert end(door.start("use_gpu(); print('used')")) == "used\n"
    assert door.mark.exists()


def test_who_uses_no_gpu_has_not_come(door: Door) -> None:
    code = "torch.manual_seed(1); torch.zeros(1); torch.cuda.is_available(); print('done')"
    assert end(door.start(code)) == "done\n"
    assert not door.mark.exists()


def test_a_process_that_was_forked_meanwhile_is_not_kept(door: Door) -> None:
    # What the workers of a DataLoader do first.
    program = door.start("""
import os, threading, time
threading.Thread(target=use_gpu, daemon=True).start()
input()
child = os.fork()
if not child:
    torch.manual_seed(1)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
""")
    door.wait_for(program)
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    assert end(program) == "7\n"


def test_each_process_of_a_member_waits(door: Door) -> None:
    program = door.start("""
import os
child = os.fork()
use_gpu()
if not child:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    door.wait_for(program)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    wait_until(lambda: is_waiting(int(children.read_text())), "the other one waits", patience_s=60)
    door.open()
    assert end(program) == "7\n"


def test_a_signal_ends_it_and_its_handler_may_have_it_wait_again(door: Door) -> None:
    program = door.start("""
import signal
class Told(Exception):
    pass
def tell(number, frame):
    raise Told
signal.signal(signal.SIGUSR1, tell)
try:
    use_gpu()
except Told:
    print("told", flush=True)
use_gpu()
""")
    door.wait_for(program)
    program.send_signal(signal.SIGUSR1)
    assert program.stdout is not None
    assert program.stdout.readline() == "told\n"
    wait_until(lambda: is_waiting(program.pid), "it waits again", patience_s=60)
    program.send_signal(signal.SIGTERM)
    assert end(program) == ""
    assert program.returncode == -signal.SIGTERM


def test_what_has_changed_meanwhile_is_in_its_environment(door: Door) -> None:
    program = door.start(
        "import os; use_gpu(); print(os.environ['END'], os.environ.get('GONE'))", END="5"
    )
    door.wait_for(program)
    door.open(b"END=1234\0GONE=1\0")
    assert end(program) == "1234 None\n"


def test_it_goes_on_when_its_runner_is_killed(door: Door) -> None:
    door.open()
    path = door.mark.with_name(DOOR)
    path.touch()
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); "
        "print(flush=True); time.sleep(900)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        program = door.start("use_gpu(); print('used')")
        door.wait_for(program)
        holder.kill()
    assert end(program) == "used\n"
