"""Files that are either whole or absent: temporary file, then `os.replace`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.ownership import find_protected_owner, refuse_protected
from slurm_colloc.store.foreign_files import open_file, read_descriptor

SCHEMA = 1
"""Version of every JSON file in the state; a reader refuses a newer one."""

_BYTES_MOST = 16 << 20
"""Of a file that is read whole; none that csub writes comes near."""

_WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full: make room, then try again; nothing was left half-submitted",
    errno.EDQUOT: "the disk quota is used up: make room, then try again",
    errno.EROFS: "the file system is read-only: set state_dir in the settings to another path",
    errno.EACCES: "set state_dir in the settings to a directory you may write",
    errno.EPERM: "set state_dir in the settings to a directory you may write",
}


@contextlib.contextmanager
def explain_os_errors(doing: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into a StateError that says what was being done to which path."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StateError(
            f"cannot {doing} {error.filename or path}: {reason}",
            hint=_WHAT_TO_DO.get(error.errno or 0, ""),
        ) from error


def write_atomic(
    path: Path | str, data: bytes, mode: int = 0o600, *, outlives_crash: bool = True
) -> None:
    """Write a file that is never seen half-written; the old one stays if this fails.

    Args:
        path: The file.
        data: Its content.
        mode: Its mode.
        outlives_crash: See `write_all`.

    Raises:
        StateError: The directory cannot be written, or the disk is full.
    """
    write_all({path: data}, mode, outlives_crash=outlives_crash)


def name_temporary(path: Path | str) -> str:
    """A name next to a file that no other process has: pids are given on each host anew."""
    host = re.sub(r"[^A-Za-z0-9]", "_", os.uname().nodename)[:32]
    return f"{path}.tmp{os.getpid()}-{host}-{os.urandom(4).hex()}"


def drop_temporaries(path: Path | str) -> None:
    """Remove what a killed writer has left of a file; only its next writer may call this."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if entry.startswith(f"{name}.tmp"):
                os.unlink(os.path.join(folder, entry))


def write_all(
    contents: Mapping[Path | str, bytes], mode: int = 0o600, *, outlives_crash: bool = True
) -> None:
    """Write files that are never seen half-written; no file is replaced before all are written.

    Args:
        contents: What is to stand in each file.
        mode: Their mode.
        outlives_crash: The content is on the disk before it has its name: otherwise a crash of
            the machine may leave an empty file. False for what is written again in a moment.

    Raises:
        StateError: A directory cannot be written, belongs to another user whose state is only
            read, or the disk is full; all old files stay.
    """
    for path in contents:
        refuse_protected(path)
    temporary = {path: name_temporary(path) for path in contents}
    current: Path | str = ""
    try:
        for current, data in contents.items():
            _write_whole(temporary[current], data, mode, outlives_crash=outlives_crash)
        for current in contents:
            _replace(temporary[current], current)
    except BaseException as error:
        for name in temporary.values():
            with contextlib.suppress(OSError):
                os.unlink(name)
        if not isinstance(error, OSError):
            raise
        # Of no temporary file.
        error.filename = os.fspath(current)
        with explain_os_errors("write", current):
            raise


def _replace(temporary: str, path: Path | str) -> None:
    try:
        os.replace(temporary, path)
    except FileNotFoundError:
        # A server of NFS that is asked again, because its answer was lost, says so of what is done.
        if is_there(temporary) or not is_there(path):
            raise


def _write_whole(path: str, data: bytes, mode: int, *, outlives_crash: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if data and outlives_crash:
            os.fsync(descriptor)
    finally:
        # On network file systems a full disk is often reported only here.
        os.close(descriptor)


def sync_file_system(path: Path | str) -> None:
    """Wait until all that was written to a path's file system is on its disk.

    For thousands of files it takes as long as for a few; a network file system has them already.
    """
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ctypes.CDLL(None).syncfs(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path | str, value: Mapping[str, Any], *, outlives_crash: bool = True) -> None:
    """Write a versioned JSON file atomically; see `write_all`."""
    text = json.dumps({"schema": SCHEMA, **value}, ensure_ascii=True, separators=(",", ":"))
    write_atomic(path, text.encode() + b"\n", outlives_crash=outlives_crash)


def is_there(path: Path | str) -> bool:
    """Whether something of this name is there, a broken link too; a failure to look is no absence.

    os.path.exists takes every failure for absence, and absence decides much here.

    Raises:
        StateError: It cannot be told.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StateError(f"cannot look at {os.fspath(path)}: {reason}") from error
    return True


def open_regular(path: Path | str) -> int:
    """Open a file of a state to read; a pipe or device of this name is not waited for.

    Of another user's state only that user's own files are opened, and no links.

    Returns:
        The descriptor.

    Raises:
        OSError: It cannot be opened, or is no such file.
    """
    owner = find_protected_owner(path)
    return open_file(path, owner=owner, follows=owner is None)


def read_bytes(path: Path | str, most: int | None = None) -> bytes:
    """Read a small file with as few calls as possible: a queue of thousands reads thousands.

    Args:
        path: The file.
        most: How many bytes it may have; 16 MiB where it is not said.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
    """
    descriptor = open_regular(path)
    try:
        return read_descriptor(descriptor, path, _BYTES_MOST if most is None else most)
    finally:
        os.close(descriptor)


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Read a versioned JSON file; None if there is none.

    Raises:
        StateError: It cannot be read, is damaged, or was written by a newer version.
    """
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from error
    try:
        value = json.loads(data.decode())
        schema = value["schema"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged ({error})", hint="move it away; the Slurm job is not touched"
        ) from error
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StateError(
            f"{path} was written by a newer version (schema {schema}, this one reads {SCHEMA})",
            hint="use the csub that submitted it",
        )
    return dict(value)


@contextlib.contextmanager
def suppress_damage() -> Iterator[None]:
    """Pass over a file that is damaged, or newer; not one that the file system does not show now.

    Raises:
        StateError: The file system fails.
    """
    try:
        yield
    except StateError as error:
        if isinstance(error.__cause__, OSError):
            raise


def read_file_clock(folder: Path | str) -> float:
    """Now, by the clock that stamps the files of a folder: a file server has its own.

    Returns:
        Seconds since the epoch; by this machine's clock where the folder cannot be written.
    """
    with contextlib.suppress(OSError, StateError):
        refuse_protected(folder)
        path = name_temporary(f"{folder}/clock")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            os.unlink(path)
    return time.time()


def make_directory(path: Path | str) -> None:
    """Make a private directory and its parents; one that exists is left as it is.

    Raises:
        StateError: It cannot be made, or belongs to another user whose state is only read.
    """
    refuse_protected(path)
    with explain_os_errors("make directory", path):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except FileExistsError:
            # So it says, too, where it could not see that it is a directory.
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise
