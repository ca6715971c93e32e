"""Entering and closing a pack: each is one atomic step of the file system.

Also: a member that has not begun moves to another pack: two steps, never back; the mark of a GPU
set that has nothing to do, while others of its Slurm job go on.

A number is claimed by `mkdir members/NNNN`. The member enters by renaming its finished entry
into `inbox/`; the runner takes it by renaming it to `members/NNNN/taken`, and begins its first
start by renaming that to `begun`; the pack is closed by `rmdir inbox`, which fails while anything
is in it. An entry is therefore in exactly one place at any moment, and after the inbox is gone no
member can enter or be taken any more. Before it begins another pack may take it over.

A rename over NFS may answer ENOENT although it was done (the answer was lost and the request
repeated), so after a failure each side looks where its own file is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from slurm_colloc.store.atomic_files import is_there, write_atomic


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


# ---- A member that has not begun moves to another pack: two steps, never back --------------------
#
# It is decided by one rename inside the pack where the member waits: its entry in the inbox, or
# `members/NNNN/taken`, becomes `members/NNNN/over.PACK`. From then on the member is that pack's,
# the taker's. Its directory follows by a second rename, after which the taker accepts it:
# `over.PACK` becomes `taken`. A number is given once in a whole submission, so nothing is in its
# way there. A member of another submission gets a number of its own in the taker
# (store.member_states), which the mark carries: `over.PACK=MMMM`, and its directory there is
# `members/MMMM`.
#
# What a crash leaves between the steps only ever goes on in the same direction, and any process may
# do it: moving a directory twice is moving it once. Alone the taker accepts. A member moves at most
# once, from the pack that it was planned for, so that a rename which comes late finds nothing.
#
# Against the start of the member the decision is safe by itself: a runner begins a first start by
# renaming `taken` to `begun`. Against the sweep, which submits again what a pack that is over has
# never started, it is made under the lock of the pack where the member waits.

OVER = "over."
"""Beginning of the mark of a member that another pack has taken over; the taker's id follows."""


class Taking(NamedTuple):
    """What the mark of a member says that was taken over.

    Attributes:
        taker: The id of the pack that has taken it.
        number: Its number there.
    """

    taker: str
    number: int


def decide(
    source: str, taker: str, number: int, there: int | None = None, fs: DirectoryOperations = REAL
) -> bool:
    """Take a waiting member over; False if it does not wait (any more).

    The caller holds the source's lock, and has seen that the source is not over.

    Args:
        source: Path of the pack where it waits.
        taker: Path of the pack that takes it.
        number: The member's number.
        there: Its number in the taker, which no other member has been given; None for the same.
        fs: The calls.
    """
    name = format_number(number)
    there = number if there is None else there
    mark = f"{OVER}{_name(taker)}" if there == number else f"{OVER}{_name(taker)}={there}"
    target = f"{source}/members/{name}/{mark}"
    for entry in (f"{source}/inbox/{name}.json", f"{source}/members/{name}/taken"):
        try:
            fs.rename(entry, target)
        except OSError:
            continue
        return True
    # The answer may have been lost, and another process may have moved it since.
    return fs.exists(target) or fs.exists(f"{taker}/members/{format_number(there)}")


def move(
    source: str, taker: str, number: int, there: int | None = None, fs: DirectoryOperations = REAL
) -> bool:
    """Let the directory of a member that was taken over follow it; True once it is there.

    Args:
        source: Path of the pack where it waited.
        taker: Path of the pack that has taken it.
        number: The member's number.
        there: Its number in the taker; None for the same.
        fs: The calls.
    """
    target = f"{taker}/members/{format_number(number if there is None else there)}"
    with contextlib.suppress(OSError):
        fs.rename(f"{source}/members/{format_number(number)}", target)
    return fs.exists(target)


