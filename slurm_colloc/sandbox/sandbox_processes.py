"""Processes of this machine: found by what they are, ended only if they are still the same.

A pid alone proves nothing, because the kernel gives it out again. Here a process is a pid and its
start time from /proc, and a signal goes through a pidfd that was opened before that pair was
checked: a recycled pid is never signalled. For the same reason pid files are not trusted: the
daemons are found by their command lines, which name the sandbox's own configuration file.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_PROC = Path("/proc")
_POLL_S = 0.02


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
    """One line of the process table."""

    id: ProcessId
    parent_pid: int
    uid: int
    argv: tuple[str, ...]


def read_process(pid: int) -> Process | None:
    """Read one process, or None where it is gone or only a zombie."""
    directory = _PROC / str(pid)
    try:
        stat = (directory / "stat").read_text(errors="replace")
        uid = directory.stat().st_uid
        argv = (directory / "cmdline").read_bytes()
    except OSError:
        return None
    # The command name stands in parentheses and may itself hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    words = tuple(word.decode(errors="replace") for word in argv.rstrip(b"\0").split(b"\0"))
    return Process(ProcessId(pid, int(fields[19])), int(fields[1]), uid, words)


def list_processes() -> tuple[Process, ...]:
    """Every running process that /proc shows."""
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return tuple(process for pid in pids if (process := read_process(pid)) is not None)


def is_alive(identity: ProcessId) -> bool:
    """Whether this very process still runs; a zombie does not."""
    process = read_process(identity.pid)
    return process is not None and process.id == identity


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


def find_own_line(table: Iterable[Process]) -> set[int]:
    """The pids of this process and of all its ancestors."""
    parents = {process.id.pid: process.parent_pid for process in table}
    line: set[int] = set()
    pid = os.getpid()
    while pid and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line


def read_environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where it may not be read."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0"))
    return {name: value for name, separator, value in pairs if separator}


def _read_open_files(pid: int) -> list[str]:
    """What the descriptors of a process point to; those that close meanwhile are left out."""
    links: list[str] = []
    with suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                links.append(os.readlink(entry))  # noqa: PTH115 - "socket:[1]" is no path
    return links


def find_socket_owners(directory: Path, table: Iterable[Process]) -> dict[ProcessId, str]:
    """Processes that hold a Unix socket bound below `directory`, with the socket's path.

    A slurmstepd rewrites its command line, so its socket in the spool directory is the only sure
    sign of whose it is.
    """
    mark = f"{directory}/"
    inodes: dict[str, str] = {}
    try:
        lines = (_PROC / "net" / "unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return {}
    for line in lines:
        columns = line.split(maxsplit=7)
        if len(columns) == 8 and columns[7].startswith(mark):
            inodes[f"socket:[{columns[6]}]"] = columns[7]
    owners: dict[ProcessId, str] = {}
    if not inodes:
        return owners
    for process in table:
        for link in _read_open_files(process.id.pid):
            if link in inodes:
                owners[process.id] = inodes[link]
    return owners


def send_signal(identity: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False where it is gone."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return _send_without_pidfd(identity, number)
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _send_without_pidfd(identity: ProcessId, number: signal.Signals) -> bool:
    """For kernels before 5.3: the check and the signal are two steps, microseconds apart."""
    if not is_alive(identity):
        return False
    try:
        os.kill(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S) -> bool:
    """Ask until the condition holds; False where it never did within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def _all_ended(identities: Iterable[ProcessId]) -> bool:
    return not any(is_alive(identity) for identity in identities)


def stop_processes(identities: Iterable[ProcessId], *, term_s: float) -> set[ProcessId]:
    """TERM, and KILL for what is left after `term_s` seconds (0: KILL at once).

    Returns:
        What even KILL did not end within five seconds.
    """
    left = set(identities)
    for number, wait_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, 5.0)):
        if wait_s <= 0:
            continue
        for identity in left:
            send_signal(identity, number)
        wait_until(partial(_all_ended, frozenset(left)), wait_s)
        left = {identity for identity in left if is_alive(identity)}
        if not left:
            break
    return left


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended: its exit status, or None where it did not end in time."""

    returncode: int | None
    stdout: str
    stderr: str


def run_program(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    errors_to: Path | None = None,
) -> ProgramResult:
    """Run a program in the root directory and wait for it.

    Args:
        argv: The command line.
        environment: All of its environment.
        timeout_s: It is killed after so many seconds.
        errors_to: A file for its messages. A daemon needs that: it would keep a pipe open, and
            we would wait for its end. It also gets a session of its own and no output.

    Raises:
        OSError: It cannot be run.
    """
    try:
        if errors_to is None:
            ended = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                cwd="/",
                env=environment,
                timeout=timeout_s,
                check=False,
            )
            return ProgramResult(ended.returncode, ended.stdout, ended.stderr)
        with errors_to.open("wb") as stderr:
            started = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd="/",
                env=environment,
                start_new_session=True,
                umask=0o022,
                timeout=timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return ProgramResult(None, "", "")
    return ProgramResult(started.returncode, "", errors_to.read_text(errors="replace"))
