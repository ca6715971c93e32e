"""Slurm's own commands behind csub's: a member's shims, and csub under the name sbatch.

Both stand before the real command in PATH, so each look for it goes past them: known by what they
are, not by the name of their directory. Loads nothing but os, for the sake of the shims.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

SHIM_MARK = b"# csub: acts on one member of a pack\n"
"""The second line of each shim."""

REAL_MARK = b"# csub: the real one is in "
"""Begins the third line of a shim that is bound over the real command."""

_CSUB_MARKS = (b"slurm_colloc.__main__", b"-m slurm_colloc ")
"""What stands in the program that pip makes of csub's entry point, and in that of the nodes."""

CALLED_VARIABLE = "SLURM_COLLOC_CALLED"
"""Set while csub calls an sbatch that is a script, and so may lead back to csub: the paths that
were tried. It is in no job."""

_LOOK_BYTES = 1024


def find_real_command(
    name: str, path: str | None, *, skipped: Collection[tuple[int, int]] = ()
) -> str | None:
    """The first command of this name in PATH that is Slurm's, or a site's wrapper of Slurm's.

    Args:
        name: Its name.
        path: The value of PATH; None for the system's default.
        skipped: Devices and inodes of programs that are passed over, too.

    Returns:
        Its path; None if there is none.
    """
    return next(iterate_real_commands(name, path, skipped), None)


def iterate_real_commands(
    name: str, path: str | None, skipped: Collection[tuple[int, int]] = ()
) -> Iterator[str]:
    """All of them, in the order of PATH."""
    for directory in (os.defpath if path is None else path).split(os.pathsep):
        candidate = os.path.join(directory, name)
        if not os.access(candidate, os.X_OK) or os.path.isdir(candidate):
            continue
        if skipped and identify(candidate) in skipped:
            continue
        if not is_own(candidate):
            yield candidate
        elif (real := find_kept(candidate)) is not None:
            yield real


def find_kept(shim: str) -> str | None:
    """The real command behind a shim that is bound over it; None where it is not."""
    directory = read_head(shim).partition(REAL_MARK)[2].partition(b"\n")[0]
    path = os.path.join(os.fsdecode(directory), os.path.basename(shim))
    return path if directory and os.access(path, os.X_OK) else None


def identify(path: str) -> tuple[int, int]:
    """Device and inode of a file; links are followed. (0, 0) where it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def is_own(path: str) -> bool:
    """A shim of a pack, or csub itself: by a link, or as a copy."""
    return _has_mark(path, (SHIM_MARK, *_CSUB_MARKS))


def is_csub(path: str) -> bool:
    """Csub itself: by a link, or as a copy."""
    return _has_mark(path, _CSUB_MARKS)


def _has_mark(path: str, marks: Collection[bytes]) -> bool:
    head = read_head(path)
    return head.startswith(b"#!") and any(mark in head for mark in marks)


def is_script(path: str) -> bool:
    """It is no binary, so it may lead back to csub."""
    return not read_head(path).startswith(b"\x7fELF")


def read_head(path: str) -> bytes:
    """The first bytes of a file; none where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _LOOK_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def choose_sbatch(environment: Mapping[str, str], itself: str) -> tuple[str, dict[str, str]] | None:
    """The sbatch to call, and the environment for it; None where each leads back to csub.

    Args:
        environment: The environment; it says which were tried.
        itself: The path by which csub was called.
    """
    tried = [path for path in environment.get(CALLED_VARIABLE, "").split(os.pathsep) if path]
    skipped = {identify(path) for path in [itself, *tried]} - {(0, 0)}
    found = find_real_command("sbatch", environment.get("PATH"), skipped=skipped)
    if found is None:
        return None
    rest = {name: text for name, text in environment.items() if name != CALLED_VARIABLE}
    if is_script(found):
        rest[CALLED_VARIABLE] = os.pathsep.join([*tried, found])
    return found, rest
