"""A directory of the site's into which every user may put files, and where none sees others'.

Its mode is 1733, as of a mail drop: users can make files in it, cannot list it, and cannot touch
those of others. Names are random, so that none can be guessed or taken before.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import explain_os_errors

ENDING = ".json"
HALF = ".new."
"""How names begin of files that are not whole yet."""


def drop_file(spool: Path, data: bytes) -> None:
    """Put a file into a spool, whole or not at all.

    Its collector is another user, so those may read it who know its name: no other user does.

    Args:
        spool: The directory.
        data: What the file holds.

    Raises:
        StateError: There is no such directory, it lets others remove files, or the disk is full.
    """
    with explain_os_errors("write into", spool):
        status = os.stat(spool)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(20, os.strerror(20), str(spool))
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise StateError(
                f"the spool {spool} lets users remove each other's files", hint="chmod 1733 it"
            )
        name = f"{os.urandom(16).hex()}{ENDING}"
        half, whole = spool / f"{HALF}{name}", spool / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(half, flags, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fchmod(descriptor, 0o644)
            finally:
                os.close(descriptor)
            os.rename(half, whole)
        except BaseException:
            os.unlink(half)
            raise
