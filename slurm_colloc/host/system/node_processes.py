"""Processes of this node, as the kernel shows them; nothing is signalled here.

Also: which processes belong to a daemon, by facts of the kernel that a process cannot give itself;
whose process a process of this node is: the runner asks it of MPS clients, the monitor of all.

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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

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


# ----
# Which processes belong to a daemon, by facts of the kernel that a process cannot give itself.
#
# A control group is root's: only root can put a process into it or take one out. A session is the
# next best thing where there is no control group; a process can leave it, but enter none.

_FREEZE_S = 0.1
_GONE_POLL_S = 0.002


class ControlGroup:
    """What runs in control groups that root has made for one job, or in a daemon's session.

    A daemon that has written itself down may not have entered its control groups yet.

    Args:
        paths: Their directories, one a hierarchy, such as
            /sys/fs/cgroup/pids/slurm_colloc/node-4711-0a1b2c3d.
        sessions: The sessions of the job's daemons.
    """

    def __init__(self, paths: Sequence[str], sessions: Sequence[ProcessSession] = ()) -> None:
        self._paths = tuple(paths)
        self._sessions = tuple(sessions)
        # Below its hierarchy's mount point, as /proc/PID/cgroup writes it.
        self._inner = frozenset("/" + "/".join(path.rsplit("/", 2)[1:]) for path in self._paths)

    def list_members(self) -> list[ProcessId]:
        """The processes in any of them that have not ended."""
        own = (member for session in self._sessions for member in session.list_members())
        return sorted({*self._list_grouped(), *own})

    def _list_grouped(self) -> set[ProcessId]:
        found = set()
        for path in self._paths:
            with contextlib.suppress(OSError, ValueError):
                with open(f"{path}/cgroup.procs", encoding="ascii") as file:
                    pids = [int(word) for word in file.read().split()]
                found |= {identity for pid in pids if (identity := identify(pid)) is not None}
        return found

    def contains(self, process: Process) -> bool:
        """Whether the kernel has a process in one of them now."""
        if any(session.contains(process) for session in self._sessions):
            return True
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
        members = sorted(self._list_grouped())
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
            time.sleep(_GONE_POLL_S)

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


# ----
# Whose process a process of this node is: the runner asks it of MPS clients, the monitor of all.
#
# A wrapper adopts its orphans, so all of a member's processes stay below it, but for those of an
# srun inside its script: they are a step of their own, and are found by the environment that they
# were started with. That is the user's own word: not for root's hooks.

_Owner = TypeVar("_Owner")
_DEPTH_MAX = 64
_ENVIRONMENT_MOST = 1 << 18


def read_small(path: str, most: int = 4096) -> bytes:
    """Read a file of /proc in one call.

    Args:
        path: The file.
        most: How many bytes of it are wanted.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def read_stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat (proc(5)) after the name: its state, field 3, is the first.

    Raises:
        OSError: It is gone.
    """
    # The name, in parentheses, may hold anything.
    return read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def read_parent(pid: int) -> int | None:
    """A process's parent, None where it is gone."""
    try:
        return int(read_stat_fields(pid)[1])
    except (OSError, ValueError, IndexError):
        return None


def find_ancestor(
    pid: int,
    owners: Mapping[int, _Owner],
    strangers: Container[int] = (),
    find_parent: Callable[[int], int | None] = read_parent,
) -> _Owner | None:
    """The owner of a process or of the nearest process above it that has one.

    Args:
        pid: The process.
        owners: Owners by process id.
        strangers: Processes that are known to have none.
        find_parent: Finds the parent of a process.
    """
    current: int | None = pid
    for _ in range(_DEPTH_MAX):
        if current is None or current <= 1 or current in strangers:
            return None
        if current in owners:
            return owners[current]
        current = find_parent(current)
    return None


def read_named_start(pid: int, pack: bytes) -> tuple[int, int] | None:
    """The member whose process it says it is, and which of its starts.

    Args:
        pid: The process.
        pack: The directory of the pack, as in its members' environment.

    Returns:
        None where it names none of this pack, or is gone.
    """
    try:
        block = read_small(f"/proc/{pid}/environ", _ENVIRONMENT_MOST)
    except OSError:
        return None
    if b"SLURM_COLLOC_START=" not in block:
        return None
    words = dict(pair.partition(b"=")[::2] for pair in block.split(b"\0"))
    if words.get(b"SLURM_COLLOC_PACK") != pack:
        return None
    # PACK/members/NNNN/run.A.M: see runtime.member_environment.
    folder, _, run = os.fsdecode(words.get(b"SLURM_COLLOC_START", b"")).rpartition("/")
    number, start = folder.rpartition("/")[2], run.rpartition(".")[2]
    return (int(number), int(start)) if number.isdigit() and start.isdigit() else None
