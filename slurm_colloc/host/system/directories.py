"""A directory of one's own on a node, made and removed by descriptors.

Also: opening directories of a path that no other user can exchange meanwhile; removing directories
by descriptors: no link is followed, and nothing else is removed.

It lies where everybody may write (/tmp, /dev/shm), so no step trusts a path: names are random,
links are not followed, and what is removed is what was opened. A directory lives as long as
a process holds the lock of its file `lock`; one whose maker was killed can be told by that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- Opening directories of a path that no other user can exchange meanwhile ---------------------

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


# ---- Removing directories by descriptors: no link is followed, and nothing else is removed -------

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


# ---- A directory of one's own on a node, made and removed by descriptors -------------------------

BASES = ("/tmp", "/dev/shm", "/var/tmp")
"""Where a user's directory may lie, best first."""

PREFIX = "csubm-"
PIPE = "p"
LOGS = "l"
LOCK = "lock"
DAEMON_LOG = "daemon.log"
"""The standard output of an MPS daemon: with `-f` its log and its servers'."""

LONGEST_PIPE_PATH_BYTES = 87
"""NVIDIA's daemon answers a longer pipe directory with exit status 1 and no word (550, 580): its
longest socket name there is `control_privileged`, and a socket's path has 108 bytes."""

ROOM_BYTES = 256 * 1024
"""What must still fit: sockets, state and the first minutes of logs."""

_YOUNG_S = 60.0


@dataclass(frozen=True)
class Owner:
    """Whom root becomes for everything that touches the user's files.

    Args:
        uid: User id, as Slurm gave it.
        gid: Primary group id.
        groups: Supplementary group ids.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class PrivateDirectory:
    """A directory that was made, or opened again, and its lock.

    Args:
        path: Its absolute path, without symbolic links.
        descriptor: The open directory.
        lock: Descriptor that holds its lock; closing it, or dying, gives it up.
        refused: Bases that were passed over, each with the reason.
    """

    path: str
    descriptor: int
    lock: int
    refused: tuple[str, ...] = ()

    @property
    def pipe_path(self) -> str:
        """The CUDA_MPS_PIPE_DIRECTORY."""
        return f"{self.path}/{PIPE}"

    @property
    def log_path(self) -> str:
        """The CUDA_MPS_LOG_DIRECTORY."""
        return f"{self.path}/{LOGS}"

    def close(self) -> None:
        """Give up the lock."""
        for descriptor in (self.descriptor, self.lock):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def make_private_directory(
    bases: Sequence[str] = BASES, owner: Owner | None = None
) -> PrivateDirectory:
    """Make a fresh directory with `p` (pipes) and `l` (logs) below the first base that will do.

    Args:
        bases: Directories to try, in order.
        owner: As root: who gets `p` and `l`; the directory itself stays root's, and others may
            pass through it.

    Raises:
        NodeError: No base will do; the message has the reason for each.
    """
    refused: list[str] = []
    for base in bases:
        try:
            return _make_below(base, owner, tuple(refused))
        except (OSError, NodeError) as error:
            reason = error.message if isinstance(error, NodeError) else explain(error)
            refused.append(f"{base}: {reason}")
    raise NodeError(
        f"no directory can be made for the MPS daemon ({'; '.join(refused) or 'none was named'})",
        hint="name a writable local directory with a short path",
    )


def _make_below(base: str, owner: Owner | None, refused: tuple[str, ...]) -> PrivateDirectory:
    base = os.path.realpath(base)
    parent = open_trusted(base)
    try:
        for _ in range(16):
            name = PREFIX + os.urandom(4).hex()
            path = os.path.join(base, name)
            _check_length(path)
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                continue
            made = _fill(parent, name, path, owner, refused)
            if made is not None:
                return made
        raise NodeError("no free name was found")
    finally:
        os.close(parent)


def _check_length(path: str) -> None:
    length = len(os.fsencode(f"{path}/{PIPE}"))
    if length > LONGEST_PIPE_PATH_BYTES:
        raise NodeError(
            f"its pipe directory would have {length} bytes, and NVIDIA's daemon takes "
            f"{LONGEST_PIPE_PATH_BYTES} at most"
        )


def _fill(
    parent: int, name: str, path: str, owner: Owner | None, refused: tuple[str, ...]
) -> PrivateDirectory | None:
    """Fill a directory that was just made; None where a sweep took it for an abandoned one."""
    descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    lock = -1
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise NodeError("somebody else's directory stands in the way")
        os.fchmod(descriptor, 0o711 if owner else 0o700)
        lock = os.open(
            LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=descriptor
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileNotFoundError(errno.ENOENT, "swept") from None
        os.posix_fallocate(lock, 0, ROOM_BYTES)
        os.ftruncate(lock, 0)
        for child in (PIPE, LOGS):
            os.mkdir(child, 0o700, dir_fd=descriptor)
            if owner is not None:
                # Only root can have touched it: the directory around it is root's.
                opened = os.open(child, OPEN_DIRECTORY, dir_fd=descriptor)
                os.fchown(opened, owner.uid, owner.gid)
                os.close(opened)
    except BaseException as error:
        empty_directory(descriptor)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=parent)
        for opened in (descriptor, lock):
            if opened >= 0:
                os.close(opened)
        if isinstance(error, FileNotFoundError):
            return None
        raise
    return PrivateDirectory(path, descriptor, lock, refused)


def make_named_directory(base: str, name: str, owner: Owner | None = None) -> PrivateDirectory:
    """Make a private directory of that name, below one that is this user's alone.

    Args:
        base: Where.
        name: Its name.
        owner: As for `make_private_directory`.

    Raises:
        NodeError: Its path is too long, or someone else could exchange it.
        OSError: It cannot be made, or is there already.
    """
    parent = open_trusted(base)
    try:
        path = os.path.join(base, name)
        _check_length(path)
        os.mkdir(name, 0o700, dir_fd=parent)
        made = _fill(parent, name, path, owner, ())
    finally:
        os.close(parent)
    if made is None:
        raise NodeError(f"somebody has removed {path} again")
    return made


def open_private_directory(path: str, *, makes_lock: bool = False) -> PrivateDirectory:
    """Open a directory made by `make_private_directory` again and take its lock.

    Args:
        path: Its path.
        makes_lock: Make the lock where it is missing.

    Raises:
        BlockingIOError: The lock is held: its maker lives.
        NodeError: It is not one of this user's.
        OSError: It cannot be opened.
    """
    base, name = os.path.split(path)
    parent = open_trusted(os.path.realpath(base))
    try:
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    finally:
        os.close(parent)
    lock = -1
    try:
        if not name.startswith(PREFIX) or os.fstat(descriptor).st_uid != os.geteuid():
            raise NodeError(f"{path} is not a directory that this user's packs have made")
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if makes_lock else 0)
        lock = os.open(LOCK, flags, 0o600, dir_fd=descriptor)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        for opened in (descriptor, lock):
            if opened >= 0:
                os.close(opened)
        raise
    return PrivateDirectory(os.path.join(os.path.realpath(base), name), descriptor, lock)


def list_private_directories(bases: Iterable[str]) -> Iterator[str]:
    """Paths of this user's directories below the bases, alive or not."""
    seen = set()
    for base in map(os.path.realpath, bases):
        if base in seen:
            continue
        seen.add(base)
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                            yield entry.path


def is_half_made(path: str) -> bool:
    """It has no lock yet, and the process that makes it cannot still be at it."""
    with contextlib.suppress(OSError):
        return (
            not os.path.lexists(f"{path}/{LOCK}")
            and time.time() - os.lstat(path).st_mtime > _YOUNG_S
        )
    return False