def accept(taker: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Let the taker's runner start a member that has come; False if it was cancelled on its way.

    Args:
        taker: Path of the pack that has taken it.
        number: Its number there.
        fs: The calls.

    Raises:
        OSError: It is there and could not be renamed.
    """
    folder = f"{taker}/members/{format_number(number)}"
    # Only a member that keeps its number has a mark without one.
    arrived = [f"{folder}/{OVER}{_name(taker)}", f"{folder}/{OVER}{_name(taker)}={number}"]
    mark = arrived[fs.exists(arrived[1])]
    try:
        fs.rename(mark, f"{folder}/taken")
    except OSError:
        if fs.exists(mark):
            raise
        # Done before, by an earlier attempt, or only the answer was lost.
        return fs.exists(f"{folder}/taken") or fs.exists(f"{folder}/begun")
    return True


def withdraw_moving(pack: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Cancel a member that is being taken over; False if it is not, or not here any more.

    Args:
        pack: Path of the pack where its directory is.
        number: The member's number.
        fs: The calls.
    """
    folder = f"{pack}/members/{format_number(number)}"
    with contextlib.suppress(OSError):
        for name in fs.listdir(folder):
            if name.startswith(OVER):
                fs.rename(f"{folder}/{name}", f"{folder}/cancelled")
    return fs.exists(f"{folder}/cancelled")


def give_back(source: str, number: int, taker: str, fs: DirectoryOperations = REAL) -> bool:
    """Undo a decision whose taker's directory was removed: no process can move the member there."""
    folder = f"{source}/members/{format_number(number)}"
    if fs.exists(taker):
        return False
    with contextlib.suppress(OSError):
        for name in fs.listdir(folder):
            if parse_mark(name, number).taker == _name(taker):
                fs.rename(f"{folder}/{name}", f"{folder}/taken")
    return fs.exists(f"{folder}/taken")


def parse_mark(name: str, number: int) -> Taking:
    """What the name of a file in a member's directory says of a taker; empty where it is no mark.

    Args:
        name: The file's name.
        number: The member's number where the file is.
    """
    if not name.startswith(OVER):
        return Taking("", number)
    taker, _, there = name.removeprefix(OVER).partition("=")
    return Taking(taker, int(there) if there.isdigit() else number)


def find_taker(pack: str, number: int, fs: DirectoryOperations = REAL) -> str:
    """The id of the pack that has taken a member over whose directory is here; empty for none.

    That is the pack's own id where the member has come and was not accepted yet.

    Raises:
        OSError: The member's directory is there and cannot be read.
    """
    return _find_taking(pack, number, fs).taker


def _find_taking(pack: str, number: int, fs: DirectoryOperations) -> Taking:
    """Who has taken a member over, and as which number.

    Raises:
        OSError: The member's directory is there and cannot be read.
    """
    folder = f"{pack}/members/{format_number(number)}"
    try:
        names = fs.listdir(folder)
    except OSError:
        if fs.exists(folder):
            raise
        return Taking("", number)
    marks = (name for name in names if name.startswith(OVER))
    return parse_mark(next(marks, ""), number)


def list_moving(pack: str, fs: DirectoryOperations = REAL) -> dict[int, Taking]:
    """The members in a pack's directory that were taken over and not accepted, with their takers.

    Raises:
        OSError: The members cannot be listed.
    """
    numbers = sorted(int(name) for name in fs.listdir(f"{pack}/members") if name.isdigit())
    found = ((number, _find_taking(pack, number, fs)) for number in numbers)
    return {number: taking for number, taking in found if taking.taker}


def list_leaving(pack: str, fs: DirectoryOperations = REAL) -> dict[int, Taking]:
    """Those of them that go to another pack; `list_moving` has those that have come, too."""
    own = _name(pack)
    return {n: taking for n, taking in list_moving(pack, fs).items() if taking.taker != own}


def list_arrived(pack: str, fs: DirectoryOperations = REAL) -> list[int]:
    """Those that have come to this pack, and were not accepted yet."""
    own = _name(pack)
    return [number for number, taking in list_moving(pack, fs).items() if taking.taker == own]


def _name(pack: str) -> str:
    return pack.rpartition("/")[2]


# ---- The mark of a GPU set that has nothing to do, while others of its Slurm job go on -----------
#
# Its runner stays, because what starts again elsewhere may have room only here. It ends with the
# last of them: once none has anything left to do.

_NAME = "idle"


def mark_idle(pack: Path) -> None:
    """Say that nothing runs in a pack and nothing waits in it; its runner alone does.

    Raises:
        StateError: It cannot be written.
    """
    write_atomic(pack / _NAME, b"")


def forget_idle(pack: Path) -> None:
    """Take it back: a member has come, or a new attempt begins."""
    with contextlib.suppress(OSError):
        os.unlink(pack / _NAME)


def is_idle(pack: Path) -> bool:
    """Whether a pack's runner has said that it has nothing to do."""
    return is_there(pack / _NAME)
