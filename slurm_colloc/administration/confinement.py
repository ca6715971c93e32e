"""What a node keeps a user's processes from, tried out: limits of root's daemons, tracing.

One line each, with what to do where something is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from slurm_colloc.administration.verifying import Verification
from slurm_colloc.host.control_groups import read_hierarchies, remove_groups
from slurm_colloc.host.daemon_limits import DaemonLimits, LimitedGroups, make_limited_groups
from slurm_colloc.host.policy import Policy

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
FIRST_WITH_RUN_IN_JOB = (24, 5)
_INSIDE_JOB = "PrologFlags=Alloc,Contain,RunInJob in slurm.conf"


def check_limits(found: Verification, policy: Policy, slurm: Mapping[str, str]) -> None:
    """Try whether this node can limit a daemon, and say what it cannot.

    Args:
        found: The verification.
        policy: The node's policy.
        slurm: What `scontrol show config` says; empty where it was not asked.
    """
    if "runinjob" in slurm.get("PrologFlags", "").lower():
        found.add("limits", ok=True, detail="PrologFlags has RunInJob: the job's own limits hold")
        return
    limits = DaemonLimits((), policy.daemon_memory_mb, policy.daemon_processes, 1)
    made = make_limited_groups(read_hierarchies(), f"verify-{os.getpid()}", limits)
    left = remove_groups(made.paths)
    advice = f"; the job's own limits would hold with {_INSIDE_JOB}" if _has_flag(slurm) else ""
    if not made.missing:
        words = (
            f"a daemon gets the job's GPUs and CPUs, {policy.daemon_memory_mb} MiB of host memory, "
            f"{policy.daemon_processes} processes{advice}"
        )
        found.add("limits", ok=True, detail=words)
    else:
        # A site that requires them gets no daemon here.
        found.add(
            "limits",
            ok=False if policy.require_limits else None,
            detail=f"{_describe_missing(made)}: {_advise(slurm)}",
        )
    for text in left:
        found.add("limits", ok=False, detail=text)


def _describe_missing(made: LimitedGroups) -> str:
    reasons = "; ".join(made.refused) or "there is no such cgroup controller"
    return f"a daemon's {', '.join(made.missing)} cannot be limited ({reasons})"


def _advise(slurm: Mapping[str, str]) -> str:
    first = "mount the cgroup controllers devices, memory and pids, or cgroup version 2"
    return f"{first}, or set {_INSIDE_JOB}" if _has_flag(slurm) else first


def _has_flag(slurm: Mapping[str, str]) -> bool:
    match = re.match(r"(\d+)\.(\d+)", slurm.get("SLURM_VERSION", ""))
    return match is not None and (int(match[1]), int(match[2])) >= FIRST_WITH_RUN_IN_JOB


def check_tracing(found: Verification, path: str = YAMA) -> None:
    """Say whether a user's processes may trace each other.

    Args:
        found: The verification.
        path: Yama's setting.
    """
    try:
        with open(path, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        scope = ""
    if scope not in ("", "0"):
        found.add("Yama", ok=True, detail=f"kernel.yama.ptrace_scope is {scope}")
        return
    why = "is 0" if scope else "is not there: this kernel has no Yama"
    words = (
        f"kernel.yama.ptrace_scope {why}; one user's processes can trace each other, but not the "
        "daemons of root's prologs, which have a group id of their own"
    )
    advice = "; sysctl kernel.yama.ptrace_scope=1 forbids it" if scope else ""
    found.add("Yama", ok=None, detail=words + advice)
