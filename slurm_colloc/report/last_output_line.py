"""The last line that a member has written: of a failure it is what one wants to know."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from slurm_colloc.model.printable import cut, escape_controls

_TAIL_BYTES = 4096
_LINE_MOST = 200
_OF_SLURM = ("slurmstepd: ", "srun: ")


def read_last_line(paths: Iterable[str | None]) -> str:
    """The last line with something in it, made harmless for a terminal.

    Args:
        paths: Where it may stand, the likeliest first: standard error, then standard output.

    Returns:
        Empty where there is none, or nothing can be read. What Slurm's own programs add at the end
        counts only where there is nothing else.
    """
    spare = ""
    for path in paths:
        lines = [line.strip() for line in _read_tail(path).splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith(_OF_SLURM)]
        if own:
            return cut(escape_controls(own[-1]), _LINE_MOST)
        spare = spare or (lines[-1] if lines else "")
    return cut(escape_controls(spare), _LINE_MOST)


def _read_tail(path: str | None) -> str:
    if not path:
        return ""
    try:
        # A named pipe would wait for its other end, and a terminal become the caller's.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except (OSError, ValueError):
        return ""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return ""
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, found.st_size - _TAIL_BYTES))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return tail.decode("utf-8", "replace")
