"""Whose process a process of this node is: the runner asks it of MPS clients, the monitor of all.

A wrapper adopts its orphans, so all of a member's processes stay below it, but for those of an srun
inside its script: they are a step of their own, and are found by the environment that they were
started with. That is the user's own word: not for root's hooks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from typing import TypeVar

_Owner = TypeVar("_Owner")
_DEPTH_MAX = 64
_ENVIRONMENT_MOST = 1 << 18


def read_small(path: str, most: int = 4096) -> bytes:
    """Read a file of /proc in one call.

    Args:
        path: The file.
        most: How many bytes of it are wanted.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def read_parent(pid: int) -> int | None:
    """A process's parent, None where it is gone (proc(5), /proc/PID/stat, field 4)."""
    try:
        # The name, in parentheses, may hold anything.
        return int(read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def find_ancestor(
    pid: int,
    owners: Mapping[int, _Owner],
    strangers: Container[int] = (),
    find_parent: Callable[[int], int | None] = read_parent,
) -> _Owner | None:
    """The owner of a process or of the nearest process above it that has one.

    Args:
        pid: The process.
        owners: Owners by process id.
        strangers: Processes that are known to have none.
        find_parent: Finds the parent of a process.
    """
    current: int | None = pid
    for _ in range(_DEPTH_MAX):
        if current is None or current <= 1 or current in strangers:
            return None
        if current in owners:
            return owners[current]
        current = find_parent(current)
    return None


def read_named_start(pid: int, pack: bytes) -> tuple[int, int] | None:
    """The member whose process it says it is, and which of its starts.

    Args:
        pid: The process.
        pack: The directory of the pack, as in its members' environment.

    Returns:
        None where it names none of this pack, or is gone.
    """
    try:
        block = read_small(f"/proc/{pid}/environ", _ENVIRONMENT_MOST)
    except OSError:
        return None
    if b"SLURM_COLLOC_START=" not in block:
        return None
    words = dict(pair.partition(b"=")[::2] for pair in block.split(b"\0"))
    if words.get(b"SLURM_COLLOC_PACK") != pack:
        return None
    # PACK/members/NNNN/run.A.M: see runtime.launch.member_environment.
    folder, _, run = os.fsdecode(words.get(b"SLURM_COLLOC_START", b"")).rpartition("/")
    number, start = folder.rpartition("/")[2], run.rpartition(".")[2]
    return (int(number), int(start)) if number.isdigit() and start.isdigit() else None
