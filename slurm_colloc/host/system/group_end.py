"""Ending a group of processes for good, within a budget; no process is asked anything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    read_process,
    wait_until_ended,
)
from slurm_colloc.host.system.signals import CONTINUE, KILL, SENT, note_group_kill, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.system.process_groups import ControlGroup, ProcessSession, UnitedGroups
    from slurm_colloc.host.system.signals import ProcessGroup

LOOK_S = 1.0
"""How long a process that was sent KILL may take, and how long after that it is looked at again."""

_ROUND_S = 0.05


@dataclass(frozen=True)
class GroupEnd:
    """How a group has ended.

    Args:
        unkillable: Members that KILL was sent to, and that two looks LOOK_S apart still found.
        left: Members that are still there without that proof, or that are not the owner's.
    """

    unkillable: tuple[Process, ...] = ()
    left: tuple[Process, ...] = ()

    @property
    def is_empty(self) -> bool:
        """No process is left."""
        return not (self.unkillable or self.left)


def kill_group(
    group: ControlGroup | ProcessSession | UnitedGroups, owner: int, *, reason: str, deadline: float
) -> GroupEnd:
    """Kill all members of a group that are its owner's, and see that they are gone.

    Args:
        group: The group.
        owner: Whose its members have to be.
        reason: Why, for the audit line.
        deadline: Until when, on the monotonic clock. Two looks LOOK_S apart take 2 * LOOK_S.
    """
    members = group.list_members()
    if not members:
        return GroupEnd()
    group.forbid_forks()
    sent = set(group.kill_whole())
    note_group_kill(sent, owner, reason)
    first_look = min(deadline, time.monotonic() + LOOK_S)
    while members and time.monotonic() < first_look:
        group.freeze()
        try:
            # Frozen, none can fork after it was listed.
            members = group.list_members()
            for member in members:
                if send_signal(member.pid, KILL, owner=owner, group=group, reason=reason) == SENT:
                    sent.add(member)
        finally:
            group.thaw()
        # A wait for one that stays would keep the others waiting, and what they fork meanwhile.
        wait_until_ended(members, min(first_look, time.monotonic() + _ROUND_S))
        members = group.list_members()
    seen = sent & set(members)
    if not members:
        return GroupEnd()
    is_second_look = time.monotonic() + LOOK_S <= deadline
    wait_until_ended(members, min(deadline, time.monotonic() + LOOK_S))
    members = group.list_members()
    unkillable = seen & set(members) if is_second_look else set()
    return GroupEnd(
        unkillable=_read_all(sorted(unkillable)),
        left=_read_all(sorted(set(members) - unkillable)),
    )


def end_members(
    group: ProcessGroup, steps: Sequence[tuple[int, float]], *, owner: int | None, reason: str
) -> tuple[Process, ...]:
    """End a group's members, one signal after the other.

    Args:
        group: The group; asked anew for each signal, because a process may have forked meanwhile.
        steps: Signals, each with the seconds until the next.
        owner: Whose its members have to be; None for this process's own user.
        reason: Why.

    Returns:
        Those that are left.
    """
    for number, patience_s in steps:
        members = group.list_members()
        if not members:
            return ()
        for member in members:
            send_signal(member.pid, number, owner=owner, group=group, reason=reason)
            if number != KILL:
                # A stopped process would keep the signal until it goes on.
                send_signal(member.pid, CONTINUE, owner=owner, group=group, reason=reason)
        wait_until_ended(members, time.monotonic() + patience_s)
    return _read_all(group.list_members())


def _read_all(identities: Sequence[ProcessId]) -> tuple[Process, ...]:
    found = (read_process(identity.pid) for identity in identities)
    return tuple(
        process
        for process, identity in zip(found, identities, strict=True)
        if process is not None and process.id == identity and not process.has_ended
    )
