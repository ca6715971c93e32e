"""Whose a directory is: what belongs to somebody else is read, and never written."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem

_protected: dict[str, str] = {}
"""Directories that this process must not change, each with the name of its owner."""


def find_owner(path: Path | str) -> int | None:
    """The uid that a directory belongs to.

    Root may make a directory anywhere. One that is not there yet is taken for that of the
    directory it would be made in, so that nothing of root's comes into a user's home.

    Args:
        path: The directory; it need not exist.

    Returns:
        The uid; None where it is not there and may be made, or where it cannot be looked at.
    """
    uid = _read_owner(path)
    if uid is not None or os.geteuid() != 0:
        return uid
    for parent in Path(_make_absolute(path)).parents:
        uid = _read_owner(parent)
        if uid is not None:
            return uid or None
    return None


def _read_owner(path: Path | str) -> int | None:
    try:
        return os.stat(path).st_uid  # noqa: PTH116 - pathlib costs every call of csub
    except OSError:
        return None


def is_of_another(path: Path | str) -> bool:
    """A directory belongs to somebody else than the effective user, or would once it is made."""
    return find_owner(path) not in (None, os.geteuid())


def name_user(uid: int) -> str:
    """A user's name; `uid 4711` where the user has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def find_user(name: str) -> pwd.struct_passwd:
    """Look a user up by name or number, as squeue's --user does.

    Raises:
        UsageProblem: There is none.
    """
    try:
        if name.isascii() and name.isdigit():
            return pwd.getpwuid(int(name))
        return pwd.getpwnam(name)
    except (KeyError, OverflowError, ValueError) as error:
        raise UsageProblem(f"there is no user {name!a}", hint="--user takes one name") from error


def protect(root: Path | str, owner: str) -> None:
    """Have every writing function of the store refuse this directory for the rest of the call.

    Args:
        root: The directory.
        owner: Its owner's name.
    """
    _protected[_make_absolute(root)] = owner


def refuse_protected(path: Path | str) -> None:
    """Refuse to write a file in a protected directory.

    Raises:
        StateError: It lies in one.
    """
    # Nearly always there is none, and then it costs nothing.
    for root, owner in _protected.items():
        if f"{_make_absolute(path)}/".startswith(f"{root}/"):
            raise build_refusal(root, owner)


def _make_absolute(path: Path | str) -> str:
    # A link stays one: the store names all its files from the same root.
    return os.path.normpath(path if os.path.isabs(path) else Path.cwd() / path)  # noqa: PTH117


def build_refusal(root: Path | str, owner: str) -> StateError:
    """What is said where somebody else's state would be changed."""
    return StateError(
        f"the state directory {root} belongs to {owner}, you are {name_user(os.geteuid())}",
        hint=f"you can read it, and only {owner} can change it; for jobs of your own, set "
        "state_dir in the settings, or XDG_STATE_HOME, to a directory of yours",
    )
