"""A parent that outlives a runner which is killed, until the files of its MPS daemon are gone.

Slurm ends all that a batch script has left in the moment in which its own process ends, and with
it the keeper that removes those files. So that process is this one: it does nothing but hand on
signals and wait, and a runner that dies of a signal takes its keeper with it a moment later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NoReturn

HANDED_ON = (
    signal.SIGTERM,
    signal.SIGURG,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGINT,
)
"""What Slurm, csub and users send to a batch script."""

FILES_WAIT_S = 3.0
"""How long the keeper may take to remove its files; it needs milliseconds."""

_POLL_S = 0.005


class Guarded:
    """A runner's end of the line to its guard.

    Args:
        descriptor: Where it writes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def announce(self, directory: str) -> None:
        """Say which directory must be gone before Slurm may end everything."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, os.fsencode(directory) + b"\n")


def stand_guard() -> Guarded:
    """Go on as a child of this process, which ends as the child does.

    Raises:
        OSError: There is no second process to be had.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # Nothing may be lost between the fork and the handlers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    child = os.fork()
    if child != 0:
        os.close(write_end)
        for number in HANDED_ON:
            signal.signal(number, lambda received, _: _hand_on(child, received))
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _watch(child, read_end)
    os.close(read_end)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Guarded(write_end)


def _hand_on(child: int, number: int) -> None:
    # The child is not collected before this process ends, so its pid is nobody else's.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _watch(child: int, read_end: int) -> NoReturn:
    _, status = os.waitpid(child, 0)
    for handed_on in HANDED_ON:
        signal.signal(handed_on, signal.SIG_IGN)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    deadline = time.monotonic() + FILES_WAIT_S
    for directory in _read_directories(read_end):
        while os.path.lexists(directory) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _read_directories(read_end: int) -> list[str]:
    data = b""
    while chunk := os.read(read_end, 65536):
        data += chunk
    return [os.fsdecode(line) for line in data.splitlines()]
