"""What members have written: their output files, which lie wherever their users said.

Of another user's member only a file that belongs to that user is read: its path is what the user
wrote down, and may lead to a file that the reader alone can read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from slurm_colloc.errors import StateError
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.ownership import find_protected_owner
from slurm_colloc.report.member_views import MemberView
from slurm_colloc.store.foreign_files import UnexpectedFile, open_file

CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 4096
_LINE_MOST = 200
_OF_SLURM = ("slurmstepd: ", "srun: ")


def find_output_owner(member: MemberView) -> int | None:
    """Whose a member's files have to be; None where the state is the caller's own."""
    return find_protected_owner(member.files.path)


def read_from(path: str, offset: int, owner: int | None = None) -> Iterator[bytes]:
    """The bytes of an output file from an offset on.

    Args:
        path: The file.
        offset: Where to begin.
        owner: See `find_output_owner`.

    Yields:
        Its parts; nothing if it is not there yet, or is a pipe or device of the caller's.

    Raises:
        StateError: It cannot be read, or it is of another user's member and not that user's file.
    """
    descriptor = open_output(path, owner)
    if descriptor is None:
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123
        file.seek(offset)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def open_output(path: str, owner: int | None) -> int | None:
    """Open an output file; see `read_from`."""
    try:
        return open_file(path, owner=owner, follows=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        # To write into a pipe or to a terminal is the user's good right.
        if owner is None and isinstance(error, UnexpectedFile):
            return None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StateError(f"cannot read the output {path}: {reason}") from error


def read_last_line(paths: Iterable[str | None], owner: int | None = None) -> str:
    """The last line with something in it, made harmless for a terminal.

    Args:
        paths: Where it may stand, the likeliest first: standard error, then standard output.
        owner: See `find_output_owner`.

    Returns:
        Empty where there is none, or nothing can be read. What Slurm's own programs add at the end
        counts only where there is nothing else.
    """
    spare = ""
    for path in paths:
        lines = [line.strip() for line in _read_tail(path, owner).splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith(_OF_SLURM)]
        if own:
            return cut(escape_controls(own[-1]), _LINE_MOST)
        spare = spare or (lines[-1] if lines else "")
    return cut(escape_controls(spare), _LINE_MOST)


def _read_tail(path: str | None, owner: int | None) -> str:
    if not path:
        return ""
    try:
        descriptor = open_output(path, owner)
    except StateError:
        return ""
    if descriptor is None:
        return ""
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return tail.decode("utf-8", "replace")
