"""Which process a daemon began as, written down by that process while it was still root's; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_colloc.host.processes import ProcessId


@dataclass(frozen=True)
class Leader:
    """A daemon's first process, as it wrote itself down while it was still root's.

    Args:
        id: Which process; it leads a session.
        uid: Whose it became then.
        groups: The control groups that it had entered.
    """

    id: ProcessId
    uid: int
    groups: tuple[str, ...]


_LEADER = re.compile(r"([1-9][0-9]{0,9}) ([0-9]{1,20}) ([0-9]{1,10})\n((?:/[!-~]{1,4000}\n){0,32})")


def parse_leader(text: str) -> Leader | None:
    """Read what a daemon's process wrote before it was the user's; None where it broke off.

    Args:
        text: `PID START UID`, then a line for each control group.
    """
    match = _LEADER.fullmatch(text)
    if match is None:
        return None
    return Leader(ProcessId(int(match[1]), int(match[2])), int(match[3]), tuple(match[4].split()))
