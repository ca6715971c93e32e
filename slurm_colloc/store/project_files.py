"""Which files belong to a project: what git knows or would add, else all that is there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import UsageProblem

GIT_PATIENCE_S = 60.0


@dataclass(frozen=True)
class ProjectFiles:
    """The files of a project that are to be copied.

    Attributes:
        root: The project's directory: that of its git repository, or the current one.
        names: Their paths in it; those of links, too, but not those of directories.
    """

    root: Path
    names: tuple[str, ...]


def list_project(directory: str, paths: Sequence[str]) -> ProjectFiles:
    """The files of the project in which a directory lies.

    Args:
        directory: The directory.
        paths: Files and directories, named from there, instead of all; empty for all.

    Raises:
        UsageProblem: One of the paths is not there, or lies outside of the project.
    """
    here = Path(os.path.realpath(directory))
    top = _ask_git(here, "rev-parse", "--show-toplevel")
    root = Path(os.path.realpath(top.rstrip("\n"))) if top else here
    for path in paths:
        _check_path(root, here, path)
    if top:
        listed = _ask_git(
            here if paths else root,
            "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--full-name",
            "--", *paths,
        )  # fmt: skip
        if listed is not None:
            # Of a file that was removed, or a submodule, there is nothing to copy.
            names = dict.fromkeys(filter(None, listed.split("\0")))
            return ProjectFiles(root, tuple(name for name in names if _is_file(root / name)))
    starts = [here / path for path in paths] or [here]
    return ProjectFiles(root, tuple(sorted({name for s in starts for name in _walk(root, s)})))


def _check_path(root: Path, here: Path, path: str) -> None:
    found = Path(os.path.normpath(here / path))
    if not found.exists():
        raise UsageProblem(f"--snapshot: there is no {path}", hint="paths are divided by commas")
    if not found.is_relative_to(root):
        raise UsageProblem(f"--snapshot: {path} lies outside of the project {root}")


def _ask_git(directory: Path, *words: str) -> str | None:
    """What git answers; None where there is none, or it refuses."""
    # An optional lock would be taken for a look: another git of the user's would have to wait.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        ended = subprocess.run(
            ["git", *words], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=GIT_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if ended.returncode != 0:
        return None
    return ended.stdout.decode("utf-8", "surrogateescape")


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _walk(root: Path, start: Path) -> list[str]:
    if not start.is_dir() or start.is_symlink():
        return [os.path.relpath(start, root)] if _is_file(start) else []
    found = []
    for folder, _, names in os.walk(start):
        paths = (Path(folder, name) for name in names)
        found += [os.path.relpath(path, root) for path in paths if _is_file(path)]
    return found
