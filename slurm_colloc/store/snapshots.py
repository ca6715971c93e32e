"""Copies of projects in which jobs run, so that they do not change with the working tree.

Also: which files belong to a project: what git knows or would add, else all that is there.

<state>/snapshots/<project>/<time>-<random>/
    snapshot.json   the project's directory, and the files that were copied
    tree/           the copy

What is copied is read-only, and has several names where an earlier snapshot has the same file. What
is not copied (what git ignores: data, environments, results) is a link to the working tree, so that
what a job writes there lands where it always did.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import asdict, dataclass
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    make_directory,
    read_record,
    write_json,
)

# ---- Which files belong to a project: what git knows or would add, else all that is there --------

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


# ---- Copies of projects in which jobs run, so that they do not change with the working tree ------

FOLDER = "snapshots"
MOST_BYTES = 500 * 2**20
MOST_FILES = 50_000
_MAKING = ".making-"
_ABANDONED_S = 86400.0
_FRESH_S = 3600.0


@dataclass(frozen=True)
class SnapshotRecord:
    """What a snapshot holds (snapshot.json).

    Attributes:
        root: The project's directory.
        names: The files that were copied.
        made_at: When, in seconds since the epoch.
    """

    root: str = ""
    names: tuple[str, ...] = ()
    made_at: float = 0.0


def take_snapshot(state_root: Path, project: ProjectFiles) -> Path:
    """Copy a project into the state.

    Args:
        state_root: The state directory.
        project: Its files.

    Returns:
        The snapshot's directory; that of an earlier one where nothing has changed since.

    Raises:
        UsageProblem: The project is too large, or has no files.
        StateError: It cannot be copied.
    """
    check_size(project)
    digest = hashlib.sha256(os.fsencode(project.root)).hexdigest()[:12]
    folder = state_root / FOLDER / digest
    make_directory(state_root / FOLDER)
    make_directory(folder)
    before = _find_newest(folder)
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
    making = folder / f"{_MAKING}{stamp}"
    with explain_os_errors("write", making):
        os.mkdir(making, 0o700)
        try:
            is_new = _copy_all(project, making / "tree", before)
            if before is not None and not is_new and _holds(before, project):
                return before
            _link_rest(project, making / "tree")
            record = SnapshotRecord(str(project.root), project.names, time.time())
            write_json(making / "snapshot.json", asdict(record))
            os.rename(making, folder / stamp)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder / stamp


def check_size(project: ProjectFiles) -> None:
    """Refuse a project of which no snapshot is taken.

    Raises:
        UsageProblem: It is too large, or has no files.
    """
    sizes = {}
    for name in project.names:
        with contextlib.suppress(OSError):
            sizes[name] = os.lstat(project.root / name).st_size
    if not sizes:
        raise UsageProblem(f"--snapshot: there is no file in {project.root}")
    total = sum(sizes.values())
    if total > MOST_BYTES or len(sizes) > MOST_FILES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UsageProblem(
            f"--snapshot: {project.root} has {len(sizes)} files with {total / 1e6:.0f} MB, "
            f"and {MOST_FILES} files with {MOST_BYTES / 1e6:.0f} MB may be copied; the largest is "
            f"{largest}",
            hint="have git ignore data and results, or name what to copy: --snapshot=src,train.py",
        )


def _copy_all(project: ProjectFiles, tree: Path, before: Path | None) -> bool:
    """Copy the files; True where one of them is not as it was in the snapshot before."""
    is_new = False
    os.mkdir(tree, 0o700)
    for name in project.names:
        source, target = project.root / name, tree / name
        os.makedirs(target.parent, 0o700, exist_ok=True)
        if source.is_symlink():
            os.symlink(os.readlink(source), target)
        elif before is None or not _link_same(source, before / "tree" / name, target):
            shutil.copy2(source, target)
            os.chmod(target, stat.S_IMODE(target.stat().st_mode) & ~0o222)
            is_new = True
    return is_new


def _link_same(source: Path, earlier: Path, target: Path) -> bool:
    """Give an earlier copy of the same file one more name; False where it is not the same."""
    try:
        own, other = os.lstat(source), os.lstat(earlier)
        is_same = (own.st_size, own.st_mtime_ns) == (other.st_size, other.st_mtime_ns)
        has_mode = stat.S_IMODE(own.st_mode) & ~0o222 == stat.S_IMODE(other.st_mode)
        if not (stat.S_ISREG(other.st_mode) and is_same and has_mode):
            return False
        os.link(earlier, target)
    except OSError:
        return False
    return True


def _link_rest(project: ProjectFiles, tree: Path) -> None:
    """Link what is not copied, but for git's own files, to where it lies."""
    copied = set(project.names)
    folders = {str(parent) for name in copied for parent in Path(name).parents}
    for folder in folders:
        for name in os.listdir(project.root / folder):
            inner = os.path.normpath(os.path.join(folder, name))
            if inner not in copied and inner not in folders and name != ".git":
                os.symlink(project.root / inner, tree / inner)


def _holds(snapshot: Path, project: ProjectFiles) -> bool:
    """The snapshot has these very files, and nothing was written into it."""
    record = read_record(snapshot / "snapshot.json", SnapshotRecord)
    return record is not None and record.names == project.names and not any(list_written(snapshot))


def _find_newest(folder: Path) -> Path | None:
    names = [name for name in os.listdir(folder) if not name.startswith(_MAKING)]
    return folder / max(names) if names else None


def list_written(snapshot: Path) -> Iterator[str]:
    """Files in a snapshot that were not copied into it: what jobs have written there.

    Raises:
        StateError: Its snapshot.json is damaged.
    """
    record = read_record(snapshot / "snapshot.json", SnapshotRecord)
    copied = set(record.names) if record is not None else set()
    for folder, _, names in os.walk(snapshot / "tree"):
        for name in names:
            path = Path(folder, name)
            inner = os.path.relpath(path, snapshot / "tree")
            if inner not in copied and not path.is_symlink():
                yield inner


def remove_snapshots(
    state_root: Path, used: AbstractSet[str], before: float, *, dry_run: bool
) -> tuple[int, list[str]]:
    """Remove snapshots that no member refers to any more.

    Args:
        state_root: The state directory.
        used: Directories of those that members refer to.
        before: They must have been made before then, in seconds since the epoch.
        dry_run: Only count them.

    Returns:
        How many; and those that stay because jobs have written into them.
    """
    count, kept, now = 0, [], time.time()
    for snapshot in _list_all(state_root):
        record = read_record(snapshot / "snapshot.json", SnapshotRecord)
        made_at = record.made_at if record is not None else snapshot.stat().st_mtime
        is_abandoned = snapshot.name.startswith(_MAKING)
        # One that was just taken is named by its jobs in a moment.
        if made_at > (now - _ABANDONED_S if is_abandoned else min(before, now - _FRESH_S)):
            continue
        if str(snapshot) in used:
            continue
        if not is_abandoned and any(list_written(snapshot)):
            kept.append(str(snapshot))
            continue
        count += not is_abandoned
        if not dry_run:
            shutil.rmtree(snapshot, ignore_errors=True)
    return count, kept


def _list_all(state_root: Path) -> list[Path]:
    try:
        projects = sorted((state_root / FOLDER).iterdir())
    except FileNotFoundError:
        return []
    return [snapshot for project in projects for snapshot in sorted(project.iterdir())]
