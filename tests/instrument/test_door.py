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
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.instrument.layout import DOOR, GPU_USED
from slurm_colloc.runtime.queue.members import Member  # noqa: F401 - the package is importable

from ..wait_until import wait_until
from .bed import build_environment

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
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
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
            assert program.stdout is not None
            program.stdout.close()
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
    "a part of torch.cuda that has imported it": "torch.cuda.memory._lazy_init",
    "an id": "torch.cuda.current_device",
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_it_waits_before_its_first_use_of_a_gpu(door: Door, begin: str) -> None:
    program = door.start(f"print('loaded', flush=True); use_gpu({begin}); print('used')")
    assert program.stdout is not None
    assert program.stdout.readline() == "loaded\n"
    if "device" in begin and begin.startswith("lambda"):
        # A build without CUDA never comes to its lazy start from C++.
        assert end(program) == "used\n"
        return
    door.wait_for(program)
    assert program.poll() is None
    door.open()
    assert end(program) == "used\n"
