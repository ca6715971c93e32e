"""A /tmp of a member's own, and what else is its own by its path; who: the user; where: the node.

Done by a user and a mount namespace, which need no privileges. A helper of the wrapper
makes them and tests what is in them before the script's process enters: where anything fails, that
process is as it was. With the last process inside they are gone.

    own_places.py PID DIRECTORY COMMAND...    runs a command where a process inside is

Also: what is bound where; pure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    Mounts = list[tuple[str, str]]
    """What is bound, and where, in order."""

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_BIND, _SLAVE, _RECURSIVE = 0x1000, 0x80000, 0x4000
_PATIENCE_S = 20.0
_TMP = "/tmp"
_REPLACED = "around"


def plan_mounts(
    places: Mapping[str, Any], list_directory: Callable[[str], Iterable[str]]
) -> Mounts:
    """What is bound where, in order.

    What stands in the way of a later one comes last: the own /tmp and the parents of directories
    that carry the job's id. Such a parent is root's, so nothing can be made in it: it is replaced
    by a directory in which each of its entries is bound, and the member's twice.

    Args:
        places: From `describe_places`.
        list_directory: The names in a directory.
    """
    own = places["own"]
    mounts: Mounts = []
    for name, paths in places["commands"]:
        mounts.append((paths[0], f"{places['real']}/{name}"))
        mounts += [(f"{own}/command", path) for path in paths]
    covers: Mounts = []
    for number, (real, alias, source) in enumerate(places["directories"]):
        if places["tmp"] and _is_below(real, _TMP):
            mounts += [(source, f"{own}{path}") for path in (real, alias) if path]
        elif alias in ("", source):
            covers.append((source, real))
        else:
            parent, replaced = os.path.dirname(real), f"{own}/{_REPLACED}.{number}"
            entries = {name: f"{parent}/{name}" for name in list_directory(parent)}
            entries |= {os.path.basename(path): source for path in (real, alias)}
            mounts += [(path, f"{replaced}/{name}") for name, path in entries.items()]
            covers.append((replaced, parent))
    if places["tmp"]:
        mounts += [(path, f"{own}{path}") for path in places["kept"]]
        for path in places["pinned"]:
            # Removing everything in /tmp then spares what the neighbours need of it.
            mounts += [(f"{path}/{name}", f"{own}{path}/{name}") for name in list_directory(path)]
        covers.insert(0, (f"{own}{_TMP}", _TMP))
    return mounts + covers


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(f"{directory}/")


# ---- Making them, in a helper -------------------------------------------------------------------


def make_places(places: Mapping[str, Any]) -> tuple[int, ...]:
    """Make the namespaces; descriptors of them, for `enter_places`.

    Args:
        places: What `plan_mounts` is given; with an empty `own` nothing is bound.

    Raises:
        OSError: They cannot be made. Nothing has changed for this process then.
    """
    reading, writing = os.pipe()
    waiting, hold = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(hold)
        try:
            problem = _build(places)
        except BaseException as error:  # noqa: BLE001 - a forked child must never return
            problem = _describe(error)
        with contextlib.suppress(OSError):
            os.write(writing, problem.encode("utf-8", "surrogateescape") or b"\0")
            os.read(waiting, 1)
        os._exit(0)
    os.close(writing)
    os.close(waiting)
    try:
        answer = b""
        if select.select([reading], [], [], _PATIENCE_S)[0]:
            answer = os.read(reading, 4096)
        if answer != b"\0":
            raise OSError(answer.decode("utf-8", "surrogateescape") or "it took too long")
        return _open_namespaces(helper)
    finally:
        os.kill(helper, signal.SIGKILL)  # noqa: TID251 - its own
        os.close(hold)
        os.close(reading)
        os.waitpid(helper, 0)


def _build(places: Mapping[str, Any]) -> str:
    """Make and test them; why they are refused, or ''."""
    try:
        _separate()
    except OSError as error:
        return explain_refusal(_describe(error), _read_switch)
    if not places["own"]:
        return ""
    for _, _, source in places["directories"]:
        os.mkdir(source, 0o700)
    # Its path may be covered by what is bound; this stays. It is opened in here, because nothing
    # can be bound from outside.
    own = os.open(places["own"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(own)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        return f"{places['own']} is not its own"
    inside = f"/proc/self/fd/{own}"
    os.mkdir(f"{inside}{_TMP}", 0o700)
    if not _write_command(places, f"{inside}/command"):
        places = {**places, "commands": []}
    for path, before in _bind(places, inside).items():
        now = os.stat(path)
        if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
            return f"{path} is another one inside"
    return ""


def _bind(places: Mapping[str, Any], inside: str) -> dict[str, os.stat_result]:
    """Bind everything; what is to be found by which path then."""
    own = places["own"]
    found = {path: os.stat(path) for path in places["kept"]}
    for real, alias, source in places["directories"]:
        found |= {path: os.stat(source) for path in (real, alias) if path}
    for source, target in plan_mounts(places, os.listdir):
        here, there = (
            path.replace(own, inside, 1) if _is_below(path, own) else path
            for path in (source, target)
        )
        if there == target:
            found[target] = os.stat(here)
        elif os.path.islink(here) and here == source:
            os.symlink(os.readlink(here), there)
            continue
        else:
            _make_target(here, there)
        _mount(here, there, _BIND | _RECURSIVE)
    return found


def _separate() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_MOUNTS)
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"),
    ):  # fmt: skip
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    # What is mounted outside later is seen, as by automount; nothing gets out of here.
    _mount("", "/", _SLAVE | _RECURSIVE)


def _write_command(places: Mapping[str, Any], path: str) -> bool:
    """Write what is bound over Slurm's commands; False where it could not be executed."""
    if not places["commands"]:
        return False
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w") as file:
        file.write(places["command"])
    # Not on a file system that is mounted noexec.
    return os.access(path, os.X_OK)


