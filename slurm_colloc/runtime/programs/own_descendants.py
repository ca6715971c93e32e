"""All processes below this one: collected, listed, signalled and ended; who: the user.

For programs that are the reaper of what they have started (PR_SET_CHILD_SUBREAPER): the wrapper of
a member, and what enters one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

_LEFTOVER_GRACE_S = 2.0
UNKILLABLE_S = 60.0
"""As slurm.conf(5), UnkillableStepTimeout: what hangs in the kernel for longer is left to it."""


def reap(child: int) -> int | None:
    """Collect every ended descendant; the child's status once it is there."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = ended[1]
    return status


def list_descendants() -> list[int]:
    """Process ids below this one; orphans stay below it because it is their reaper."""
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        tasks = []
        with contextlib.suppress(OSError):
            tasks = os.listdir(f"/proc/{pid}/task")
        for task in tasks:
            # One that has ended meanwhile says nothing of the others.
            children = [int(word) for word in read(f"/proc/{pid}/task/{task}/children").split()]
            found += children
            todo += children
    return found


def signal_all(number: int) -> None:
    """Send a signal to every process of the member but this one.

    A TERM to an srun kills its step at once (srun(1), 22.05 to 26.05); the runner sends TERM to
    the tasks of such a step instead.
    """
    for pid in list_descendants():
        if number != signal.SIGTERM or read(f"/proc/{pid}/comm") != "srun\n":
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def read(path: str) -> str:
    """Read a small file of the kernel's; empty where there is none."""
    with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
        return file.read()
    return ""


def end_leftovers(kill_at: float | None) -> None:
    """End what the script left running; where the member is being ended, KILL at `kill_at`.

    A process that no KILL ends, as on a file server that hangs, is not waited for for ever: how
    the script ended is to be told.
    """
    deadline = kill_at if kill_at is not None else time.monotonic() + _LEFTOVER_GRACE_S
    give_up_at = max(deadline, time.monotonic()) + UNKILLABLE_S
    signal_all(signal.SIGTERM)
    while list_descendants():
        signal.sigtimedwait((signal.SIGCHLD,), 0.05)
        reap(0)
        now = time.monotonic()
        if now > give_up_at:
            return
        if now > deadline:
            signal_all(signal.SIGKILL)
            deadline = now + 0.5
