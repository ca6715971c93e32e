"""Directories and files that only root can change, by descriptor; who: root."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping

from slurm_colloc.errors import NodeError
from slurm_colloc.host.trusted import OPEN_DIRECTORY

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
        NodeError: Others may write in it, or it is no directory.
        OSError: It cannot be opened or made.
    """
    if makes:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
    try:
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise NodeError(f"{path} is no directory") from error
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
    # One that a killed hook has left is in nobody's use: whoever writes here holds the lock.
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
