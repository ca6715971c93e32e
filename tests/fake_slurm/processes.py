"""The processes of the fake's jobs: all that descends from one, wherever its parents have gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container, Iterable

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have this process be the parent of whatever its descendants leave behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def list_descendants(ancestor: int, apart: Container[int] = ()) -> list[int]:
    """All processes below one, without these and what is below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z" and int(name) not in apart:
                    children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    left = [ancestor]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def collect() -> dict[int, int]:
    """The children that have ended, with their wait status."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def unblock() -> None:
    """In a child, before it becomes another program: no signal is held back from that."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
