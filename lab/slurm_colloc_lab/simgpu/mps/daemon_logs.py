"""The logs of MPS: records that go through the daemon's fifo `log`, and lines of text.

A record is a head of 48 bytes (who writes, pid, local time, length) and the text. The daemon turns
records into lines of control.log and server.log, or of its standard output with `-f` (550, 580).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

CONTROL = 0xABCDE000
SERVER = CONTROL + 1
CLIENT = CONTROL + 2
OTHER = CONTROL + 3

_NAMES = {CONTROL: "Control", SERVER: "Server", CLIENT: "Client", OTHER: "Other"}
# who, pid, year, month, day, day of the week, hour, minute, second, millisecond, length
_HEAD = struct.Struct("<I9iq")
# A write up to PIPE_BUF is never mixed with another's (pipe(7)).
_LONGEST = 4096 - _HEAD.size


def pack_record(who: int, pid: int, text: str, now_s: float | None = None) -> bytes:
    """A record as it goes through the fifo."""
    seconds = time.time() if now_s is None else now_s
    at = time.localtime(seconds)
    data = text.encode()[:_LONGEST]
    day_of_week = (at.tm_wday + 1) % 7
    stamp = (at.tm_year, at.tm_mon, at.tm_mday, day_of_week, at.tm_hour, at.tm_min, at.tm_sec)
    return _HEAD.pack(who, pid, *stamp, int(seconds % 1 * 1000), len(data)) + data


def parse_records(data: bytes) -> Iterator[tuple[int, str]]:
    """Who wrote, and the line; half a record at the end is left out."""
    while len(data) >= _HEAD.size:
        who, pid, *stamp, length = _HEAD.unpack_from(data)
        if who not in _NAMES or not 0 <= length <= _LONGEST:
            return
        text = data[_HEAD.size : _HEAD.size + length].decode(errors="replace")
        year, month, day, _, hour, minute, second, millisecond = stamp
        when = f"{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03}"
        yield who, f"[{when} {_NAMES[who]} {pid:5}] {text}\n"
        data = data[_HEAD.size + length :]


class RecordWriter:
    """Writes to a daemon's fifo; without a daemon that reads it, what is written is lost.

    Args:
        pipe_directory: Where the fifo is.
    """

    def __init__(self, pipe_directory: str) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(
                f"{pipe_directory}/log", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            return

    def write(self, who: int, text: str) -> None:
        """Write one record."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, pack_record(who, os.getpid(), text))
        except BlockingIOError:
            return
        except OSError:
            os.close(self._descriptor)
            self._descriptor = None
