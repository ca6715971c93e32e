"""Entering and closing a pack: each is one atomic step of the file system.

A number is claimed by `mkdir members/NNNN`. The member enters by renaming its finished entry
into `inbox/`; the runner takes it by renaming it to `members/NNNN/taken`, and begins its first
start by renaming that to `begun`; the pack is closed by `rmdir inbox`, which fails while anything
is in it. An entry is therefore in exactly one place at any moment, and after the inbox is gone no
member can enter or be taken any more. Before it begins another pack may take it over
(store.pack.take_over).

A rename over NFS may answer ENOENT although it was done (the answer was lost and the request
repeated), so after a failure each side looks where its own file is.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from slurm_colloc.store.atomic_files import is_there


class DirectoryOperations(Protocol):
    """The five calls of the protocol, so that tests can interleave, lose and crash them."""

    def mkdir(self, path: str) -> None:
        """As os.mkdir with mode 0700."""

    def rename(self, source: str, target: str) -> None:
        """As os.rename."""

    def rmdir(self, path: str) -> None:
        """As os.rmdir."""

    def listdir(self, path: str) -> list[str]:
        """As os.listdir."""

    def exists(self, path: str) -> bool:
        """As os.path.lexists, but a failure to look is no absence."""


class RealDirectory:
    """The operating system's own calls."""

    def mkdir(self, path: str) -> None:
        """See DirectoryOperations."""
        os.mkdir(path, 0o700)

    def rename(self, source: str, target: str) -> None:
        """See DirectoryOperations."""
        os.rename(source, target)

    def rmdir(self, path: str) -> None:
        """See DirectoryOperations."""
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        """See DirectoryOperations."""
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        """See DirectoryOperations."""
        return is_there(path)


REAL = RealDirectory()


def format_number(number: int) -> str:
    """Directory name of a member: at least four digits, so that names sort."""
    return f"{number:04d}"


def claim_number(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Claim a member number; False if another process has it."""
    try:
        fs.mkdir(f"{pack}/members/{format_number(number)}")
    except FileExistsError:
        return False
    return True


def enter(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Put a member's finished entry into the inbox; False if the pack is closed."""
    name = format_number(number)
    entry = f"{pack}/members/{name}/entry.json"
    try:
        fs.rename(entry, f"{pack}/inbox/{name}.json")
    except OSError:
        # Gone from its place: the rename was done and only its answer was lost.
        return not fs.exists(entry)
    return True


def take(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Take a waiting member for the runner; False if it is not waiting (any more)."""
    return _take_as(pack, number, "taken", fs)


def begin(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Begin the start of a taken member, so that no other pack takes it over; False if one has.

    Raises:
        OSError: It is there and could not be renamed.
    """
    folder = f"{pack}/members/{format_number(number)}"
    try:
        fs.rename(f"{folder}/taken", f"{folder}/begun")
    except OSError:
        if fs.exists(f"{folder}/begun"):
            # It has begun before, or only the answer was lost.
            return True
        if fs.exists(f"{folder}/taken"):
            raise
        return False
    return True


def set_free(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Let another pack start a member again that has run here; False if one has it already.

    Only the pack's runner calls it, for a member that it will not start itself.

    Raises:
        OSError: It is there and could not be renamed.
    """
    folder = f"{pack}/members/{format_number(number)}"
    try:
        fs.rename(f"{folder}/begun", f"{folder}/taken")
    except OSError:
        if fs.exists(f"{folder}/begun"):
            raise
    return fs.exists(f"{folder}/taken")


def is_taken(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Whether a runner of this pack has taken a member, begun or not."""
    folder = f"{pack}/members/{format_number(number)}"
    return fs.exists(f"{folder}/taken") or fs.exists(f"{folder}/begun")


def withdraw(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Take a waiting member away from the runner (cancel); False if the runner has it."""
    return _take_as(pack, number, "cancelled", fs)


def _take_as(pack: str, number: int, name: str, fs: DirectoryOperations) -> bool:
    target = f"{pack}/members/{format_number(number)}/{name}"
    try:
        fs.rename(f"{pack}/inbox/{format_number(number)}.json", target)
    except OSError:
        return fs.exists(target)
    return True


def list_waiting(pack: str, fs: DirectoryOperations = REAL) -> list[int] | None:
    """Numbers of the members that wait in the inbox, sorted; None if the pack is closed."""
    try:
        names = fs.listdir(f"{pack}/inbox")
    except OSError:
        if fs.exists(f"{pack}/inbox"):
            raise
        return None
    return sorted(
        int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()
    )


def list_taken(pack: str, fs: DirectoryOperations = REAL) -> list[int]:
    """Numbers of the members that some runner has taken, sorted."""
    return sorted(
        int(name)
        for name in fs.listdir(f"{pack}/members")
        if name.isdigit() and is_taken(pack, int(name), fs)
    )


def close(pack: str, fs: DirectoryOperations = REAL) -> bool:
    """Close the pack; False if something has entered meanwhile and must be taken first."""
    with contextlib.suppress(OSError):
        fs.rmdir(f"{pack}/inbox")
    return not fs.exists(f"{pack}/inbox")
