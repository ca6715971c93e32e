"""Processes of this node, as the kernel shows them; nothing is signalled here.

A pid proves nothing by itself, because the kernel gives it out again. A process is its pid and its
start time. What is read (stat, status, cgroup) never waits for another process's mmap_lock, as
cmdline, environ and maps may.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_POLL_S = 0.005
# The same on every Linux architecture since 5.1 (arch/*/entry/syscalls); for a Python that was
# built against older headers.
_SYS_PIDFD_OPEN = 434


@dataclass(frozen=True, order=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same pid.

    Args:
        pid: Its number.
        start_ticks: Its start in clock ticks after boot (proc(5), field 22 of stat).
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Process:
    """One line of the process table.

    Args:
        id: Which process.
        parent_pid: Its parent, 1 or a subreaper for an orphan.
        session_id: Pid of the process that made its session.
        state: One letter of proc(5): `D` cannot be killed at present, `Z` has ended.
        name: The program's name, at most 15 bytes.
    """

    id: ProcessId
    parent_pid: int
    session_id: int
    state: str
    name: str

    @property
    def has_ended(self) -> bool:
        """Only its exit status is left."""
        return self.state in "ZX"


def read_process(pid: int) -> Process | None:
    """Read one process, a zombie too; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may itself hold blanks and parentheses.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    state = fields[0]
    if state == "Z":
        state = _read_state_of_threads(pid)
    return Process(
        id=ProcessId(pid, int(fields[19])),
        parent_pid=int(fields[1]),
        session_id=int(fields[3]),
        state=state,
        name=head.partition("(")[2],
    )


def _read_state_of_threads(pid: int) -> str:
    """A process whose first thread has ended lives on in its others: D where one of them is."""
    states = set()
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return "Z"
    for task in tasks:
        # One that has ended meanwhile says nothing of the others.
        with (
            contextlib.suppress(OSError, IndexError),
            open(f"/proc/{pid}/task/{task}/stat", "rb") as file,
        ):
            states.add(file.read().rpartition(b")")[2].split()[0].decode())
    states -= {"Z", "X"}
    if not states:
        return "Z"
    return "D" if "D" in states else min(states)


def identify(pid: int) -> ProcessId | None:
    """Which process has this pid now; None where there is none or it has ended."""
    process = read_process(pid)
    return None if process is None or process.has_ended else process.id


def is_alive(identity: ProcessId) -> bool:
    """Whether this very process still runs; one that has ended but was not collected does not."""
    return identify(identity.pid) == identity


def read_uid(pid: int) -> int | None:
    """The real user id of a process; None where it cannot be read."""
    uids = read_uids(pid)
    return None if uids is None else uids[0]


def read_uids(pid: int) -> tuple[int, ...] | None:
    """Real, effective, saved and file system user id; None where they cannot be read.

    The owner of /proc/PID says root for a process that may not be dumped, so it is no answer.
    """
    for name, words in _read_status(pid):
        if name == "Uid":
            return tuple(int(word) for word in words)
    return None


def read_namespace_pids(pid: int) -> tuple[int, ...]:
    """Its pids, from this namespace inwards (NSpid of proc(5)); only `pid` where unreadable."""
    for name, words in _read_status(pid):
        if name == "NSpid":
            return tuple(int(word) for word in words)
    return (pid,)


def _read_status(pid: int) -> Iterator[tuple[str, list[str]]]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value.split()


def read_environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it may not be read.

    The user's own word, and it can wait for the other process's mmap_lock: not for root's hooks.
    """
    pairs = (entry.partition("=") for entry in _read_words(pid, "environ"))
    return {name: value for name, separator, value in pairs if separator}


def read_command_line(pid: int) -> tuple[str, ...]:
    """A process's arguments, the program first; empty where it has none or may not be read.

    Likewise not for root's hooks.
    """
    return tuple(_read_words(pid, "cmdline"))


def _read_words(pid: int, name: str) -> list[str]:
    """The words of a file below /proc/PID that ends each with a null byte."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            data = file.read()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.rstrip(b"\0").split(b"\0")] if data else []


def list_processes() -> tuple[Process, ...]:
    """Every process that /proc shows, zombies too."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return tuple(process for pid in pids if (process := read_process(pid)) is not None)


def list_running_processes() -> tuple[Process, ...]:
    """The processes that have not ended."""
    return tuple(process for process in list_processes() if not process.has_ended)


def list_session(session_id: int) -> tuple[Process, ...]:
    """The processes of a session that have not ended."""
    return tuple(p for p in list_running_processes() if p.session_id == session_id)


def find_descendants(roots: Iterable[ProcessId], table: Iterable[Process]) -> set[ProcessId]:
    """All children, grandchildren and so on of `roots` in a process table, without `roots`."""
    children: dict[int, list[ProcessId]] = {}
    for process in table:
        children.setdefault(process.parent_pid, []).append(process.id)
    found: set[ProcessId] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop().pid, []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def find_ancestors(pid: int, table: Iterable[Process]) -> set[int]:
    """The pids of a process and of all its ancestors in a process table."""
    parents = {process.id.pid: process.parent_pid for process in table}
    line: set[int] = set()
    while pid and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line


def open_pidfd(identity: ProcessId) -> int | None:
    """A descriptor that means exactly this process and becomes readable when it ends.

    Returns:
        The descriptor, or None where the process has ended or the kernel has none (before 5.3).
    """
    descriptor = open_process(identity)
    return None if descriptor == -1 else descriptor


def open_process(identity: ProcessId) -> int | None:
    """The same for a signal.

    Returns:
        The descriptor, -1 where there are none (before 5.3, or forbidden by a seccomp filter), or
        None where the process has ended.
    """
    try:
        descriptor = _pidfd_open(identity.pid)
    except OSError as error:
        is_missing = error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL)
        return -1 if is_missing and is_alive(identity) else None
    if is_alive(identity):
        return descriptor
    os.close(descriptor)
    return None


def _pidfd_open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.syscall(_SYS_PIDFD_OPEN, pid, 0))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "pidfd_open")
    return descriptor


def wait_until_ended(identities: Iterable[ProcessId], deadline: float) -> tuple[ProcessId, ...]:
    """Wait for processes to end, without looking again and again where the kernel can tell.

    Args:
        identities: The processes, children or not.
        deadline: Until when, on the monotonic clock.

    Returns:
        Those that still run.
    """
    waiting: dict[int, ProcessId] = {}
    unwatched: list[ProcessId] = []
    poll = select.poll()
    try:
        for identity in identities:
            descriptor = open_pidfd(identity)
            if descriptor is not None:
                waiting[descriptor] = identity
                poll.register(descriptor, select.POLLIN)
            elif is_alive(identity):
                unwatched.append(identity)
        while waiting or unwatched:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            pause_s = min(left_s, _POLL_S) if unwatched else left_s
            for descriptor, _ in poll.poll(max(1.0, pause_s * 1000)):
                poll.unregister(descriptor)
                os.close(descriptor)
                del waiting[descriptor]
            unwatched = [identity for identity in unwatched if is_alive(identity)]
        return (*waiting.values(), *unwatched)
    finally:
        for descriptor in waiting:
            os.close(descriptor)


def read_boot_id() -> str:
    """The kernel's name for this boot; empty where unreadable."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_pid_namespace() -> int:
    """Inode number of this process's pid namespace; 0 where unreadable."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
