"""Which places a member is to have of its own: /tmp, and directories that carry the job's id.

Members of a pack share those of its Slurm job, where sbatch would give each its own.
runtime.programs.own_places makes them. Loads nothing but os and the like, for an srun in a member.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_TMP = "/tmp"

_RULES_OUT = re.compile(
    r"(?<![\w.$@=+-])(apptainer|singularity|podman|docker|su|sudo|fusermount3?|sshfs|squashfuse"
    r"|newgrp|chgrp|newuidmap|newgidmap)(?=[\s\"';|&)`]|/\d|$)"
)
_CONTAINERS = ("JobContainerType", "NamespaceType")


def wants_tmp(choice: str, config: Mapping[str, str], *, is_lone: bool) -> bool:
    """Whether a member is to have a /tmp of its own.

    Args:
        choice: `auto`, `always` or `never`.
        config: What `scontrol show config` says.
        is_lone: It is alone in its Slurm job, which has what sbatch gives.
    """
    is_by_site = any(
        config.get(name, "none").endswith(("/tmpfs", "/linux")) for name in _CONTAINERS
    )
    return choice == "always" or (choice == "auto" and is_by_site and not is_lone)


def find_obstacle(script: bytes, arguments: Sequence[str], directory: str, *, has_tmp: bool) -> str:
    """Why a script is to have none of this; empty for no reason.

    Args:
        script: Its text.
        arguments: Its arguments.
        directory: Its working directory.
        has_tmp: It is about a /tmp of its own.
    """
    lines = script.decode("utf-8", "replace").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    if found := _RULES_OUT.search("\n".join((text, *arguments))):
        return f"its script runs {found[1]}, which does not work in a user namespace"
    if has_tmp and os.path.realpath(directory) == _TMP:
        return "/tmp is its working directory, and what it writes there is to stay"
    return ""


def describe_places(
    own: str,
    directories: Sequence[tuple[str, str, str]],
    *,
    has_tmp: bool,
    refused: str,
    kept: Iterable[str],
    added: Mapping[str, str],
) -> dict[str, Any]:
    """What the wrapper is told of them; Slurm's commands come to it.

    Args:
        own: The member's own directory, which is to be made.
        directories: From `find_job_directories`.
        has_tmp: Its /tmp is its own.
        refused: Why it gets none after all; empty where it does.
        kept: Directories that it uses.
        added: Directories that csub has put into its environment, by their variables.
    """
    base = os.path.dirname(own)
    # Its TMPDIR may lie in a directory that becomes its own.
    is_own_base = is_covered(base, (real for real, _, _ in directories))
    ours = [path for name, path in added.items() if name != "TMPDIR"]
    # The neighbours' are next to it, where members use one another's.
    around = [parent for path in ours if _is_below(parent := os.path.dirname(path), _TMP)]
    running = (sys.prefix, sys.base_prefix, os.path.realpath(__file__).rsplit(os.sep, 3)[0])
    pinned = [path for name, path in added.items() if name.startswith("CUDA_MPS_")]
    return {
        "own": own,
        "refused": refused,
        "tmp": has_tmp,
        "tmpdir": _TMP if has_tmp else base if is_own_base else own,
        "directories": directories,
        "kept": _find_kept([*kept, *ours, *around, *running], own),
        "pinned": _find_kept(pinned, own),
        "commands": [],
    }


def find_job_directories(
    patterns: str, user: str, ids: tuple[str, str], own: str
) -> list[tuple[str, str, str]]:
    """Directories of the job that are there.

    Args:
        patterns: The setting `own_directories`.
        user: The user's name.
        ids: The id that Slurm has given the pack's job, and the member's.
        own: The member's own directory.

    Returns:
        Of each its path, the path by which its member looks for it (empty where that is the same),
        and the folder that is bound there, which is to be made.
    """
    found = []
    for pattern in filter(None, patterns.split(":")):
        path = pattern.replace("%u", user)
        real, alias = (os.path.normpath(path.replace("%j", job_id)) for job_id in ids)
        if not _is_own_directory(real):
            continue
        alias = "" if alias == real else alias
        # Where its parent is root's, as mostly, the user can make nothing there.
        is_free = alias and os.access(os.path.dirname(real), os.W_OK)
        found.append((real, alias, alias if is_free else f"{real}/{os.path.basename(own)}.own"))
    return found


def _find_kept(paths: Iterable[str], own: str) -> list[str]:
    """What stays reachable below /tmp: each as it is without links, and none within another."""
    kept: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        is_there = _is_below(path, _TMP) and os.path.lexists(path)
        if is_there and not is_covered(path, (*kept, own)):
            kept.append(path)
    return kept


def find_added(environment: Mapping[str, str], *before: Mapping[str, str]) -> dict[str, str]:
    """The paths in a member's environment that csub has put there.

    Args:
        environment: The member's.
        before: What the user has, and what Slurm has added.
    """
    return {
        name: value
        for name, value in environment.items()
        if value.startswith("/") and all(other.get(name) != value for other in before)
    }


def find_commands(
    names: Iterable[str], find: Callable[[str], Iterable[str]]
) -> list[tuple[str, list[str]]]:
    """Slurm's commands that can be bound over, each with its programs, the first in PATH first.

    One in whose place the site has a script stays: that script calls Slurm's own by its path.

    Args:
        names: Their names.
        find: Finds the programs of a name, in the order of PATH.
    """
    found = []
    for name in names:
        paths = list(dict.fromkeys(map(os.path.realpath, find(name))))
        if paths and all(os.path.basename(path) == name and _is_binary(path) for path in paths):
            found.append((name, paths))
    return found


def list_covered(places: Mapping[str, Any]) -> list[str]:
    """Paths below which a member sees something else than the steps that Slurm starts."""
    directories = [path for real, alias, _ in places["directories"] for path in (real, alias)]
    return [*([_TMP] if places["tmp"] else []), *filter(None, directories)]


def is_covered(path: str, covered: Iterable[str]) -> bool:
    """A path is one of these or below it."""
    return any(f"{path}/".startswith(f"{directory}/") for directory in covered)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(f"{directory}/")


def _is_own_directory(path: str) -> bool:
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return False


def _is_binary(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
    return False
