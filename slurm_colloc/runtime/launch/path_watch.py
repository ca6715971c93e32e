"""Notices members whose programs do not find csub's own commands any more.

A shell other than bash, or a program, may set PATH anew; its `scancel $SLURM_JOB_ID` would then end
the whole pack. Nothing can be done about it there, so the pack's log says it while it runs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.host.system.process_owner import find_ancestor, read_small
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.path_shims import find_shims
from slurm_colloc.runtime.queue.members import Member

LOOKS_S = (5.0, 60.0)
"""How long after it was first seen running a member is looked at."""

_ENVIRONMENT_MOST = 1 << 18


class PathWatch:
    """Looks at the programs of running members, twice for each start.

    Args:
        journal: The pack's log.
        looks_s: When.
    """

    def __init__(self, journal: Journal, looks_s: tuple[float, ...] = LOOKS_S) -> None:
        self._journal = journal
        self._looks_s = looks_s
        self._due: dict[str, list[float]] = {}
        self._told: dict[str, set[str]] = {}

    def look(self, members: Iterable[Member]) -> None:
        """Look at the members whose time it is; say what was found, once for each program."""
        now = time.monotonic()
        due: dict[int, Member] = {}
        for member in members:
            if member.pid is None:
                continue
            moments = self._due.setdefault(
                member.prefix, [now + after_s for after_s in self._looks_s]
            )
            if moments and now >= moments[0]:
                del moments[0]
                if os.path.lexists(find_shims(Path(member.prefix).parent)):
                    due[member.pid] = member
        if due:
            self._look_at(due)

    def _look_at(self, due: dict[int, Member]) -> None:
        lost: dict[str, set[str]] = {}
        for entry in os.listdir("/proc"):
            member = find_ancestor(int(entry), due) if entry.isdigit() else None
            if member is None:
                continue
            if has_lost_path(int(entry), find_shims(Path(member.prefix).parent)):
                with contextlib.suppress(OSError):
                    name = os.fsdecode(read_small(f"/proc/{entry}/comm")).rstrip("\n")
                    lost.setdefault(member.prefix, set()).add(name)
        for member in due.values():
            told = self._told.setdefault(member.prefix, set())
            names = lost.get(member.prefix, set()) - told
            told |= names
            if names:
                self._journal.write(
                    "path_lost",
                    member=member.number,
                    programs=sorted(names),
                    effect="their scancel or scontrol requeue of the own job is Slurm's, and "
                    "concerns the whole pack",
                )


def has_lost_path(pid: int, shims: str) -> bool:
    """The PATH with which a process was started leads to another scancel than the member's own."""
    try:
        block = read_small(f"/proc/{pid}/environ", _ENVIRONMENT_MOST)
    except OSError:
        return False
    for pair in block.split(b"\0"):
        if pair.startswith(b"PATH="):
            folders = os.fsdecode(pair[5:]).split(":")
            first = next((one for one in folders if os.access(f"{one}/scancel", os.X_OK)), shims)
            return first != shims
    return False
