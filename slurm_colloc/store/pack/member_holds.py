"""Held members: `held` in a member's folder keeps its runner from starting it.

csub writes and removes `held`. A runner that has nothing but held members left ends its pack, so
that they keep no GPU. It first links `held` to `left`, which fails if csub has just removed it:
so either the runner starts a released member, or csub finds `left` and submits it again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slurm_colloc.store.atomic_files import explain_os_errors, is_there, write_atomic
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_states import remove_environment

HELD = "held"
LEFT = "left"


def _path(pack: Path | str, number: int, name: str) -> str:
    return f"{pack}/members/{format_number(number)}/{name}"


def write_held(pack: Path | str, number: int) -> None:
    """Hold a member.

    Raises:
        StateError: It cannot be written.
    """
    write_atomic(_path(pack, number, HELD), b"")


def remove_held(pack: Path | str, number: int) -> bool:
    """Release a member; False where its runner has left it behind, so that it is not started.

    Raises:
        StateError: It cannot be removed.
    """
    if was_left(pack, number):
        return False
    with (
        explain_os_errors("remove", _path(pack, number, HELD)),
        contextlib.suppress(FileNotFoundError),
    ):
        os.unlink(_path(pack, number, HELD))
    # The runner may have come in between.
    return not was_left(pack, number)


def is_held(pack: Path | str, number: int) -> bool:
    """True while a member is held, or was left behind by its pack.

    Raises:
        StateError: It cannot be told: one that is held must not start.
    """
    return is_there(_path(pack, number, HELD)) or was_left(pack, number)


def was_left(pack: Path | str, number: int) -> bool:
    """True where the pack has ended, or ends, without starting this member.

    Raises:
        StateError: It cannot be told.
    """
    return is_there(_path(pack, number, LEFT))


def leave_behind(pack: Path | str, number: int) -> bool:
    """Leave a held member behind; False where it was released just now, and is to be started."""
    try:
        os.link(_path(pack, number, HELD), _path(pack, number, LEFT))
    except FileExistsError:
        return True
    except FileNotFoundError:
        return was_left(pack, number)
    except OSError:
        # A file system without links: the moment between the two calls stays unguarded.
        if not is_there(_path(pack, number, HELD)):
            return False
        write_atomic(_path(pack, number, LEFT), b"")
    return True


def forget_hold(pack: Path | str, number: int) -> None:
    """Remove both marks of a member that is taken care of: submitted again, or cancelled."""
    for name in (HELD, LEFT):
        with contextlib.suppress(OSError):
            os.unlink(_path(pack, number, name))


def cancel_left(pack: Path | str, number: int) -> None:
    """Cancel a member that its pack has left behind: no runner is there to write it down.

    Raises:
        StateError: It cannot be written.
    """
    cancelled = _path(pack, number, "cancelled")
    for name in ("taken", "begun"):
        # As inbox.withdraw does: what is not taken is not started by a later attempt either.
        with contextlib.suppress(OSError):
            os.rename(_path(pack, number, name), cancelled)
    if not is_there(cancelled):
        write_atomic(cancelled, b"")
    remove_environment(pack, number)
    forget_hold(pack, number)


def may_have_begun(pack: Path | str, number: int, attempt: int, starts: int) -> bool:
    """True where the runner has begun the start that follows a member's `starts` starts.

    The runner writes the start's first file and then looks whether the member is held; csub holds
    it and then looks here. The one that comes second sees the other.

    Raises:
        StateError: It cannot be told.
    """
    prefix = f"run.{attempt}.{starts + 1}."
    folder = os.path.dirname(_path(pack, number, HELD))
    with explain_os_errors("look at", folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return False
    return any(name.startswith(prefix) for name in names)
