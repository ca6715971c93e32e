"""A member that has not begun moves to another pack: two steps, never back.

It is decided by one rename inside the pack where the member waits: its entry in the inbox, or
`members/NNNN/taken`, becomes `members/NNNN/over.PACK`. From then on the member is that pack's, the
taker's. Its directory follows by a second rename, after which the taker accepts it: `over.PACK`
becomes `taken`. A number is given once in a whole submission, so nothing is in its way there. A
member of another submission gets a number of its own in the taker (store.pack.member_home), which
the mark carries: `over.PACK=MMMM`, and its directory there is `members/MMMM`.

What a crash leaves between the steps only ever goes on in the same direction, and any process may
do it: moving a directory twice is moving it once. Alone the taker accepts. A member moves at most
once, from the pack that it was planned for, so that a rename which comes late finds nothing.

Against the start of the member the decision is safe by itself: a runner begins a first start by
renaming `taken` to `begun`. Against the sweep, which submits again what a pack that is over has
never started, it is made under the lock of the pack where the member waits.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from slurm_colloc.store.pack.inbox import REAL, DirectoryOperations, format_number

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
