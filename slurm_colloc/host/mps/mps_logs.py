"""The log files of one daemon: followed while it runs, copied before they are removed.

Also: the logs of an MPS daemon and its servers as events.

They are opened through the daemon's directory without following links, and as regular files only:
where root started the daemon, the user can put anything into the log directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slurm_colloc.host.mps.mps_control import ACTIVE, EXITED, FAULT, INITIALIZING
from slurm_colloc.host.system.directories import DAEMON_LOG, LOGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias


# ---- The logs of an MPS daemon and its servers as events; pure -----------------------------------
#
# Wording: driver 580.159.04 on an H200 (MPS binary version 13000) and 550.163.01. With `-f` daemon
# and server write to the daemon's standard output, with `-d` to control.log and server.log; a line
# looks the same: `[2026-11-21 14:37:41.352 Server   474] text`.
#
# After a fatal GPU error the log names no culprit: "Client {PID: N ...} encountered a fatal GPU
# error" named an innocent neighbour in three of three runs, and every client on the device is
# listed as "error trigging". So a fault carries suspects only.

_LINE = re.compile(
    r"\[(?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\s+(?P<who>[A-Za-z]+)\s+(?P<pid>\d+)\]"
    r" ?(?P<text>.*)"
)
_PID = r"\{PID: (\d+)[,}]"
_EVIDENCE_LINES = 40


@dataclass(frozen=True)
class LogLine:
    """One line.

    Args:
        when: Local time of the node, as written.
        who: `Control`, `Server`, or `Other` (a server that is starting); empty for a line that
            continues the one before.
        pid: Who wrote it.
        text: The rest.
    """

    when: str
    who: str
    pid: int
    text: str


@dataclass(frozen=True)
class ServerStatus:
    """A server has become INITIALIZING, ACTIVE, FAULT or EXITED."""

    server_pid: int
    status: str
    text: str = ""


@dataclass(frozen=True)
class ClientJoined:
    """A process has become a client: it has made its first context."""

    pid: int
    server_pid: int


@dataclass(frozen=True)
class ClientLeft:
    """A client has gone."""

    pid: int
    server_pid: int


@dataclass(frozen=True)
class Fault:
    """A fatal GPU error has ended all clients on a device.

    Args:
        server_pid: Their server.
        suspects: Pids of the clients; the culprit is one of them, and nothing says which.
        named_pid: The one that the log names first. It was innocent in three of three runs.
        text: The log's lines.
    """

    server_pid: int
    suspects: tuple[int, ...]
    named_pid: int | None
    text: str


@dataclass(frozen=True)
class DaemonTrouble:
    """The daemon or a server says that something failed, in its own words."""

    pid: int
    text: str


LogEvent: TypeAlias = "ServerStatus | ClientJoined | ClientLeft | Fault | DaemonTrouble"


def parse_line(line: str) -> LogLine:
    """Read one line; one without a stamp keeps its text only."""
    match = _LINE.fullmatch(line.rstrip("\r\n"))
    if match is None:
        return LogLine("", "", 0, line.rstrip("\r\n"))
    return LogLine(match["when"], match["who"], int(match["pid"]), match["text"].rstrip())


@dataclass
class _OpenFault:
    server_pid: int
    named_pid: int | None = None
    torn: list[int] = field(default_factory=list)
    sticky: list[int] = field(default_factory=list)
    lists_sticky: bool = False
    lines: list[str] = field(default_factory=list)

    def close(self) -> Fault:
        suspects = self.sticky or self.torn
        if not suspects and self.named_pid is not None:
            suspects = [self.named_pid]
        return Fault(
            self.server_pid,
            tuple(dict.fromkeys(suspects)),
            self.named_pid,
            "\n".join(self.lines[:_EVIDENCE_LINES]),
        )


class LogReader:
    """Turns lines into events; a fault is written over several lines, so it remembers."""

    def __init__(self) -> None:
        self._fault: _OpenFault | None = None
        self._faulted: set[int] = set()
        self._clients: set[tuple[int, int]] = set()
        self.version: str | None = None

    @property
    def has_open_fault(self) -> bool:
        """A fault is being written; `flush` gives what is known so far."""
        return self._fault is not None

    def read(self, lines: Iterable[str]) -> list[LogEvent]:
        """Read the next complete lines."""
        events: list[LogEvent] = []
        for raw in lines:
            line = parse_line(raw)
            if self._fault is not None and not self._continue_fault(line, raw):
                events += self.flush()
            events += self._read_line(line, raw)
        return events

    def flush(self) -> list[LogEvent]:
        """End the fault that is being written."""
        fault, self._fault = self._fault, None
        return [] if fault is None else [fault.close()]

    def _continue_fault(self, line: LogLine, raw: str) -> bool:
        """True where a line belongs to the fault, or comes from another process meanwhile."""
        fault = self._fault
        assert fault is not None
        if line.who == "Control":
            return True
        text = line.text
        number = re.fullmatch(r"\s*(\d+)\s*", text)
        if match := re.search(_PID + r".*to be torn down", text):
            fault.torn.append(int(match[1]))
        elif "sticky error" in text:
            fault.lists_sticky = True
        elif number and fault.lists_sticky:
            fault.sticky.append(int(number[1]))
        elif not (number or _IN_FAULT.search(text)):
            return False
        fault.lines.append(raw.rstrip("\r\n"))
        return True

    def _read_line(self, line: LogLine, raw: str) -> list[LogEvent]:
        if line.who == "Control":
            return self._read_control(line.text, line.pid)
        if line.who in ("Server", "Other"):
            return self._read_server(line.text, line.pid, raw)
        return []

    def _read_control(self, text: str, pid: int) -> list[LogEvent]:
        # What a command prints is logged too, so nothing here matches a bare word or number.
        if match := re.match(r"Starting new server (\d+) for user", text):
            return [ServerStatus(int(match[1]), INITIALIZING, text)]
        if match := re.match(r"NEW SERVER (\d+): Ready", text):
            return [ServerStatus(int(match[1]), ACTIVE, text)]
        if match := re.match(r"Server (\d+) exited", text):
            return self._end_server(int(match[1]), text)
        if match := re.search(r"binary version: (\d+)", text):
            # CUDA writes 13.1 as 13010.
            self.version = f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}"
        if re.match(r"Failed to start server|Server encountered a fatal|Internal error", text):
            return [DaemonTrouble(pid, text)]
        return []

    def _end_server(self, server_pid: int, text: str) -> list[LogEvent]:
        self._faulted.discard(server_pid)
        gone = sorted(pair for pair in self._clients if pair[0] == server_pid)
        self._clients.difference_update(gone)
        # Its own end is the first: these clients have not left by themselves.
        ends: list[LogEvent] = [ClientLeft(client, server) for server, client in gone]
        return [ServerStatus(server_pid, EXITED, text), *ends]

    def _read_server(self, text: str, pid: int, raw: str) -> list[LogEvent]:
        if "fatal GPU error" in text or "fatal GPU exception" in text:
            return self._begin_fault(text, pid, raw)
        if match := re.match(rf"Client {_PID}.*\bconnected", text):
            pair = (pid, int(match[1]))
            # Each process makes two contexts and connects for each.
            if pair in self._clients:
                return []
            self._clients.add(pair)
            return [ClientJoined(pair[1], pid)]
        if match := re.match(r"Client process (\d+) disconnected", text):
            self._clients.discard((pid, int(match[1])))
            return [ClientLeft(int(match[1]), pid), *self._end_fault(pid, text)]
        if text.startswith("Destroy server context"):
            return self._end_fault(pid, text)
        return []

    def _begin_fault(self, text: str, pid: int, raw: str) -> list[LogEvent]:
        events: list[LogEvent] = []
        if self._fault is None:
            self._fault = _OpenFault(pid)
            self._fault.lines.append(raw.rstrip("\r\n"))
        match = re.search(_PID, text)
        if match and self._fault.named_pid is None:
            self._fault.named_pid = int(match[1])
        if pid not in self._faulted:
            self._faulted.add(pid)
            events.append(ServerStatus(pid, FAULT, text))
        return events

    def _end_fault(self, pid: int, text: str) -> list[LogEvent]:
        """A server takes new clients again when all of the fault's have left."""
        left = any(server == pid for server, _ in self._clients)
        if pid not in self._faulted or (left and not text.startswith("Destroy server context")):
            return []
        self._faulted.discard(pid)
        return [ServerStatus(pid, ACTIVE, text)]


