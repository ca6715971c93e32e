"""Which processes belong to a daemon, by facts of the kernel that a process cannot give itself.

A control group is root's: only root can put a process into it or take one out. A session is the
next best thing where there is no control group; a process can leave it, but enter none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    identify,
    list_running_processes,
    read_process,
)

_FREEZE_S = 0.1
_POLL_S = 0.002


class ControlGroup:
    """What runs in control groups that root has made for one job.

    Args:
        paths: Their directories, one a hierarchy, such as
            /sys/fs/cgroup/pids/slurm_colloc/node-4711-0a1b2c3d.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        # Below its hierarchy's mount point, as /proc/PID/cgroup writes it.
        self._inner = frozenset("/" + "/".join(path.rsplit("/", 2)[1:]) for path in self._paths)

    def list_members(self) -> list[ProcessId]:
        """The processes in any of them that have not ended."""
        found = set()
        for path in self._paths:
            with contextlib.suppress(OSError, ValueError):
                with open(f"{path}/cgroup.procs", encoding="ascii") as file:
                    pids = [int(word) for word in file.read().split()]
                found |= {identity for pid in pids if (identity := identify(pid)) is not None}
        return sorted(found)

    def contains(self, process: Process) -> bool:
        """Whether the kernel has a process in one of them now."""
        try:
            with open(f"/proc/{process.id.pid}/cgroup", encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            return False
        return any(line.split(":", 2)[-1] in self._inner for line in lines)

    def forbid_forks(self) -> None:
        """Let nothing in it make another process, where the kernel has a limit for that."""
        for path in self._paths:
            _write(f"{path}/pids.max", "0")

    def kill_whole(self) -> list[ProcessId]:
        """Have the kernel kill the whole group at once (cgroup.kill, version 2 from Linux 5.14 on).

        Returns:
            What was in it just before; empty where there is no such kill.
        """
        members = self.list_members()
        written = [_write(f"{path}/cgroup.kill", "1") for path in self._paths]
        return members if any(written) else []

    def freeze(self) -> None:
        """Stop the whole group: none runs away while it is signalled (freezer, version 1)."""
        written = [_write(f"{path}/freezer.state", "FROZEN") for path in self._paths]
        if not any(written):
            return
        deadline = time.monotonic() + _FREEZE_S
        # One that waits inside the kernel keeps the group from getting there.
        while time.monotonic() < deadline and "FREEZING" in self._read("freezer.state"):
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        """Let it go on: a signal reaches a frozen process only then."""
        for path in self._paths:
            _write(f"{path}/freezer.state", "THAWED")

    def _read(self, name: str) -> set[str]:
        found = set()
        for path in self._paths:
            with contextlib.suppress(OSError), open(f"{path}/{name}", encoding="ascii") as file:
                found.add(file.read().strip())
        return found


class ProcessSession:
    """What runs in the session that a daemon was started as the leader of.

    While a session has a member the kernel gives its number to no other process. Members that are
    older than the leader, or younger than another process with its pid, are not the daemon's.

    Args:
        leader: The daemon, as it was written down before it became the user's.
    """

    def __init__(self, leader: ProcessId) -> None:
        self._leader = leader

    def list_members(self) -> list[ProcessId]:
        """The processes in it that have not ended."""
        return sorted(
            process.id
            for process in list_running_processes()
            if self._is_member(process) and self._is_whole()
        )

    def contains(self, process: Process) -> bool:
        """Whether the kernel has a process in it now."""
        return self._is_member(process) and self._is_whole()

    def _is_member(self, process: Process) -> bool:
        return (
            process.session_id == self._leader.pid
            and process.id.start_ticks >= self._leader.start_ticks
        )

    def _is_whole(self) -> bool:
        holder = read_process(self._leader.pid)
        return holder is None or holder.id == self._leader

    def forbid_forks(self) -> None:
        """There is no such limit for a session."""

    def kill_whole(self) -> list[ProcessId]:
        """There is no such kill for a session."""
        return []

    def freeze(self) -> None:
        """There is no such state of a session."""

    def thaw(self) -> None:
        """There is no such state of a session."""


class UnitedGroups:
    """What is in any of several groups: a prolog may have been killed between two of them.

    Args:
        groups: The groups.
    """

    def __init__(self, groups: Sequence[ControlGroup | ProcessSession]) -> None:
        self._groups = tuple(groups)

    def list_members(self) -> list[ProcessId]:
        """The processes in any of them that have not ended."""
        return sorted({member for group in self._groups for member in group.list_members()})

    def contains(self, process: Process) -> bool:
        """Whether the kernel has a process in one of them now."""
        return any(group.contains(process) for group in self._groups)

    def forbid_forks(self) -> None:
        """Let nothing in them make another process, where the kernel has a limit for that."""
        for group in self._groups:
            group.forbid_forks()

    def kill_whole(self) -> list[ProcessId]:
        """Have the kernel kill what it can at once; what that was."""
        return [member for group in self._groups for member in group.kill_whole()]

    def freeze(self) -> None:
        """Stop what can be stopped."""
        for group in self._groups:
            group.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        for group in self._groups:
            group.thaw()


def _write(path: str, text: str) -> bool:
    """Write into a file of the kernel's; False where it is not there, or not to be had."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
