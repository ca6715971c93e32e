"""The mark of a GPU set that has nothing to do, while others of its Slurm job go on.

Its runner stays, because what starts again elsewhere may have room only here. It ends with the last
of them: once none has anything left to do.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slurm_colloc.store.atomic_files import is_there, write_atomic

_NAME = "idle"


def mark_idle(pack: Path) -> None:
    """Say that nothing runs in a pack and nothing waits in it; its runner alone does.

    Raises:
        StateError: It cannot be written.
    """
    write_atomic(pack / _NAME, b"")


def forget_idle(pack: Path) -> None:
    """Take it back: a member has come, or a new attempt begins."""
    with contextlib.suppress(OSError):
        os.unlink(pack / _NAME)


def is_idle(pack: Path) -> bool:
    """Whether a pack's runner has said that it has nothing to do."""
    return is_there(pack / _NAME)
