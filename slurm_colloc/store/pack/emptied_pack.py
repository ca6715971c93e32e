"""Marks of a whole pack: its members were taken over before it began, or it is being cancelled."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.store.atomic_files import is_there, write_atomic, write_json
from slurm_colloc.store.pack import inbox, take_over
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_states import read_attempt
from slurm_colloc.store.pack.pack_directory import list_claimed
from slurm_colloc.store.record_files import read_record

CANCELLING = "cancelling"
"""A mark: csub has told Slurm to cancel the pack's job, or is at it."""


@dataclasses.dataclass(frozen=True)
class EmptiedRecord:
    """All that a pack had went to another before it began (emptied.json).

    Attributes:
        by: The pack that took the last of them.
        at: When, in seconds since the epoch.
    """

    by: str = ""
    at: float = 0.0


def empty_pack(pack: Path, by: str) -> bool:
    """Close a pack that has not begun, once nothing is left in it to run; False where that is not.

    Members that were cancelled while they waited stay in it. The caller holds the pack's lock, so
    that neither a runner begins nor a job joins meanwhile.

    Args:
        pack: The pack's directory.
        by: The pack that has taken its members.

    Raises:
        StateError: It cannot be told, or not be written down.
        OSError: Likewise.
    """
    if has_left_to_run(pack) or not inbox.close(str(pack)):
        return False
    write_json(pack / "emptied.json", dataclasses.asdict(EmptiedRecord(by, time.time())))
    return True


def has_left_to_run(pack: Path) -> bool:
    """Whether a pack has begun, or has members that wait or are on their way to another.

    Raises:
        StateError: It cannot be told.
        OSError: Likewise.
    """
    if read_attempt(pack) or take_over.list_moving(str(pack)):
        return True
    folders = (pack / "members" / format_number(number) for number in list_claimed(pack))
    return any(not is_there(folder / "cancelled") for folder in folders)


def read_emptied(pack: Path) -> str:
    """The pack that took over all that a pack had; empty where that is not so.

    Raises:
        StateError: The mark is damaged.
    """
    record = read_record(pack / "emptied.json", EmptiedRecord)
    return "" if record is None else record.by or "?"


@contextlib.contextmanager
def being_cancelled(pack: Path) -> Iterator[None]:
    """Mark a pack while Slurm is told to cancel its job; the caller holds its lock.

    The mark stays where that was done, so that no other pack takes its members over afterwards.

    Raises:
        StateError: It cannot be written.
    """
    mark = pack / CANCELLING
    # It is for others that look now: a machine that fails has no need of it.
    write_atomic(mark, b"", outlives_crash=False)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(mark)
        raise


def is_being_cancelled(pack: Path) -> bool:
    """Whether csub has told Slurm to cancel a pack's job, or is at it."""
    return is_there(pack / CANCELLING)
