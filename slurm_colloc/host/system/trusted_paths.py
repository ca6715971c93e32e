"""Opening directories of a path that no other user can exchange meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping

from slurm_colloc.errors import NodeError

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_trusted(base: str, *, last_may_be_a_groups: bool = False) -> int:
    """Open a directory through parents that no other user can exchange.

    Args:
        base: The directory.
        last_may_be_a_groups: It may be written by its group, as Ubuntu's /var/log is by syslog's.
            For what is looked at again before it is used.

    Raises:
        NodeError: Another user could rename what is made in it.
        OSError: It cannot be opened.
    """
    trusted = read_trusted_uids()
    descriptor = os.open("/", OPEN_DIRECTORY)
    try:
        _judge(os.fstat(descriptor), "/", trusted)
        path = ""
        parts = [part for part in base.split("/") if part]
        for number, part in enumerate(parts, start=1):
            inner = os.open(part, OPEN_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            path += f"/{part}"
            is_last = number == len(parts)
            forbidden = 0o002 if is_last and last_may_be_a_groups else 0o022
            _judge(os.fstat(descriptor), path, trusted, forbidden)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _judge(
    status: os.stat_result, path: str, trusted: frozenset[int], forbidden: int = 0o022
) -> None:
    if status.st_uid not in trusted:
        raise NodeError(f"{path} belongs to user {status.st_uid}, who could exchange what is in it")
    if status.st_mode & forbidden and not status.st_mode & stat.S_ISVTX:
        raise NodeError(f"{path} may be written by others and has no sticky bit")


def read_trusted_uids() -> frozenset[int]:
    """Root, this user, and inside a user namespace the stand-in for root outside it."""
    trusted = {0, os.geteuid()}
    with contextlib.suppress(OSError, ValueError), open("/proc/self/uid_map") as file:
        if file.read().split() != ["0", "0", "4294967295"]:
            with open("/proc/sys/kernel/overflowuid") as overflow:
                trusted.add(int(overflow.read()))
    return frozenset(trusted)


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def open_own_directory(parent: int, name: str, mode: int, path: str, *, makes: bool) -> int:
    """Open a directory of root's alone.

    Args:
        parent: The directory that it is in, open.
        name: Its name there.
        mode: Its mode.
        path: Its path, for messages.
        makes: Make it where it is missing, and set its mode.

    Raises:
        NodeError: Others may write in it, or it is not a directory.
        OSError: It cannot be opened or made.
    """
    if makes:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
    try:
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise NodeError(f"{path} is not a directory") from error
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(descriptor)
        raise NodeError(
            f"{path} is not root's alone (user {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o})"
        )
    if makes and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)
    return descriptor


def write_json(directory: int, name: str, value: Mapping[str, Any], mode: int) -> None:
    """Write a file whole or not at all.

    Args:
        directory: Where, open.
        name: Its name there.
        value: What it is to hold.
        mode: Its mode.

    Raises:
        OSError: It cannot be written; the one before is still there.
    """
    temporary = f".{name}"
    # One that a killed hook has left is not in use: a process that writes here holds the lock.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with open(opened, "w", encoding="ascii") as file:
            json.dump(value, file)
            os.fchmod(opened, mode)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
