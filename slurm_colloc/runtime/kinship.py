"""Whose process is this: from a process id to the member below whose wrapper it runs."""

from __future__ import annotations

from collections.abc import Mapping

_DEPTH_MAX = 64


def read_parent(pid: int) -> int | None:
    """A process's parent, None where it is gone (proc(5), /proc/PID/stat, field 4)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def find_owner(pid: int, wrappers: Mapping[int, int]) -> int | None:
    """The member to which a process belongs; None where it belongs to none, or is gone.

    A wrapper adopts its orphans, so all of a member's processes stay below it; those of an srun
    inside the member's script are steps of their own, and are found by their environment.

    Args:
        pid: The process.
        wrappers: Member numbers by the process id of their wrappers.
    """
    current: int | None = pid
    for _ in range(_DEPTH_MAX):
        if current is None or current <= 1:
            break
        if current in wrappers:
            return wrappers[current]
        current = read_parent(current)
    return _read_member_variable(pid, set(wrappers.values()))


def _read_member_variable(pid: int, numbers: set[int]) -> int | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            block = file.read()
    except OSError:
        return None
    for pair in block.split(b"\0"):
        name, _, value = pair.partition(b"=")
        if name == b"SLURM_COLLOC_MEMBER":
            number = value.rpartition(b"/")[2]
            if number.isdigit() and int(number) in numbers:
                return int(number)
    return None
