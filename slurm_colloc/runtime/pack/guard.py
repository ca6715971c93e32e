"""The batch script's own process: the parent of a runner, which it outlives where that is killed.

Slurm ends all that a batch script has left in the moment in which its own process ends. So that
process is this one. It does nothing but hand on signals and wait. After a runner that died of a
signal it waits until the files of the pack's MPS daemon are gone, and has Slurm asked to start the
pack again; then its members have their time to end, as at every requeue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

# A guard stands for as long as its pack runs: nothing is loaded for its types alone.
TYPE_CHECKING = False
if TYPE_CHECKING:
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

ORPHANS_WAIT_S = 600.0
"""How long Slurm may take to end what a runner has left; it does after KillWait at the latest."""

ResumePaused = Callable[[], object]
"""Lets members go on that the runner had paused."""

Requeue = Callable[[int], bool]
"""Told the signal that a runner died of; True where Slurm ends by itself what it has left."""

_PR_SET_CHILD_SUBREAPER = 36
_FILES_POLL_S = 0.005
_ORPHANS_POLL_S = 0.05


class GuardPipe:
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


def stand_guard(
    requeue: Requeue | None = None, resume_paused: ResumePaused = lambda: None
) -> GuardPipe:
    """Go on as a child of this process, which ends as the child does.

    Args:
        resume_paused: Called after a child that was killed.
        requeue: What is to be done about a child that was killed; None for nothing.

    Raises:
        OSError: There is no second process to be had.
    """
    if requeue is not None:
        # Before there is a runner that could be killed; it does not inherit this.
        _adopt_orphans()
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # Nothing may be lost between the fork and the handlers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    try:
        child = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    if child != 0:
        os.close(write_end)
        for number in HANDED_ON:
            signal.signal(number, lambda received, _: _hand_on(child, received))
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _watch(child, read_end, requeue, resume_paused)
    os.close(read_end)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return GuardPipe(write_end)


def _hand_on(child: int, number: int) -> None:
    # Once the child is collected nothing is handed on any more, so its pid is no other's.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)  # noqa: TID251 - its own


def _watch(
    child: int, read_end: int, requeue: Requeue | None, resume_paused: ResumePaused
) -> NoReturn:
    pid, status = os.waitpid(-1, 0)
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    for handed_on in HANDED_ON:
        signal.signal(handed_on, signal.SIG_IGN)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    # Whatever the runner had stopped is to hear what Slurm sends to it next.
    with contextlib.suppress(Exception):
        resume_paused()
    deadline = time.monotonic() + FILES_WAIT_S
    for directory in _read_directories(read_end):
        while os.path.lexists(directory) and time.monotonic() < deadline:
            time.sleep(_FILES_POLL_S)
    number = os.WTERMSIG(status)
    # Whatever goes wrong with it, the pack ends as it would without.
    with contextlib.suppress(Exception):
        if requeue is not None and requeue(number):
            _wait_for_orphans()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # noqa: TID251 - its own
    os._exit(128 + number)


def _adopt_orphans() -> None:
    """What a killed runner leaves comes to this process, which sees it end."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    """Wait until Slurm has ended them: its TERM gives members the time to save what they have."""
    deadline = time.monotonic() + ORPHANS_WAIT_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_ORPHANS_POLL_S)


def _read_directories(read_end: int) -> list[str]:
    data = b""
    # All has been written. Its end is not waited for: another process may hold the other side.
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(read_end, 65536):
            data += chunk
    return [os.fsdecode(line) for line in data.splitlines()]
