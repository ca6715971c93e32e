"""A member that has not begun moves to another pack of its submission: two steps, never back.

It is decided by one rename inside the pack where the member waits: its entry in the inbox, or
`members/NNNN/taken`, becomes `members/NNNN/over.PACK`. From then on the member is that pack's, the
taker's. Its directory follows by a second rename, after which the taker accepts it: `over.PACK`
becomes `taken`. A number is given once in a whole submission, so nothing is in its way there.

What a crash leaves between the steps only ever goes on in the same direction, and any process may
do it: moving a directory twice is moving it once. Alone the taker accepts. A member moves at most
once, from the pack that it was planned for, so that a rename which comes late finds nothing.

Against the start of the member the decision is safe by itself: a runner begins a first start by
renaming `taken` to `begun`. Against the sweep, which submits again what a pack that is over has
never started, it is made under the lock of the pack where the member waits.
"""

from __future__ import annotations

import contextlib

from slurm_colloc.store.pack.inbox import REAL, DirectoryOperations, format_number

OVER = "over."
"""Beginning of the mark of a member that another pack has taken over; the taker's id follows."""


def decide(source: str, taker: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Take a waiting member over; False if it does not wait (any more).

    The caller holds the source's lock, and has seen that the source is not over.

    Args:
        source: Path of the pack where it waits.
        taker: Path of the pack that takes it.
        number: The member's number.
        fs: The calls.
    """
    name = format_number(number)
    target = f"{source}/members/{name}/{OVER}{_name(taker)}"
    for entry in (f"{source}/inbox/{name}.json", f"{source}/members/{name}/taken"):
        try:
            fs.rename(entry, target)
        except OSError:
            continue
        return True
    # The answer may have been lost, and another process may have moved it since.
    return fs.exists(target) or fs.exists(f"{taker}/members/{name}")


def move(source: str, taker: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Let the directory of a member that was taken over follow it; True once it is there."""
    name = format_number(number)
    with contextlib.suppress(OSError):
        fs.rename(f"{source}/members/{name}", f"{taker}/members/{name}")
    return fs.exists(f"{taker}/members/{name}")


def accept(taker: str, number: int, fs: DirectoryOperations = REAL) -> bool:
    """Let the taker's runner start a member that has come; False if it was cancelled on its way.

    Raises:
        OSError: It is there and could not be renamed.
    """
    folder = f"{taker}/members/{format_number(number)}"
    arrived = f"{folder}/{OVER}{_name(taker)}"
    try:
        fs.rename(arrived, f"{folder}/taken")
    except OSError:
        if fs.exists(arrived):
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
        fs.rename(f"{folder}/{OVER}{_name(taker)}", f"{folder}/taken")
    return fs.exists(f"{folder}/taken")


def find_taker(pack: str, number: int, fs: DirectoryOperations = REAL) -> str:
    """The id of the pack that has taken a member over whose directory is here; empty for none.

    That is the pack's own id where the member has come and was not accepted yet.

    Raises:
        OSError: The member's directory is there and cannot be read.
    """
    folder = f"{pack}/members/{format_number(number)}"
    try:
        names = fs.listdir(folder)
    except OSError:
        if fs.exists(folder):
            raise
        return ""
    return next((name.removeprefix(OVER) for name in names if name.startswith(OVER)), "")


def list_moving(pack: str, fs: DirectoryOperations = REAL) -> dict[int, str]:
    """The members in a pack's directory that were taken over and not accepted, with their takers.

    Raises:
        OSError: The members cannot be listed.
    """
    numbers = sorted(int(name) for name in fs.listdir(f"{pack}/members") if name.isdigit())
    takers = ((number, find_taker(pack, number, fs)) for number in numbers)
    return {number: taker for number, taker in takers if taker}


def list_leaving(pack: str, fs: DirectoryOperations = REAL) -> dict[int, str]:
    """Those of them that go to another pack; `list_moving` has those that have come, too."""
    own = _name(pack)
    return {n: taker for n, taker in list_moving(pack, fs).items() if taker != own}


def list_arrived(pack: str, fs: DirectoryOperations = REAL) -> list[int]:
    """Those that have come to this pack, and were not accepted yet."""
    own = _name(pack)
    return [number for number, taker in list_moving(pack, fs).items() if taker == own]


def _name(pack: str) -> str:
    return pack.rpartition("/")[2]
