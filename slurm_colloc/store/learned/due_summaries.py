"""Packs whose summary, and what is learned from it, is due: a small file of each pack's name.

A pack that is watched has one from its beginning. It goes away with the summary, so what a pack
had no time for at its end is found by the next call of csub.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slurm_colloc.store.atomic_files import make_directory, read_bytes, write_atomic

FOLDER = "summaries_due"
_ENDING = b"ending\n"


def note_due(root: Path, pack_id: str, *, is_ending: bool = False) -> None:
    """Note that a pack is to have a summary.

    Args:
        root: The state directory.
        pack_id: The pack.
        is_ending: All its members have ended, and its runner is at the summary.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(root / FOLDER)
    write_atomic(root / FOLDER / pack_id, _ENDING if is_ending else b"")


def forget_due(root: Path, pack_id: str) -> None:
    """Note that a pack's summary is there, or cannot be had."""
    with contextlib.suppress(OSError):
        os.unlink(root / FOLDER / pack_id)


def is_due(root: Path, pack_id: str) -> bool:
    """Whether a pack is to have a summary, and has none yet."""
    return os.path.lexists(root / FOLDER / pack_id)


def list_due(root: Path) -> dict[str, bool]:
    """The packs that are to have one, and of each whether its runner is just at it."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(root / FOLDER):
            if ".tmp" not in name:
                with contextlib.suppress(OSError):
                    found[name] = read_bytes(root / FOLDER / name) == _ENDING
    return found
