"""A directory of one's own on a node, made and removed by descriptors.

It lies where everybody may write (/tmp, /dev/shm), so no step trusts a path: names are random,
links are not followed, and what is removed is what was opened. A directory lives as long as
a process holds the lock of its file `lock`; one whose maker was killed can be told by that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.remove_directory import empty_directory, explain
from slurm_colloc.host.system.trusted_paths import OPEN_DIRECTORY, open_trusted

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


def open_private_directory(
    path: str, *, prefix: str = PREFIX, makes_lock: bool = False
) -> PrivateDirectory:
    """Open a directory made by `make_private_directory` again and take its lock.

    Args:
        path: Its path.
        prefix: What its name begins with; empty for one of `make_named_directory`.
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
        if not name.startswith(prefix) or os.fstat(descriptor).st_uid != os.geteuid():
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
