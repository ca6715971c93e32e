"""The members of a pack by the names of their files: one look at each directory."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.directory import ENTRY
from slurm_colloc.store.holds import HELD, LEFT


@dataclass(frozen=True, slots=True)
class MemberFiles:
    """A member's directory as it was at one moment.

    Attributes:
        number: The member's number.
        path: Its directory.
        names: The files in it.
    """

    number: int
    path: str
    names: AbstractSet[str]

    @property
    def is_cancelled(self) -> bool:
        """It was taken out of the queue before it started."""
        return "cancelled" in self.names

    @property
    def is_held(self) -> bool:
        """Its runner must not start it."""
        return HELD in self.names or LEFT in self.names

    @property
    def is_moved(self) -> bool:
        """It was submitted again in another pack, see `read_moved`."""
        return "moved.json" in self.names


def list_member_files(pack: Path | str) -> list[MemberFiles]:
    """All members of a pack by number; a joiner that has not entered is none.

    A directory this small is listed in one go, so that the files of a joiner that has just
    entered are seen together (see `directory.has_entered`).

    Raises:
        StateError: The pack cannot be read.
    """
    root = f"{pack}/members"
    found = []
    try:
        for name in os.listdir(root):
            if name.isdigit():
                path = f"{root}/{name}"
                try:
                    names = frozenset(os.listdir(path))
                except FileNotFoundError:
                    # A joiner that has not entered was dropped just now.
                    continue
                if "spec.json" in names and ENTRY not in names:
                    found.append(MemberFiles(int(name), path, names))
    except OSError as error:
        raise StateError(f"cannot read {pack}: {os.strerror(error.errno or 0)}") from error
    found.sort(key=lambda files: files.number)
    return found
