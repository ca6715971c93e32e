"""Adding lines to an index of the state, which is only ever appended to."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_colloc.ownership import refuse_protected


def append_lines(path: Path, data: bytes) -> None:
    """Add whole lines to an index; the caller holds its lock.

    Args:
        path: The index; it is made where it is not there.
        data: The lines, each with its line feed.

    Raises:
        OSError: It cannot be written, is a link, or is no file.
        StateError: It belongs to somebody else.
    """
    refuse_protected(path)
    # No other file is written to, which a link of this name may lead to.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # A line that a full disk cut short is ended here, and what it was of is read again.
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
