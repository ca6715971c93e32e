"""All processes below this one: collected, listed, signalled and ended; who: the user.

Also: OOM kills of a member, as the kernel counts them for its memory cgroup (v1 or v2).

For programs that are the reaper of what they have started (PR_SET_CHILD_SUBREAPER): the wrapper of
a member, and what enters one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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


# ---- OOM kills of a member, as the kernel counts them for its memory cgroup (v1 or v2) -----------


def count_oom_kills(
    before: tuple[int, bool] | None,
    after: tuple[int, bool] | None,
    status: int,
    launch: dict[str, Any],
) -> int | None:
    """The OOM kills of this member; None where none can be read.

    A memory cgroup that it shares, as plain processes do, counts those of its neighbours, too:
    there they are its own only where its script has died of KILL, or says so of what it ran.
    """
    if before is None or after is None:
        return None
    is_own = after[1] and not launch["shares_cgroup"]
    return after[0] - before[0] if is_own or status in (9, 137 << 8) else 0


def read_oom_kills() -> tuple[int, bool] | None:
    """OOM kills so far in this process's memory cgroup (v1 or v2); None where none can be read.

    Returns:
        The kills, and whether Slurm made the cgroup for this step.
    """
    lines = [line.split(":", 2) for line in read("/proc/self/cgroup").splitlines()]
    for hierarchy, controllers, path in lines:
        if "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.oom_control"
        elif hierarchy == "0" and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            root, name = "/sys/fs/cgroup", "memory.events"
        else:
            continue
        # The limit may sit on this group (task_N) or on the step's above it.
        groups = [path, os.path.dirname(path)] if "/step_" in path else [path]
        total = None
        for group in groups:
            pairs = (line.split()[:2] for line in read(f"{root}{group}/{name}").splitlines())
            words = dict(pair for pair in pairs if len(pair) == 2)
            if "oom_kill" in words:
                total = max(total or 0, int(words["oom_kill"]))
        if total is not None:
            return total, "/step_" in path
    return None
