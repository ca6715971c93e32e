"""report/pauses.jsonl: when members were paused. Their runner alone writes it, a line for a change.

Paused time is not counted: it belongs to no rate, slowdown or limit of the member, and while it
lasts the member is no neighbour of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc.store.atomic_files import open_regular

NAME = "report/pauses.jsonl"
MEASURED = "measured"
"""Paused for a moment, so that others can be measured without it."""
PARKED = "parked"
"""Paused until a place is free for it."""
AT_DOOR = "at the door"
"""Not paused: it loads its program, and waits before its first use of the GPU."""

_MOST_BYTES = 64 << 20

Start = tuple[int, int]
"""A member's number, and the number of its start."""


@dataclass(frozen=True)
class MemberPause:
    """A time in which the processes of a member were stopped, or did not use the GPU yet.

    Attributes:
        member: Its number.
        start: Which of its starts.
        begin: Seconds since the epoch.
        end: Seconds since the epoch; None where it had not ended when the file was written last.
        reason: `measured`, `parked` or `at the door`.
    """

    member: int
    start: int
    begin: float
    end: float | None
    reason: str


def append_change(
    pack: Path | str,
    at: float,
    *,
    paused: Sequence[Start] = (),
    resumed: Sequence[Start] = (),
    reason: str = MEASURED,
) -> None:
    """Write down who is paused, or goes on, from a moment on.

    Args:
        pack: The pack's directory.
        at: When, in seconds since the epoch.
        paused: Who is paused.
        resumed: Who goes on.
        reason: Why those are paused.

    Raises:
        OSError: It cannot be written.
    """
    change = {"at": at, "paused": paused, "resumed": resumed, "reason": reason}
    # O_APPEND and one write: a line is there whole, or what is left of it is passed over.
    with contextlib.suppress(FileExistsError):
        # The monitor, which makes it otherwise, may not have begun.
        os.mkdir(f"{pack}/{NAME}".rpartition("/")[0], 0o700)
    descriptor = os.open(
        f"{pack}/{NAME}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        os.write(descriptor, f"{json.dumps(change)}\n".encode())
    finally:
        os.close(descriptor)


def read_pauses(pack: Path | str) -> list[MemberPause]:
    """All pauses of a pack's members, in the order in which they began; empty without any.

    Lines that make no sense are passed over.
    """
    try:
        descriptor = open_regular(f"{pack}/{NAME}")
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        content = file.read(_MOST_BYTES)
    open_pauses: dict[Start, MemberPause] = {}
    found: list[MemberPause] = []
    for line in content.splitlines():
        change = _parse_change(line)
        if change is None:
            continue
        at, paused, resumed, reason = change
        ended = [open_pauses.pop(key) for key in resumed if key in open_pauses]
        found += [dataclasses.replace(pause, end=at) for pause in ended]
        for key in paused:
            open_pauses.setdefault(key, MemberPause(*key, at, None, reason))
    return sorted([*found, *open_pauses.values()], key=lambda pause: (pause.begin, pause.member))


def _parse_change(line: bytes) -> tuple[float, list[Start], list[Start], str] | None:
    try:
        value: dict[str, Any] = json.loads(line)
        paused = [(int(member), int(start)) for member, start in value["paused"]]
        resumed = [(int(member), int(start)) for member, start in value["resumed"]]
        return float(value["at"]), paused, resumed, str(value["reason"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
