"""OOM kills of a member, as the kernel counts them for its memory cgroup (v1 or v2)."""

from __future__ import annotations

import os

from slurm_colloc.runtime.programs.own_descendants import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