_IN_FAULT = re.compile(
    r"fatal GPU (error|exception)|torn down|error.trigg|will be reset", re.IGNORECASE
)


# ---- The log files of one daemon: followed while it runs, copied before they are removed ---------

_FILES = (DAEMON_LOG, f"{LOGS}/control.log", f"{LOGS}/server.log")
_CHUNK_BYTES = 1 << 18
_LONGEST_LINE_BYTES = 1 << 16
_TAIL_BYTES = 4096
_KEPT_LINES = 100

COPY_LIMIT_BYTES = 1 << 20

# What the daemon writes for each command of ours, its answer included.
_CHATTER = re.compile(
    r"Control +\d+\] *(Accepting connection|NEW UI|UI closed|Cmd:|Unable to accept connection"
    r"|User did not send valid credentials|[\d.]*$|INITIALIZING$|ACTIVE$|FAULT$)"
)


def open_log(directory: int, name: str, uid: int) -> int | None:
    """Open one log for reading; None where there is none, or something else has its name.

    Args:
        directory: The daemon's open private directory.
        name: Which one.
        uid: Whose daemon it is: a log is its own or this process's, and has one name only.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    parent, _, base = name.rpartition("/")
    opened = directory
    try:
        if parent:
            opened = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        descriptor = os.open(base, flags, dir_fd=opened)
    except OSError:
        return None
    finally:
        if opened != directory:
            os.close(opened)
    status = os.fstat(descriptor)
    if (
        stat.S_ISREG(status.st_mode)
        and status.st_uid in (uid, os.geteuid())
        # None after it was removed while it is still read.
        and status.st_nlink <= 1
    ):
        return descriptor
    os.close(descriptor)
    return None


class LogFollower:
    """Reads what is added to the logs of a daemon.

    Args:
        directory: Its open private directory.
        uid: Whose daemon it is.
    """

    def __init__(self, directory: int, uid: int) -> None:
        self._directory = directory
        self._uid = uid
        self._files: dict[str, int] = {}
        self._offsets: dict[str, int] = dict.fromkeys(_FILES, 0)
        self._partial: dict[str, bytes] = dict.fromkeys(_FILES, b"")
        self._reader = LogReader()
        self._recent: list[str] = []
        self.lines_read = 0

    @property
    def version(self) -> str | None:
        """The CUDA version that the daemon says it was built for; older ones say nothing."""
        return self._reader.version

    @property
    def has_open_fault(self) -> bool:
        """A fault is being written."""
        return self._reader.has_open_fault

    def read(self) -> list[LogEvent]:
        """What has been added since the last time, as events."""
        events: list[LogEvent] = []
        for name in _FILES:
            lines = list(self._read_lines(name))
            self._recent = [*self._recent, *lines][-_KEPT_LINES:]
            self.lines_read += len(lines)
            events += self._reader.read(lines)
        return events

    def get_lines_since(self, mark: int) -> list[str]:
        """The lines that were read since `lines_read` was `mark`, the last hundred of them."""
        return self._recent[max(0, len(self._recent) - (self.lines_read - mark)) :]

    def flush(self) -> list[LogEvent]:
        """End a fault whose lines have all come."""
        return self._reader.flush()

    def _read_lines(self, name: str) -> Iterator[str]:
        descriptor = self._open(name)
        while descriptor is not None:
            try:
                data = os.pread(descriptor, _CHUNK_BYTES, self._offsets[name])
            except OSError:
                return
            if not data:
                return
            self._offsets[name] += len(data)
            *lines, partial = (self._partial[name] + data).split(b"\n")
            self._partial[name] = partial[-_LONGEST_LINE_BYTES:]
            for line in lines:
                yield line[:_LONGEST_LINE_BYTES].decode("utf-8", "replace")

    def read_whole(self) -> tuple[tuple[str, bytes], ...]:
        """Names and contents of the logs, also where they have been removed already."""
        return tuple(
            (os.path.basename(name), data)
            for name in _FILES
            if (descriptor := self._open(name)) is not None and (data := _read_capped(descriptor))
        )

    def _open(self, name: str) -> int | None:
        if name not in self._files:
            descriptor = open_log(self._directory, name, self._uid)
            if descriptor is None:
                return None
            self._files[name] = descriptor
        return self._files[name]

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._files.clear()


def read_last_words(directory: int, uid: int) -> str:
    """The end of what the daemon has written, in one line, for a message."""
    words: list[str] = []
    for name in _FILES:
        descriptor = open_log(directory, name, uid)
        if descriptor is not None:
            size = os.fstat(descriptor).st_size
            data = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            os.close(descriptor)
            lines = data.decode("utf-8", "replace").splitlines()
            words += [line for line in lines if not _CHATTER.search(line)][-3:]
    return " / ".join("".join(c if c.isprintable() else "?" for c in line) for line in words)


def _read_capped(descriptor: int) -> bytes:
    """A log; of a long one the first quarter of the limit, and the rest from its end."""
    size = os.fstat(descriptor).st_size
    if size <= COPY_LIMIT_BYTES:
        return os.pread(descriptor, size, 0)
    tail_bytes = COPY_LIMIT_BYTES * 3 // 4
    return b"".join(
        (
            os.pread(descriptor, COPY_LIMIT_BYTES // 4, 0),
            f"\n[{size - COPY_LIMIT_BYTES} bytes left out]\n".encode(),
            os.pread(descriptor, tail_bytes, size - tail_bytes),
        )
    )


def write_logs(target: str, prefix: str, logs: Iterable[tuple[str, bytes]]) -> tuple[str, ...]:
    """Write copies of logs; run this as the user whose directory it is.

    Args:
        target: The directory.
        prefix: What the copies' names begin with.
        logs: Names and contents.

    Returns:
        Paths of the copies.

    Raises:
        OSError: A copy cannot be written.
    """
    paths = []
    for name, data in logs:
        path = os.path.join(target, f"{prefix}{name}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as copy:
            copy.write(data)
        paths.append(path)
    return tuple(paths)
