"""Where a daemon that outlives the hook which started it has control groups of its own; who: root.

Restarting slurmd may end all that is in its service's group, so nothing of ours stays there. The
groups also carry the daemon's limits (daemon_limits) and say what has to be ended (process_groups).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_colloc.host.system.node_processes import read_process

NAME = "slurm_colloc"
WANTED = ("devices", "memory", "pids", "freezer", "cpu")
"""Controllers of version 1 that limit the daemon, or help to end it."""

_ATTEMPTS = 100
_REMOVAL_S = 0.5
_POLL_S = 0.005
_STEP_DAEMON = "slurmstepd"
_DAEMONS = ("slurmd", _STEP_DAEMON)


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree of control groups.

    Args:
        mount: Where.
        version: 1 or 2.
        controllers: Of version 1 those it has; empty for version 2, whose group says itself.
    """

    mount: str
    version: int
    controllers: tuple[str, ...] = ()


def find_hierarchies(mountinfo: str) -> tuple[Hierarchy, ...]:
    """Where groups of our own can be made; pure.

    Args:
        mountinfo: The text of /proc/self/mountinfo.

    Returns:
        Version 2, systemd's own hierarchy of version 1, and those with a controller of WANTED.
    """
    found = {}
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        # A mount of a part of the tree, as in a container, is none where groups can be made.
        if not separator or len(fields) < 6 or len(kinds) < 3 or fields[3] != "/":
            continue
        options = kinds[2].split(",")
        if kinds[0] == "cgroup2":
            found[fields[4]] = Hierarchy(fields[4], 2)
        elif kinds[0] == "cgroup":
            names = tuple(name for name in options if name in WANTED)
            if names or "name=systemd" in options:
                found[fields[4]] = Hierarchy(fields[4], 1, names)
    return tuple(found.values())


def read_hierarchies() -> tuple[Hierarchy, ...]:
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


def build_group_path(hierarchy: Hierarchy, label: str) -> str:
    """Where a job's group is in a hierarchy; pure.

    Args:
        hierarchy: The hierarchy.
        label: The group's name, unique on this node.
    """
    return os.path.join(hierarchy.mount, NAME, label)


def make_group(hierarchy: Hierarchy, label: str) -> str:
    """Make a job's group in a hierarchy; its path.

    Raises:
        OSError: It cannot be made.
    """
    path = build_group_path(hierarchy, label)
    for left in reversed(range(_ATTEMPTS)):
        _make_parent(hierarchy, os.path.dirname(path))
        try:
            os.mkdir(path, 0o755)
            break
        except FileExistsError:
            break
        except FileNotFoundError:
            # Another hook has taken the common parent along, as remove_groups does.
            if not left:
                raise
    return path


def _make_parent(hierarchy: Hierarchy, parent: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(parent, 0o755)
    if hierarchy.version == 2:
        # A controller is in a group only where all groups above pass it on.
        for above in (hierarchy.mount, parent):
            for controller in ("memory", "pids", "cpu"):
                with contextlib.suppress(OSError):
                    write_setting(f"{above}/cgroup.subtree_control", f"+{controller}")


def write_setting(path: str, text: str) -> None:
    """Write into a file of the kernel's.

    Raises:
        OSError: It is not there, or the kernel does not take it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def enter_groups(groups: Iterable[str]) -> None:
    """Move this process into groups.

    Args:
        groups: Their paths.

    Raises:
        OSError: One does not take it.
    """
    for group in groups:
        write_setting(f"{group}/cgroup.procs", "0")


def set_ordinary_oom_score() -> None:
    """Give up the protection from the out-of-memory killer that slurmd hands down."""
    with contextlib.suppress(OSError):
        write_setting("/proc/self/oom_score_adj", "0")


def remove_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """Remove groups whose processes have ended; which of them are left, with reasons."""
    left = []
    deadline = time.monotonic() + _REMOVAL_S
    for group in groups:
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
