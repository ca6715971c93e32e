"""Whose a directory is: what belongs to somebody else is read, and never written.

Root reads it with its owner's rights alone: what that user has put there (a link to a file of
root's, a pipe, a device) then leads no further than it leads the user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem

_protected: dict[str, int] = {}
"""Directories that this process must not change, each with the uid of its owner."""

_NO_GROUP = 65534
"""The group of a user who has no account: the kernel's own number for none."""

_own_groups: list[tuple[int, list[int]]] = []
"""Root's group and supplementary groups while it has the rights of another user; else empty."""


def find_caller() -> int:
    """The uid whose call this is: root's, too, while it has the rights of another user."""
    return 0 if _own_groups else os.geteuid()


def take_rights_of(uid: int) -> None:
    """As root, reach files as another user from now on, with that user's groups; else nothing.

    Args:
        uid: The user.

    Raises:
        StateError: That user cannot read the files of csub, of which some are loaded later.
    """
    give_rights_back()
    if os.geteuid() != 0 or uid == 0:
        return
    own = os.getegid(), os.getgroups()
    try:
        user = pwd.getpwuid(uid)
        gid, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        gid, groups = _NO_GROUP, []
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    _own_groups.append(own)
    for path in (__file__, os.__file__):
        if not os.access(path, os.R_OK, effective_ids=True):
            give_rights_back()
            raise StateError(
                f"root looks at the state of {name_user(uid)} with the rights of {name_user(uid)}, "
                f"who cannot read {path}",
                hint="use a csub that all users can run",
            )


def give_rights_back() -> None:
    """Be root again."""
    if _own_groups:
        gid, groups = _own_groups.pop()
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


@contextlib.contextmanager
def with_own_rights() -> Iterator[None]:
    """Be root again for a moment, to write a file of root's own."""
    uid, is_other = os.geteuid(), bool(_own_groups)
    give_rights_back()
    try:
        yield
    finally:
        if is_other:
            take_rights_of(uid)


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
    if uid is not None or find_caller() != 0:
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
    return find_owner(path) not in (None, find_caller())


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


def protect(root: Path | str, owner: int) -> None:
    """Have every writing function of the store refuse this directory for the rest of the call.

    Args:
        root: The directory.
        owner: Its owner's uid.
    """
    _protected[_make_absolute(root)] = owner


def refuse_protected(path: Path | str) -> None:
    """Refuse to write a file in a protected directory.

    Raises:
        StateError: It lies in one.
    """
    for root, owner in _find_protected(path):
        raise build_refusal(root, name_user(owner))


def find_protected_owner(path: Path | str) -> int | None:
    """The uid of the other user in whose state a file lies; None for any other place."""
    return next((owner for _, owner in _find_protected(path)), None)


def _find_protected(path: Path | str) -> Iterator[tuple[str, int]]:
    # Nearly always there is none, and then it costs nothing.
    for root, owner in _protected.items():
        if f"{_make_absolute(path)}/".startswith(f"{root}/"):
            yield root, owner


def _make_absolute(path: Path | str) -> str:
    # A link stays one: the store names all its files from the same root.
    return os.path.normpath(path if os.path.isabs(path) else Path.cwd() / path)  # noqa: PTH117


def build_refusal(root: Path | str, owner: str) -> StateError:
    """What is said where somebody else's state would be changed."""
    return StateError(
        f"the state directory {root} belongs to {owner}, you are {name_user(find_caller())}",
        hint=f"you can read it, and only {owner} can change it; for jobs of your own, set "
        "state_dir in the settings, or XDG_STATE_HOME, to a directory of yours",
    )
