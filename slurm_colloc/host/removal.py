"""Removing directories by descriptors: no link is followed, and nothing else is removed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from slurm_colloc.errors import NodeError
from slurm_colloc.host.trusted import OPEN_DIRECTORY, open_trusted

_REMOVAL_S = 10.0


def explain(error: OSError) -> str:
    """What the kernel says, without numbers and paths."""
    return os.strerror(error.errno) if error.errno else str(error)


def remove_at_once(path: str, opened: int) -> bool:
    """Remove an open directory as fast as possible, for a process that may be killed any moment.

    Nothing is proven again, and nothing deeper than one level is handled: `remove_directory` does
    what is left.

    Args:
        path: Its path.
        opened: The same directory, open.

    Returns:
        True where nothing is left.
    """
    try:
        for name in os.listdir(opened):
            try:
                os.unlink(name, dir_fd=opened)
            except (IsADirectoryError, PermissionError):
                inner = os.open(name, OPEN_DIRECTORY, dir_fd=opened)
                for entry in os.listdir(inner):
                    os.unlink(entry, dir_fd=inner)
                os.close(inner)
                os.rmdir(name, dir_fd=opened)
        os.rmdir(path)
    except OSError:
        return False
    return True


def remove_directory(path: str, descriptor: int | None = None) -> tuple[str, ...]:
    """Remove a directory with all that is in it.

    Args:
        path: Its path.
        descriptor: The same directory, where it is open: nothing but that one is removed.

    Returns:
        What could not be removed, with reasons; empty once it is gone.
    """
    base, name = os.path.split(path)
    try:
        parent = open_trusted(os.path.realpath(base))
    except (OSError, NodeError) as error:
        return (f"{path}: {explain(error) if isinstance(error, OSError) else error.message}",)
    opened = -1
    try:
        opened = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        found = os.fstat(opened)
        if found.st_uid != os.geteuid() or (
            descriptor is not None and not os.path.samestat(found, os.fstat(descriptor))
        ):
            return (f"{path}: it is another directory now",)
        left = empty_directory(opened)
        if left:
            return tuple(f"{path}/{entry}" for entry in left)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (f"{path}: {explain(error)}",)
    finally:
        os.close(parent)
        if opened >= 0:
            os.close(opened)
    return ()


def empty_directory(descriptor: int) -> tuple[str, ...]:
    """Remove what is in an open directory, as far as it goes.

    Deep trees cost no recursion: what a directory holds is moved up to the top before it is
    removed. One entry that cannot be removed does not keep the others.

    Returns:
        Names of what is left at the top, with reasons.
    """
    device = os.fstat(descriptor).st_dev
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        left = {}
        moved = False
        for name in os.listdir(descriptor):
            try:
                moved |= _remove_entry(descriptor, name, device)
            except FileNotFoundError:
                continue
            except OSError as error:
                left[name] = explain(error)
        if not moved or time.monotonic() > deadline:
            return tuple(f"{name}: {reason}" for name, reason in sorted(left.items()))


def _remove_entry(top: int, name: str, device: int) -> bool:
    """Remove one entry; True where something below it has come to the top instead."""
    try:
        os.unlink(name, dir_fd=top)
    except (IsADirectoryError, PermissionError) as error:
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            raise error from None
    else:
        return False
    moved = False
    inner = os.open(name, OPEN_DIRECTORY, dir_fd=top)
    try:
        if os.fstat(inner).st_dev != device:
            raise OSError(errno.EBUSY, "another file system is mounted there")
        for entry in os.listdir(inner):
            try:
                os.unlink(entry, dir_fd=inner)
            except (IsADirectoryError, PermissionError):
                try:
                    os.rmdir(entry, dir_fd=inner)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.rename(entry, os.urandom(8).hex(), src_dir_fd=inner, dst_dir_fd=top)
                        moved = True
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError:
        # With something moved out of it there is another round, which tries again.
        if not moved:
            raise
    return moved
