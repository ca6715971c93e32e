"""The log files of one daemon: followed while it runs, copied before they are removed.

They are opened through the daemon's directory without following links, and as regular files only:
where root started the daemon, the user can put anything into the log directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator

from slurm_colloc.host.mps.mps_events import LogEvent, LogReader
from slurm_colloc.host.system.own_directory import DAEMON_LOG, LOGS

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
        descriptor = self._files.get(name)
        if descriptor is None:
            descriptor = open_log(self._directory, name, self._uid)
            if descriptor is None:
                return
            self._files[name] = descriptor
        while True:
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

    def read_whole(self, limit_bytes: int = COPY_LIMIT_BYTES) -> tuple[tuple[str, bytes], ...]:
        """Names and contents of the logs, also where they have been removed already."""
        return tuple(
            (os.path.basename(name), data)
            for name, descriptor in self._files.items()
            if (data := _read_capped(descriptor, limit_bytes))
        )

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


def read_logs(
    directory: int, uid: int, *, limit_bytes: int = COPY_LIMIT_BYTES
) -> tuple[tuple[str, bytes], ...]:
    """Read the logs that are not empty.

    Args:
        directory: The daemon's open private directory.
        uid: Whose daemon it is.
        limit_bytes: Of a longer log the first quarter of this and the rest from its end are kept.

    Returns:
        Names and contents.
    """
    logs = []
    for name in _FILES:
        descriptor = open_log(directory, name, uid)
        if descriptor is None:
            continue
        data = _read_capped(descriptor, limit_bytes)
        os.close(descriptor)
        if data:
            logs.append((os.path.basename(name), data))
    return tuple(logs)


def _read_capped(descriptor: int, limit_bytes: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size <= limit_bytes:
        return os.pread(descriptor, size, 0)
    tail_bytes = limit_bytes * 3 // 4
    return b"".join(
        (
            os.pread(descriptor, limit_bytes // 4, 0),
            f"\n[{size - limit_bytes} bytes left out]\n".encode(),
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
