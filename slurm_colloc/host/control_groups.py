"""A cgroup of its own for a daemon that outlives the hook which started it; who: root.

Restarting slurmd may end all that is in its service's cgroup, so nothing of ours stays there. A
group of version 2 also ends all that is in it for sure. Where neither can be had, the daemon's
session tells what belongs to it, and that is said.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

from slurm_colloc.host.processes import ProcessId, identify, read_process

NAME = "slurm_colloc"
_REMOVAL_S = 0.5
_POLL_S = 0.005
_STEP_DAEMON = "slurmstepd"
_DAEMONS = ("slurmd", _STEP_DAEMON)


def find_hierarchies(mountinfo: str) -> tuple[str, ...]:
    """Where service managers and slurmd keep their processes apart; pure.

    Args:
        mountinfo: The text of /proc/self/mountinfo.

    Returns:
        Mount points of cgroup version 2, and of systemd's own hierarchy of version 1.
    """
    found = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if not separator or len(fields) < 6 or len(kinds) < 3:
            continue
        # A mount of a part of the tree, as in a container, is none where groups can be made.
        if fields[3] == "/" and (
            kinds[0] == "cgroup2"
            or (kinds[0] == "cgroup" and "name=systemd" in kinds[2].split(","))
        ):
            found.append(fields[4])
    return tuple(dict.fromkeys(found))


def read_hierarchies() -> tuple[str, ...]:
    """The same of this machine."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return find_hierarchies(file.read())
    except OSError:
        return ()


def find_slurm_daemon(pid: int) -> str:
    """The name of the nearest of Slurm's daemons above a process; empty where there is none.

    A hook's own parent is the shell of its script.

    Args:
        pid: The first process to look at.
    """
    while pid > 1:
        process = read_process(pid)
        if process is None:
            break
        if process.name.startswith(_DAEMONS):
            return process.name
        pid = process.parent_pid
    return ""


def runs_inside_job(daemon_name: str) -> bool:
    """Whether Slurm runs its hooks inside the job (PrologFlags=RunInJob): there all is the job's.

    Args:
        daemon_name: The name of Slurm's daemon that runs the hook.
    """
    return daemon_name.startswith(_STEP_DAEMON)


def make_groups(label: str, hierarchies: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make a group in each hierarchy.

    Args:
        label: Its name, unique on this node.
        hierarchies: Mount points.

    Returns:
        Paths of the groups, and why there is none in the others.
    """
    made, refused = [], []
    for mount in hierarchies:
        path = os.path.join(mount, NAME, label)
        try:
            os.makedirs(path, 0o755, exist_ok=True)
            made.append(path)
        except OSError as error:
            refused.append(f"{mount}: {error.strerror}")
    return tuple(made), tuple(refused)


def enter_groups(groups: Iterable[str], pid: int) -> tuple[str, ...]:
    """Move a process into groups; what did not work, with reasons."""
    refused = []
    for group in groups:
        try:
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(pid))
        except OSError as error:
            refused.append(f"{group}: {error.strerror}")
    return tuple(refused)


def list_members(groups: Iterable[str]) -> list[ProcessId]:
    """The processes in groups."""
    found = set()
    for group in groups:
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
                pids = [int(word) for word in file.read().split()]
            found |= {identity for pid in pids if (identity := identify(pid)) is not None}
    return sorted(found)


def remove_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """Remove groups whose processes have ended; which of them are left, with reasons."""
    left = []
    for group in groups:
        deadline = time.monotonic() + _REMOVAL_S
        while True:
            try:
                os.rmdir(group)
            except FileNotFoundError:
                break
            except OSError as error:
                # The kernel takes a moment to forget a process that has just ended.
                if time.monotonic() > deadline:
                    left.append(f"{group}: {error.strerror}")
                    break
                time.sleep(_POLL_S)
                continue
            break
        # The last one of this node takes the common parent along.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(group))
    return tuple(left)


def set_ordinary_oom_score(pid: int) -> None:
    """Take back the protection from the out-of-memory killer that slurmd hands down."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file,
    ):
        file.write("0")
