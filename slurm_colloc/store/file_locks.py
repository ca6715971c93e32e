"""Locks of files, held by a process and by those that inherit them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.ownership import refuse_protected
from slurm_colloc.store.atomic_files import explain_os_errors, make_directory, open_regular
from slurm_colloc.store.foreign_files import UnexpectedFile

_FOLDER_WAIT_S = 10.0


def is_locked(path: Path | str) -> bool:
    """True while a living process holds the lock of a file; False where there is no such file.

    Raises:
        StateError: It cannot be told: the caller may not look, or the file system fails.
    """
    try:
        # To look takes no right to write, and a shared lock: two that look do not see each other.
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError, UnexpectedFile):
        return False
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StateError(f"cannot read {path}: {reason}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


POLL_S = 0.01


@dataclasses.dataclass(frozen=True)
class Lock:
    """A lock that was asked for; true where it is held.

    Attributes:
        descriptors: What a child has to inherit, so that the lock lasts until it has ended too.
        problem: Why it cannot be had at all; None where another process keeps it.
    """

    descriptors: tuple[int, ...] = ()
    problem: OSError | None = None

    def __bool__(self) -> bool:
        return bool(self.descriptors)


@contextlib.contextmanager
def hold_lock(path: Path | str, wait_s: float) -> Iterator[Lock]:
    """Hold a lock file for the time of the body, if it can be had in time.

    The lock ends with the process that holds it and with those that inherited it. On NFS the
    kernel turns it into a byte-range lock of the server (flock(2)).

    Args:
        path: The file, made where it is missing.
        wait_s: How long to wait for it; 0 looks once.

    Yields:
        The lock: true where it is held; false where another process kept it, or, with its problem,
        where the file cannot be opened or the file system has no locks. The body decides what it
        may do without.

    Raises:
        StateError: It lies in another user's state, which is only read.
    """
    refuse_protected(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        lock = Lock(problem=error)
    else:
        try:
            yield _lock(descriptor, time.monotonic() + wait_s)
        finally:
            # It is given back all the same, and nothing was written.
            with contextlib.suppress(OSError):
                os.close(descriptor)
        return
    # Not within the except: what the body raises has nothing to do with it.
    yield lock


def _lock(descriptor: int, deadline: float) -> Lock:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return Lock()
            time.sleep(POLL_S)
        except OSError as error:
            return Lock(problem=error)
        else:
            return Lock((descriptor,))


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of the state, which is made where it is missing.

    Raises:
        StateError: It cannot be locked, or another process has held it for so long.
    """
    make_directory(folder)
    path = folder / "lock"
    with hold_lock(path, _FOLDER_WAIT_S) as lock:
        if lock.problem is not None:
            with explain_os_errors("lock", path):
                raise lock.problem
        if not lock:
            raise StateError(f"{path} is being written by another csub", hint="try again")
        yield
