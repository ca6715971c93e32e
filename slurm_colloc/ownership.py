"""Whose a directory is: what belongs to somebody else is read, and never written.

Root reads it with its owner's rights alone: what that user has put there (a link to a file of
root's, a pipe, a device) then leads no further than it leads the user. Of the caller's own state
nothing is used that another user could have put there: csub submits what it finds in it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import sys
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


# ---- What another user could have changed --------------------------------------------------------
#
# As with sshd's StrictModes: users who can write into a directory can rename what is in it away and
# put something else there; in one with the sticky bit only what is theirs.

_OTHERS_WRITE = 0o022
_OTHERS_PASS = 0o011
_LINKS_MOST = 40
"""As many links one after the other the kernel follows, see path_resolution(7)."""

_ELSEWHERE = "set state_dir in the settings, or XDG_STATE_HOME, to another place"


def secure_state(root: Path | str) -> None:
    """See to it that none but the caller, and root, can change the caller's own state directory.

    Where its mode lets others write into it, that is changed, and said.

    Args:
        root: The directory; it need not exist.

    Raises:
        StateError: Another user could put something else in its place, or has put something into
            it, or it belongs to another user.
    """
    caller = find_caller()
    try:
        place, status = _go_to(root, root, caller)
        if status is None or not stat.S_ISDIR(status.st_mode):
            # What reads it says so.
            return
        if status.st_uid != caller:
            raise StateError(
                f"the state directory {root} belongs to {name_user(status.st_uid)}, you are "
                f"{name_user(caller)}",
                hint="set state_dir in the settings, or XDG_STATE_HOME, to a directory of yours",
            )
        if status.st_mode & _OTHERS_WRITE:
            _close_to_others(root, Path(place))
        with os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    _refuse_planted(root, entry.path, caller)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StateError(f"cannot look at {error.filename or root}: {reason}") from error


def refuse_planted_pack(path: Path | str, owner: int) -> None:
    """Refuse a pack that is not its user's own, or that others can change.

    Args:
        path: Its directory; it need not exist.
        owner: The user's uid.

    Raises:
        StateError: It is such a pack, or cannot be looked at.
    """
    try:
        _refuse_planted(path, path, owner, is_pack=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StateError(f"cannot look at {path}: {reason}") from error


def _refuse_planted(
    root: Path | str, path: Path | str, owner: int, *, is_pack: bool = False
) -> None:
    status, place = os.lstat(path), os.fspath(path)

    # Root may keep something here, as `lost+found`, but has no packs in it.
    def is_trusted(uid: int) -> bool:
        return uid == owner or (not is_pack and _is_root(uid))

    if stat.S_ISLNK(status.st_mode) and is_trusted(status.st_uid):
        place, found = _go_to(root, path, owner)
        if found is None:
            return
        status = found
    problem = ""
    if not is_trusted(status.st_uid):
        problem = f"belongs to {name_user(status.st_uid)}, not to {name_user(owner)}"
        hint = "look at what is in it, and move it away"
    elif writers := _find_writers(status, owner):
        problem = f"can be changed by {writers}"
        hint = f"look at what is in it, then chmod go-w {place}"
    if problem:
        what = f"{'the pack ' if is_pack else ''}{path}"
        what += "" if place == os.fspath(path) else f", which leads to {place},"
        raise StateError(f"{what} {problem}, and csub does not use it", hint=hint)


def _go_to(root: Path | str, path: Path | str, owner: int) -> tuple[str, os.stat_result | None]:
    """Go to a path, and look at each directory and link on the way to it.

    Returns:
        Where it leads, without links, and what is there; None for nothing.

    Raises:
        OSError: One of them cannot be looked at.
        StateError: Another user could put something else in the place of one of them.
    """
    here, links, closed = "", 0, ""
    status = os.lstat("/")
    # Not what _make_absolute makes of it: behind a link, `..` is not the directory of the link.
    name = os.fspath(path)
    left = (name if name.startswith("/") else f"{Path.cwd()}/{name}").split("/")[::-1]
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if closed and not f"{here}/".startswith(f"{closed}/"):
            closed = ""
        if not closed:
            _refuse_weak(root, here or "/", status, owner)
            # Others do not get to what is below.
            closed = here if status.st_uid == owner and not status.st_mode & _OTHERS_PASS else ""
        if name == "..":
            here = here.rpartition("/")[0]
            status = os.lstat(here or "/")
            continue
        try:
            found = os.lstat(f"{here}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return f"{here}/{name}", None
        if not stat.S_ISLNK(found.st_mode):
            here, status = f"{here}/{name}", found
            continue
        if not closed:
            _refuse_weak(root, f"{here}/{name}", found, owner)
        links += 1
        if links > _LINKS_MOST:
            return f"{here}/{name}", None
        target = str(Path(here, name).readlink())
        if target.startswith("/"):
            here, status = "", os.lstat("/")
        left += target.split("/")[::-1]
    return here or "/", status


def _refuse_weak(root: Path | str, path: str, status: os.stat_result, owner: int) -> None:
    """Refuse a directory, or a link, in whose place another user could put something else.

    Raises:
        StateError: It is one.
    """
    is_link = stat.S_ISLNK(status.st_mode)
    if status.st_uid != owner and not _is_root(status.st_uid):
        problem = f"{'the link ' if is_link else ''}{path} belongs to {name_user(status.st_uid)}"
        hint = f"{_ELSEWHERE}, on the way to which all directories are yours or root's"
    elif is_link or status.st_mode & stat.S_ISVTX:
        return
    elif writers := _find_writers(status, owner):
        problem = f"{path} can be changed by {writers}"
        command = f"chmod go-w {path}"
        own = command if status.st_uid == owner else f"have root call {command}"
        hint = f"{own}, or {_ELSEWHERE}"
    else:
        return
    raise StateError(
        f"{root} is not used, because another user could put something else in its place: "
        f"{problem}",
        hint=hint,
    )


def _is_root(uid: int) -> bool:
    """Whether a file with this owner is root's, as far as this process can tell.

    In a user namespace without root, such as a member's with a /tmp of its own, root's files have
    the owner that stands for all who are not mapped. What is opened there its runner has looked at
    from outside.
    """
    if uid == 0:
        return True
    try:
        text = Path("/proc/self/uid_map").read_text(encoding="ascii")
        mapped = [int(line.split()[1]) for line in text.splitlines()]
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError, IndexError):
        return False
    return 0 not in mapped and uid == overflow


def _close_to_others(root: Path | str, place: Path) -> None:
    """Take from all others the right to write into the state directory, and say so."""
    from slurm_colloc.model.printable import escape_controls

    mode = stat.S_IMODE(place.stat().st_mode)
    with contextlib.suppress(OSError):
        place.chmod(mode & ~_OTHERS_WRITE)
    # A file system without modes takes the call, and changes nothing.
    if (now := stat.S_IMODE(place.stat().st_mode)) & _OTHERS_WRITE:
        raise StateError(
            f"others than you can write into the state directory {root} (mode {now:04o}), and it "
            "cannot be changed",
            hint=_ELSEWHERE,
        )
    told = f"the state directory {root} had mode {mode:04o}, by which others could write into it"
    sys.stderr.write(f"csub: {escape_controls(told)}: it has {now:04o} now\n")


def _find_writers(status: os.stat_result, owner: int) -> str:
    """Who but its owner and root can write into a directory or file; empty for none."""
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    if not status.st_mode & stat.S_IWGRP or _is_private_group(status.st_gid, owner):
        return ""
    import grp

    try:
        return f"the group {grp.getgrgid(status.st_gid).gr_name}"
    except KeyError:
        return f"the group {status.st_gid}"


def _is_private_group(gid: int, uid: int) -> bool:
    """Whether a group has been made for one user, as Debian and Red Hat do, and has no other."""
    import grp

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    is_own = user.pw_gid == gid and group.gr_name == user.pw_name
    return is_own and set(group.gr_mem) <= {user.pw_name}
