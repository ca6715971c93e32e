"""Files that are either whole or absent: temporary file, then `os.replace`.

Also: locks of files, held by a process and by those that inherit them; directories that a job names
and that are not there: Slurm could not start it; a bound on the CPU time of something that may take
for ever: a regular expression of a user's; a directory of the site's into which every user may put
files, and where none sees others'.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.records import Record, build_record
from slurm_colloc.ownership import find_protected_owner, refuse_protected
from slurm_colloc.store.foreign_files import UnexpectedFile, open_file, read_descriptor

SCHEMA = 1
"""Version of every JSON file in the state; a reader refuses another one."""

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


def remove_file(path: Path | str) -> None:
    """Remove a file, if it is there.

    Raises:
        StateError: It cannot be removed.
    """
    with explain_os_errors("remove", path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def list_names(folder: Path | str, doing: str = "read") -> list[str]:
    """The names in a directory; none where it is not there.

    Args:
        folder: The directory.
        doing: What is being done to it, for the message.

    Raises:
        StateError: It cannot be read.
    """
    with explain_os_errors(doing, folder):
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []


def sync_file_system(path: Path | str) -> None:
    """Wait until all that was written to a path's file system is on its disk.

    For thousands of files it takes as long as for a few; a network file system has them already.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ctypes.CDLL(None).syncfs(descriptor)
        finally:
            os.close(descriptor)


def remove_tree(path: Path | str) -> None:
    """Remove a directory and all that is in it; what cannot be removed stays."""
    # It loads what packs and unpacks archives.
    import shutil

    shutil.rmtree(path, ignore_errors=True)


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
        StateError: It cannot be read, is damaged, or is of another version.
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
    if schema != SCHEMA:
        raise StateError(
            f"{path} is of another version (schema {schema}, this one reads {SCHEMA})",
            hint="use the csub that submitted it",
        )
    return dict(value)


def read_record(path: Path | str, kind: type[Record]) -> Record | None:
    """Read the file of a record; None if there is none.

    Args:
        path: The file.
        kind: The record's dataclass.

    Raises:
        StateError: It cannot be read, is damaged, or has another schema.
    """
    value = read_json(path)
    return None if value is None else parse_record(kind, value, path)


def parse_record(kind: type[Record], value: object, path: Path | str) -> Record:
    """Make a record of its JSON value.

    Args:
        kind: Its dataclass.
        value: The value.
        path: Where it was read, for the message.

    Raises:
        StateError: It is damaged.
    """
    try:
        return build_record(kind, value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged ({error})", hint="move it away; the Slurm job is not touched"
        ) from error


@contextlib.contextmanager
def suppress_damage() -> Iterator[None]:
    """Pass over a file that is damaged or of another version.

    One that the file system does not show now is not passed over.

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
    """Make a private directory and its parents, whatever the umask; one that exists stays as it is.

    Raises:
        StateError: It cannot be made, or belongs to another user whose state is only read.
    """
    refuse_protected(path)
    with explain_os_errors("make directory", path):
        try:
            _make_private(os.fspath(path))
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise
        except OSError:
            # A file system may say this first of one that is there.
            if not os.path.isdir(path):
                raise


def _make_private(path: str) -> None:
    """As os.makedirs, which gives the parents the mode of the umask: others might write there."""
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        parent = path.rstrip("/").rpartition("/")[0]
        if not parent:
            raise
        with contextlib.suppress(FileExistsError):
            _make_private(parent)
        os.mkdir(path, 0o700)


# ---- Locks of files, held by a process and by those that inherit them ----------------------------

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


@dataclass(frozen=True)
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


# ---- Directories that a job names and that are not there: Slurm could not start it ---------------


def find_missing_directories(directory: str, patterns: Sequence[tuple[str, str]]) -> list[str]:
    """Say what is missing, a clause each; what cannot be looked at is not called missing.

    Args:
        directory: The job's working directory.
        patterns: Its output files, as (option, filename pattern of sbatch). A directory whose own
            name is a pattern is not known before the job starts, and its parent is looked at.
    """
    if _is_missing(directory):
        return [f"its working directory {directory} does not exist"]
    found = []
    for option, pattern in patterns:
        folder = os.path.dirname(pattern)
        if "\\" not in folder:
            folder = folder.partition("%")[0]
            if folder != os.path.dirname(pattern):
                folder = os.path.dirname(folder)
        if folder and _is_missing(os.path.join(directory, folder)):
            found.append(f"the directory {folder} of --{option}={pattern} does not exist")
    return found


def _is_missing(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False


# ----
# A bound on the CPU time of something that may take for ever: a regular expression of a user's.


class TooSlow(Exception):
    """It has used up its time."""


@contextlib.contextmanager
def limited_cpu(seconds: float) -> Iterator[None]:
    """Let the main thread use so much CPU time; Python's `re` looks for signals now and then.

    Raises:
        TooSlow: It was not enough.
    """

    def give_up(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


# ----
# A directory of the site's into which every user may put files, and where none sees others'.
#
# Its mode is 1733, as of a mail drop: users can make files in it, cannot list it, and cannot touch
# those of others. Names are random, so that none can be guessed or taken before.

ENDING = ".json"
HALF = ".new."
"""How names begin of files that are not whole yet."""


def drop_file(spool: Path, data: bytes) -> None:
    """Put a file into a spool, whole or not at all.

    Its collector is another user, so those may read it who know its name: no other user does.

    Args:
        spool: The directory.
        data: What the file holds.

    Raises:
        StateError: There is no such directory, it lets others remove files, or the disk is full.
    """
    with explain_os_errors("write into", spool):
        status = os.stat(spool)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(20, os.strerror(20), str(spool))
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise StateError(
                f"the spool {spool} lets users remove each other's files", hint="chmod 1733 it"
            )
        name = f"{os.urandom(16).hex()}{ENDING}"
        half, whole = spool / f"{HALF}{name}", spool / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(half, flags, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fchmod(descriptor, 0o644)
            finally:
                os.close(descriptor)
            os.rename(half, whole)
        except BaseException:
            os.unlink(half)
            raise
