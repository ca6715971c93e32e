"""Removing packs that are over, so that the state stays small; a kill at any moment is harmless."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    is_there,
    make_directory,
    read_file_clock,
)
from slurm_colloc.store.job_index import JobIndex
from slurm_colloc.store.record_files import read_record

DISCARDED = ".discarded"
"""Ending of a pack that was moved out of sight, to be removed; see State.discard."""

ABANDONED_S = 86400.0
"""A temporary file that was not written to for so long is abandoned."""

_TEMPORARY = re.compile(r".+\.tmp[0-9]+(?:-[A-Za-z0-9_]+-[0-9a-f]{8})?")


def measure_bytes(path: Path) -> int:
    """What a directory tree takes on the disk; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, _, files in os.walk(path):
        for name in (folder, *(f"{folder}/{file}" for file in files)):
            with contextlib.suppress(OSError):
                found = os.lstat(name)
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
    return total


def remove_pack(state: State, pack_id: str) -> bool:
    """Remove a pack that is over; False if another process was quicker.

    Raises:
        StateError: It cannot be removed.
    """
    make_directory(state.making)
    doomed = state.making / f"{pack_id}{DISCARDED}"
    with explain_os_errors("remove", state.pack_path(pack_id)):
        try:
            # Out of sight first: no reader sees a half-removed pack.
            os.rename(state.pack_path(pack_id), doomed)
        except FileNotFoundError:
            return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def remove_remains(state: State) -> None:
    """Finish what a killed call began: hidden packs, indexes of packs that are gone, half files.

    Raises:
        StateError: The state cannot be read.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(state.making):
            if name.endswith(DISCARDED):
                shutil.rmtree(state.making / name, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(state.jobs):
            if name.endswith(".json"):
                _remove_index(state, state.jobs / name)

    with contextlib.suppress(FileNotFoundError):
        # Behind a link lies what is not the state's.
        inside = (path for path in state.root.iterdir() if not path.is_symlink())
        for folder in (state.root, *inside):
            _remove_temporary(folder)


def _remove_temporary(folder: Path) -> None:
    """Remove what `write_all` has left half-written in a folder, once no process can be at it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    changed_at = entry.stat(follow_symlinks=False).st_mtime
                    if read_file_clock(folder) - changed_at > ABANDONED_S:
                        os.unlink(entry.path)


def _remove_index(state: State, path: Path) -> None:
    """Remove the file that says which packs a job is, once none of them is there.

    A pack is in its place before its index is written, and never comes back.
    """
    with contextlib.suppress(StateError, FileNotFoundError):
        index = read_record(path, JobIndex)
        if index is not None and not any(map(is_there, map(state.pack_path, index.list_packs()))):
            takers = path.with_suffix(".takers")
            with contextlib.suppress(FileNotFoundError):
                if any(map(is_there, map(state.pack_path, os.listdir(takers)))):
                    return
                shutil.rmtree(takers, ignore_errors=True)
            os.unlink(path)
