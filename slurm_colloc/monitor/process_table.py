"""Which processes are whose, with few looks at /proc.

One listing of /proc serves all members; only a process that was not there before is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.host.system.process_owner import (
    find_ancestor,
    read_named_start,
    read_parent,
    read_small,
)

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""

Key = tuple[int, int]
"""A member's number, and the number of its start."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says (proc(5)).

    Attributes:
        parent: Its parent's pid.
        start: When it started, in clock ticks after boot.
        has_ended: It is a zombie.
        own_cpu_s: CPU time of its own.
        children_cpu_s: CPU time of its children that have ended and were waited for.
        threads: How many it has.
        rss_mb: Its resident memory.
    """

    parent: int
    start: int
    has_ended: bool
    own_cpu_s: float
    children_cpu_s: float
    threads: int
    rss_mb: float


def read_stat(pid: int) -> Stat | None:
    """Read one process, None where it is gone."""
    try:
        # The name, in parentheses, may hold anything.
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return Stat(
            parent=int(fields[1]),
            start=int(fields[19]),
            has_ended=fields[0] in (b"Z", b"X"),
            own_cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
            children_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS,
            threads=int(fields[17]),
            rss_mb=int(fields[21]) * _PAGE_MB,
        )
    except (OSError, ValueError, IndexError):
        return None


def read_inner_pid(pid: int) -> int | None:
    """The pid that a process has in a pid namespace of its own (NSpid of proc(5)).

    Returns:
        None where it shares this process's namespace, or is gone.
    """
    try:
        for line in read_small(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"NSpid:"):
                pids = line.split()[1:]
                return int(pids[-1]) if len(pids) > 1 else None
    except (OSError, ValueError):
        pass
    return None


def is_in_initial_pid_namespace() -> bool:
    """Whether this process sees every process of the node that it may see at all.

    In another pid namespace it cannot tell a process of a member's from one that it does not see.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


class ProcessTable:
    """The processes of all members.

    Args:
        pack: The pack's directory, as in its members' environment.
    """

    def __init__(self, pack: str) -> None:
        self._pack = os.fsencode(pack)
        self._wrappers: dict[Key, int] = {}
        self._owners: dict[int, Key] = {}
        self._pids: dict[Key, list[int]] = {}
        self._foreign: set[int] = set()
        self._inner: dict[int, int] = {}
        self._sees_all = is_in_initial_pid_namespace()

    def add(self, key: Key, wrapper_pid: int) -> None:
        """Follow a member from now on."""
        self._wrappers[key] = wrapper_pid
        self._own(wrapper_pid, key)
        # Its processes may have been seen before it was known.
        self._foreign.clear()

    def remove(self, key: Key) -> None:
        """Follow a member no more."""
        self._wrappers.pop(key, None)
        for pid in self._pids.pop(key, []):
            self._owners.pop(pid, None)
            self._inner.pop(pid, None)

    def forget(self, pid: int) -> None:
        """A process has ended."""
        key = self._owners.get(pid)
        if key is not None and pid != self._wrappers.get(key):
            del self._owners[pid]
            self._inner.pop(pid, None)
            self._pids[key].remove(pid)

    def _own(self, pid: int, key: Key) -> None:
        self._owners[pid] = key
        self._pids.setdefault(key, []).append(pid)

    def forget_strangers(self) -> None:
        """Look at every process anew the next time: a pid may have been given out again."""
        self._foreign.clear()

    def list_pids(self, key: Key) -> list[int]:
        """The processes of a member that are known, its wrapper first."""
        return list(self._pids.get(key, ()))

    def look(self) -> None:
        """Find the processes that have come."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._foreign &= pids
        for pid in [pid for pid in self._owners if pid not in pids]:
            self.forget(pid)
        new = pids - self._owners.keys() - self._foreign
        parents: dict[int, int | None] = {}
        for pid in new:
            owner = self._find_owner(pid, parents)
            if owner is None:
                self._foreign.add(pid)
            else:
                self._own(pid, owner)
                inner = read_inner_pid(pid)
                if inner is not None:
                    self._inner[pid] = inner

    def _find_owner(self, pid: int, parents: dict[int, int | None]) -> Key | None:
        def find_parent(one: int) -> int | None:
            if one not in parents:
                parents[one] = read_parent(one)
            return parents[one]

        owner = find_ancestor(pid, self._owners, self._foreign, find_parent)
        if owner is not None:
            return owner
        named = read_named_start(pid, self._pack)
        return named if named in self._wrappers else None

    def share_out(self, by_pid: Mapping[int, float | None]) -> dict[Key, float | None]:
        """Give each member what NVML's lists say of its processes.

        NVML may name a process of a container by the pid that it has there.

        Args:
            by_pid: A size of each process; None where it is not told.

        Returns:
            A sum for each member that has any; None where a part of it is not told, or where it
            cannot be told whether it has any. A member that is missing has none.
        """
        inside: dict[int, set[Key]] = {}
        for pid, inner in self._inner.items():
            inside.setdefault(inner, set()).add(self._owners[pid])
        sums: dict[Key, float | None] = {}
        has_unseen = False
        for pid, size in by_pid.items():
            owner = self._owners.get(pid)
            owners = inside.get(pid, set()) if owner is None else {owner}
            has_unseen |= not owners and pid not in self._foreign
            for one in owners:
                known = sums.get(one, 0.0)
                # Two containers may have a process of the same pid each.
                if size is None or known is None or len(owners) > 1:
                    sums[one] = None
                else:
                    sums[one] = known + size
        for key in self._find_untold(has_unseen=has_unseen):
            sums.setdefault(key, None)
        return sums

    def _find_untold(self, *, has_unseen: bool) -> set[Key]:
        """Members of which it says nothing that none of their processes was found in the lists.

        Args:
            has_unseen: The lists name a process that is not seen here.
        """
        if has_unseen and not self._sees_all:
            return set(self._wrappers)
        return {self._owners[pid] for pid in self._inner}
