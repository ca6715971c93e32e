"""The limits of a daemon that root starts for a job: devices, host memory, processes, CPUs.

The daemon runs outside the job's own control group unless Slurm runs the prolog inside the job
(PrologFlags=RunInJob), so without these it could use what the job was not given. Devices and CPUs
are the job's own. Its host memory is in none of the prolog's variables (Slurm 22.05 to 26.05), so
that limit and the one on processes are the site's.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from slurm_colloc.errors import CollocError
from slurm_colloc.host.system.child_programs import run_as
from slurm_colloc.host.system.control_groups import (
    LAST_GPU_MINOR,
    NVIDIA_MAJOR,
    Hierarchy,
    attach_device_program,
    make_group,
    write_setting,
)
from slurm_colloc.host.system.directories import Owner

DEVICES, HOST_MEMORY, PROCESSES, CPUS = "devices", "host memory", "processes", "CPUs"
NEEDED = (DEVICES, HOST_MEMORY, PROCESSES)
"""What keeps a daemon within its job; a limit on CPUs only keeps it from slowing others."""

_PERIOD_US = 100_000
_CONTROLLERS = {DEVICES: "devices", HOST_MEMORY: "memory", PROCESSES: "pids", CPUS: "cpu"}


@dataclass(frozen=True)
class DaemonLimits:
    """What a job's daemon may use.

    Args:
        gpu_minors: N of each /dev/nvidiaN that is the job's.
        host_memory_mb: Of the daemon, its servers and its control programs together (MiB).
        processes: How many threads and processes they may have.
        cpus: How many CPUs; None for no limit.
    """

    gpu_minors: tuple[int, ...]
    host_memory_mb: int
    processes: int
    cpus: int | None = None


@dataclass(frozen=True)
class LimitedGroups:
    """Groups that were made for a daemon.

    Args:
        paths: Their directories.
        limits: What they limit, in the words above.
        refused: What could not be had, with reasons.
    """

    paths: tuple[str, ...] = ()
    limits: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Which of NEEDED are not limited."""
        return tuple(name for name in NEEDED if name not in self.limits)

    @property
    def why_missing(self) -> str:
        """The reasons."""
        return "; ".join(self.refused) or "there is no such cgroup controller"


def make_limited_groups(
    hierarchies: Iterable[Hierarchy], label: str, limits: DaemonLimits
) -> LimitedGroups:
    """Make a job's group in each hierarchy and set what it limits.

    Args:
        hierarchies: Where.
        label: The groups' name, unique on this node.
        limits: What the job's daemon may use.
    """
    paths: list[str] = []
    reached: set[str] = set()
    refused: dict[str, str] = {}
    for hierarchy in hierarchies:
        try:
            path = make_group(hierarchy, label)
        except OSError as error:
            refused[hierarchy.mount] = f"{hierarchy.mount}: {error.strerror}"
            continue
        paths.append(path)
        for name, controller in _CONTROLLERS.items():
            is_there = hierarchy.version == 2 or controller in hierarchy.controllers
            if name in reached or not is_there:
                continue
            try:
                _set_limit(path, hierarchy.version, name, limits)
            except OSError as error:
                refused[name] = f"no limit on {name} in {path}: {error.strerror}"
            else:
                reached.add(name)
                refused.pop(name, None)
    # Version 2 alongside version 1 has no controller that version 1 has.
    told = tuple(text for name, text in refused.items() if name not in reached)
    return LimitedGroups(tuple(paths), frozenset(reached), told)


def _set_limit(path: str, version: int, name: str, limits: DaemonLimits) -> None:
    """Set one limit; OSError where this hierarchy has none."""
    if name == DEVICES:
        if version == 2:
            attach_device_program(path, limits.gpu_minors)
        else:
            _deny_devices(path, limits.gpu_minors)
    elif name == HOST_MEMORY:
        size = str(limits.host_memory_mb << 20)
        write_setting(f"{path}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}", size)
        # Without swap accounting there is no such file.
        with contextlib.suppress(OSError):
            if version == 2:
                write_setting(f"{path}/memory.swap.max", "0")
            else:
                write_setting(f"{path}/memory.memsw.limit_in_bytes", size)
    elif name == PROCESSES:
        write_setting(f"{path}/pids.max", str(limits.processes))
    elif limits.cpus is not None:
        quota_us = limits.cpus * _PERIOD_US
        if version == 2:
            write_setting(f"{path}/cpu.max", f"{quota_us} {_PERIOD_US}")
        else:
            write_setting(f"{path}/cpu.cfs_period_us", str(_PERIOD_US))
            write_setting(f"{path}/cpu.cfs_quota_us", str(quota_us))


def _deny_devices(path: str, minors: Collection[int]) -> None:
    """Deny the device files of all other GPUs, those too that are not there yet."""
    for minor in range(LAST_GPU_MINOR + 1):
        if minor not in minors:
            write_setting(f"{path}/devices.deny", f"c {NVIDIA_MAJOR}:{minor} rwm")


DAEMON_GID = 0x7FFFFF00
"""Group of every daemon that root starts, and of no user. The kernel lets a process be traced, and
its memory and descriptors be reached through /proc, only where group ids match as well (Linux,
__ptrace_may_access), so the user's other processes cannot, with or without Yama. It is beyond the
ranges that distributions and systemd give out (systemd's UIDS-GIDS)."""

_GROUPS_S = 2.0


def find_owner(uid: int, gid: int) -> Owner:
    """Whom the daemon runs as: the user, in a group of its own and in all that the user is in.

    A user's groups can be told only if the directory service answers in time.
    """

    def read_groups() -> str:
        name = pwd.getpwuid(uid).pw_name
        return " ".join(map(str, os.getgrouplist(name, gid)))

    groups = {gid}
    # A directory service may hang, or not know the user: Slurm's numbers do then.
    with contextlib.suppress(CollocError, OSError, ValueError):
        words = run_as(Owner(uid, gid, (gid,)), read_groups, timeout_s=_GROUPS_S)
        groups |= {int(word) for word in words.split()}
    return Owner(uid, DAEMON_GID, tuple(sorted(groups)))