def _make_target(source: str, target: str) -> None:
    """What is bound needs something to be bound over."""
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    if os.path.isdir(source):
        os.mkdir(target, 0o700)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _mount(source: str, target: str, flags: int) -> None:
    _call("mount", os.fsencode(source) or None, os.fsencode(target), None, flags, None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        words = [os.fsdecode(one) for one in arguments if isinstance(one, bytes)]
        raise OSError(number, os.strerror(number), " on ".join(words) or name)


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


# ---- Why they are refused ------------------------------------------------------------------------

_SWITCHES = (
    ("user.max_user_namespaces", "0"),
    ("kernel.unprivileged_userns_clone", "0"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
)


def explain_refusal(error: str, read: Callable[[str], str]) -> str:
    """Why there is no user namespace, by what the node's kernel is set to.

    Args:
        error: What the kernel has answered.
        read: The value of one of its settings; empty where it has none of that name.
    """
    for name, value in _SWITCHES:
        if read(name) == value:
            return f"user namespaces are not allowed on this node ({name} = {value})"
    return f"no user namespace on this node: {error}"


def _read_switch(name: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/sys/{name.replace('.', '/')}") as file:
        return file.read().strip()
    return ""


def try_places() -> str:
    """Why a process of this user gets no namespaces on this node; empty where it does."""
    try:
        for descriptor in make_places({"own": ""}):
            os.close(descriptor)
    except OSError as error:
        return str(error)
    return ""


# ---- Entering them -------------------------------------------------------------------------------


def _open_namespaces(pid: int | str) -> tuple[int, ...]:
    names = ("user", "mnt")
    return tuple(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names)


def enter_places(descriptors: Sequence[int], directory: str) -> None:
    """Go into namespaces, and into a directory there; this process must have one thread.

    Raises:
        OSError: They cannot be entered, or the directory is not there.
    """
    for descriptor, kind in zip(descriptors, (_NEW_USER, _NEW_MOUNTS), strict=True):
        _call("setns", descriptor, kind)
    os.chdir(directory)


def enter_places_of(pid: int, directory: str) -> None:
    """Go where a process is, as far as this one is elsewhere.

    Raises:
        OSError: It is not there any more.
    """
    theirs, own = _open_namespaces(pid), _open_namespaces("self")
    if not os.path.sameopenfile(theirs[0], own[0]):
        enter_places(theirs, directory)
    for descriptor in (*theirs, *own):
        os.close(descriptor)


def build_entering(pid: int, directory: str) -> list[str]:
    """What stands before a command that starts outside, so that it runs where a process is.

    Args:
        pid: The process, which lives for as long as the command starts.
        directory: The command's working directory, by its path inside.
    """
    return [sys.executable, "-IBS", os.path.abspath(__file__), str(pid), directory]


def main(pid: str, directory: str, *command: str) -> int:
    """Become a command inside."""
    try:
        enter_places_of(int(pid), directory)
        # Python ignores these two, and the command would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"csub: error: {command[0]}: {_describe(error)}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
