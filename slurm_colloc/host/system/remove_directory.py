"""Removing directories by descriptors: no link is followed, and nothing else is removed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.trusted_paths import OPEN_DIRECTORY, open_trusted

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


def remove_directory(
    path: str, descriptor: int | None = None, deadline: float | None = None
) -> tuple[str, ...]:
    """Remove a directory with all that is in it.

    Args:
        path: Its path.
        descriptor: The same directory, where it is open: nothing but that one is removed.
        deadline: Until when, on the monotonic clock; a usual one where None.

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
        left = empty_directory(opened, deadline)
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


def empty_directory(descriptor: int, deadline: float | None = None) -> tuple[str, ...]:
    """Remove what is in an open directory, as far as it goes.

    Deep trees cost no recursion: what a directory holds is moved up to the top before it is
    removed. One entry that cannot be removed does not keep the others, and a million of them are
    never all in memory.

    Args:
        descriptor: The directory.
        deadline: Until when, on the monotonic clock; a usual one where None.

    Returns:
        Names of what is left at the top, with reasons.
    """
    device = os.fstat(descriptor).st_dev
    if deadline is None:
        deadline = time.monotonic() + _REMOVAL_S
    while True:
        left = {}
        is_changed = False
        with os.scandir(descriptor) as entries:
            for entry in entries:
                try:
                    _check_time(deadline)
                    _remove_entry(descriptor, entry.name, device, deadline)
                    is_changed = True
                except FileNotFoundError:
                    continue
                except TimeoutError as error:
                    return (f"{entry.name}: {explain(error)}",)
                except OSError as error:
                    left[entry.name] = explain(error)
        # What was removed or moved meanwhile may have kept the listing from showing all.
        if not is_changed:
            return tuple(f"{name}: {reason}" for name, reason in sorted(left.items()))


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(errno.ETIMEDOUT, "no time was left")


def _remove_entry(top: int, name: str, device: int, deadline: float) -> None:
    """Remove one entry, or bring what is below it to the top."""
    try:
        os.unlink(name, dir_fd=top)
    except (IsADirectoryError, PermissionError) as error:
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            raise error from None
    else:
        return
    moved = False
    inner = os.open(name, OPEN_DIRECTORY, dir_fd=top)
    try:
        status = os.fstat(inner)
        if status.st_dev != device:
            raise OSError(errno.EBUSY, "another file system is mounted there")
        if os.geteuid() == 0 and status.st_uid != 0:
            # Its owner may still have it open, and would go on making files in it.
            os.fchown(inner, 0, 0)
            os.fchmod(inner, 0o700)
        with os.scandir(inner) as entries:
            for entry in entries:
                _check_time(deadline)
                try:
                    os.unlink(entry.name, dir_fd=inner)
                except (IsADirectoryError, PermissionError):
                    try:
                        os.rmdir(entry.name, dir_fd=inner)
                    except OSError:
                        with contextlib.suppress(OSError):
                            fresh = os.urandom(8).hex()
                            os.rename(entry.name, fresh, src_dir_fd=inner, dst_dir_fd=top)
                            moved = True
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError:
        # Where something was moved away there is another round, which tries again.
        if not moved:
            raise
