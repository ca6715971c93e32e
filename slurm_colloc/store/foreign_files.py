"""Opening what somebody else could have made: as what it should be, or not at all.

Also: JSON that may come from anywhere: one sentence where it is odd, and nothing is guessed.

A link is not followed unless that is asked for, a pipe or device is not waited for, and who owns a
file is asked of the opened one, so that nothing can be put in its place in between.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.ownership import name_user

_CHUNK_BYTES = 1 << 16
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnexpectedFile(OSError):
    """Something else is there than what was to be opened.

    Attributes:
        what: What is odd: `kind`, `links`, `owner`, `mode` or `size`.
    """

    def __init__(self, what: str, reason: str, path: Path | str) -> None:
        super().__init__(errno.EFBIG if what == "size" else errno.EINVAL, reason, os.fspath(path))
        self.what = what


def tell_kind(mode: int) -> str:
    """What stands in the place of a file, by its mode as stat has it."""
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def open_file(
    path: Path | str,
    *,
    folder: int | None = None,
    owner: int | None = None,
    follows: bool = False,
    is_alone: bool = False,
) -> int:
    """Open a regular file to read.

    Args:
        path: The file.
        folder: Descriptor of the directory that the path is in; None for the working directory.
        owner: The uid that it must belong to; None for any.
        follows: Follow a link of that name; only with an owner, or where the caller made it.
        is_alone: Refuse a file that has another name: anybody could have given it that one.

    Returns:
        The descriptor.

    Raises:
        OSError: It cannot be opened.
        UnexpectedFile: It is no such file.
    """
    try:
        flags = _OPEN_FILE if follows else _OPEN_FILE | os.O_NOFOLLOW
        descriptor = os.open(path, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and not follows:
            raise UnexpectedFile("kind", "it is a link, no file", path) from error
        # What opening a socket says.
        if error.errno == errno.ENXIO:
            raise UnexpectedFile("kind", "it is a socket or a device, no file", path) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnexpectedFile("kind", f"it is {tell_kind(status.st_mode)}, no file", path)
        _check_owner(status, owner, path)
        if is_alone and status.st_nlink != 1:
            raise UnexpectedFile("links", "it has another name", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_private_directory(path: Path | str, *, folder: int | None = None) -> int:
    """Open a directory of the caller's own into which nobody else can write.

    Args:
        path: The directory.
        folder: Descriptor of the directory that the path is in; None for the working directory.

    Returns:
        The descriptor.

    Raises:
        OSError: It cannot be opened, or is a link.
        UnexpectedFile: It is another user's, or others may write into it.
    """
    descriptor = os.open(path, _OPEN_DIRECTORY, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        _check_owner(status, os.geteuid(), path)
        if status.st_mode & 0o022:
            raise UnexpectedFile("mode", "others may write into it", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(status: os.stat_result, owner: int | None, path: Path | str) -> None:
    if owner is not None and status.st_uid != owner:
        whose = f"it belongs to {name_user(status.st_uid)}, not to {name_user(owner)}"
        raise UnexpectedFile("owner", whose, path)


def read_descriptor(descriptor: int, path: Path | str, most: int) -> bytes:
    """Read an opened file from its beginning, with as few calls as possible.

    Args:
        descriptor: The file.
        path: Its name, for messages.
        most: How many bytes it may have.

    Raises:
        OSError: It cannot be read.
        UnexpectedFile: It has more.
    """
    if os.fstat(descriptor).st_size > most:
        raise UnexpectedFile("size", os.strerror(errno.EFBIG), path)
    parts, read = [], 0
    while part := os.read(descriptor, _CHUNK_BYTES):
        parts.append(part)
        read += len(part)
        # It may grow while it is read.
        if read > most:
            raise UnexpectedFile("size", os.strerror(errno.EFBIG), path)
    return b"".join(parts)


# ---- JSON that may come from anywhere: one sentence where it is odd, and nothing is guessed ------


def parse_foreign(data: bytes, where: str, *, strict: bool = False) -> Any:
    """Read JSON.

    Args:
        data: Its text in UTF-8; a byte order mark before it is passed over.
        where: Where it stands, for the message.
        strict: Refuse an object that has a key twice; it takes longer.

    Raises:
        UsageProblem: It is none.
    """
    hook = _refuse_doubles if strict else None
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
        return json.loads(text, object_pairs_hook=hook)
    except RecursionError as error:
        raise UsageProblem(f"{where}: it is not JSON that csub reads: nested too deep") from error
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{where}: it is not JSON (byte {error.start} is not UTF-8)") from error
    except (json.JSONDecodeError, _KeyTwice) as error:
        raise UsageProblem(f"{where}: it is not JSON ({error})") from error
    except ValueError as error:
        # Python reads no whole number of so many digits.
        why = "a number has too many digits"
        raise UsageProblem(f"{where}: it is not JSON that csub reads: {why}") from error


class _KeyTwice(ValueError):
    pass


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _KeyTwice(f"the key {show_foreign(key)} comes twice")
            seen.add(key)
    return found


def show_foreign(value: object) -> str:
    """A value of a foreign file in a message: short, and without escape sequences."""
    try:
        text = ascii(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deep"
    return text if len(text) <= 40 else f"{text[:37]}..."
