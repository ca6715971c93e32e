"""The totals of hooks, kept in a file, and how far the audit log is counted in them.

A counter that was computed from the log alone would fall each time that logrotate removes a file.
Prometheus takes a fall for a restart from 0, and would count all that is left once more.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from slurm_colloc.administration.audit_view import list_log_files, parse_entry
from slurm_colloc.administration.hook_totals import (
    HookTotals,
    build_value,
    parse_time,
    parse_value,
)
from slurm_colloc.administration.node_files import opened_directory, write_whole
from slurm_colloc.errors import StateError


@dataclass(frozen=True)
class Position:
    """How far the log is counted.

    Args:
        device: Of the file that was read last.
        inode: Its number. It keeps it when it is rotated, until it is compressed.
        offset: The first of its bytes that is not counted yet.
        newest_s: The time of the newest line that is counted (seconds since 1970).
    """

    device: int = 0
    inode: int = 0
    offset: int = 0
    newest_s: float = 0.0


@dataclass(frozen=True)
class CountedLog:
    """What is known of all runs so far.

    Args:
        totals: The sums.
        position: What of the log is in them; None for nothing.
    """

    totals: HookTotals = field(default_factory=HookTotals)
    position: Position | None = None


def read_totals(path: str) -> CountedLog:
    """Read the kept totals; empty ones where there are none, or they are damaged."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
        position = value["position"]
        return CountedLog(
            parse_value(value["totals"]),
            None
            if position is None
            else Position(
                int(position["device"]),
                int(position["inode"]),
                int(position["offset"]),
                float(position["newest_s"]),
            ),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return CountedLog()


def write_totals(path: str, counted: CountedLog) -> None:
    """Keep the totals for the next time.

    Raises:
        NodeError: Another user could exchange what is written.
        StateError: It cannot be written.
    """
    position = None if counted.position is None else vars(counted.position)
    value = {"totals": build_value(counted.totals), "position": position}
    directory, name = os.path.split(os.path.dirname(path))
    try:
        with opened_directory(directory) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        write_whole(path, json.dumps(value).encode() + b"\n", 0o644)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StateError(f"cannot write {path}: {reason}") from error


def count_log(path: str, before: CountedLog) -> CountedLog:
    """Add what the log has got since; changes `before.totals`.

    Args:
        path: The newest file of the log; empty where none is kept.
        before: What is counted already.

    Raises:
        StateError: The log cannot be read.
    """
    files = list_log_files(path) if path else []
    start, position = _find_start(files, before.position)
    totals, newest_s = before.totals, position.newest_s
    # Where the file that was read last is gone, only the time tells what is new.
    counted_until_s = newest_s if before.position is not None and start is None else None
    for number, name in enumerate(files[start or 0 :]):
        opened = _open(name)
        with opened as file:
            status = os.stat(name)
            offset = position.offset if start is not None and number == 0 else 0
            file.seek(offset)
            for line in _whole_lines(file):
                offset += len(line)
                if not line.strip():
                    continue
                entry = parse_entry(line.decode("utf-8", "replace"))
                at = None if entry is None else parse_time(entry)
                if counted_until_s is not None and (at is None or at <= counted_until_s):
                    continue
                totals.add(entry)
                newest_s = max(newest_s, at or 0.0)
        position = Position(status.st_dev, status.st_ino, offset, newest_s)
    return CountedLog(totals, position if files or before.position else None)


def _find_start(files: list[str], position: Position | None) -> tuple[int | None, Position]:
    """Which file to go on with, None for the oldest."""
    if position is None:
        return None, Position()
    for number, name in enumerate(files):
        with contextlib.suppress(OSError):
            status = os.stat(name)
            is_same = (status.st_dev, status.st_ino) == (position.device, position.inode)
            if is_same and not name.endswith(".gz") and status.st_size >= position.offset:
                return number, position
    return None, position


def _open(name: str) -> Any:
    import gzip

    try:
        return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StateError(f"cannot read {name}: {reason}") from error


def _whole_lines(file: BinaryIO) -> Iterable[bytes]:
    """Lines up to their end: the last may just be written."""
    try:
        for line in file:
            if line.endswith(b"\n"):
                yield line
    except (OSError, EOFError) as error:
        # A compressed file that is damaged has lost its rest.
        raise StateError(f"cannot read {file.name}: {error}") from error
