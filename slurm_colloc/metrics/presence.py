"""Which members were there when: windows in which a member was alone, and in which it shared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.own_time import OwnTime
from slurm_colloc.metrics.series import Window

MARGIN_S = 2.0
"""A neighbour is seen once a second: how long before and after it may have been there."""
SETTLE_S = 0.3
"""So long after its processes were stopped, a neighbour has kernels on the GPU at most."""


@dataclass(frozen=True, order=True)
class Stay:
    """One start of a member, as long as it had processes, or a part of that time.

    Attributes:
        begin: Seconds since the epoch.
        end: Seconds since the epoch.
        member: Its number.
    """

    begin: float
    end: float
    member: int


@dataclass(frozen=True)
class Phase:
    """A time in which no member came or went, or was stopped or went on.

    Attributes:
        begin: Seconds since the epoch.
        end: Seconds since the epoch.
        members: Those that were there.
    """

    begin: float
    end: float
    members: frozenset[int]

    @property
    def length_s(self) -> float:
        """Its length in seconds."""
        return self.end - self.begin


def leave_out_stops(stays: Iterable[Stay], own_time: OwnTime) -> list[Stay]:
    """When a member really ran: who is stopped is not there."""
    return [
        Stay(begin, end, stay.member)
        for stay in stays
        for begin, end in own_time.cut(stay.begin, stay.end)
    ]


def compute_phases(stays: Iterable[Stay]) -> list[Phase]:
    """Cut the time from the first coming to the last going wherever a member came or went."""
    events: list[tuple[float, int, int]] = []
    for stay in stays:
        if stay.end > stay.begin:
            events += [(stay.begin, 1, stay.member), (stay.end, -1, stay.member)]
    events.sort()
    present: dict[int, int] = {}
    phases = []
    for (at, change, member), (then, _, _) in itertools.pairwise(events):
        # Starts of one member may overlap by a moment.
        present[member] = present.get(member, 0) + change
        if then > at:
            members = frozenset(number for number, count in present.items() if count > 0)
            phases.append(Phase(at, then, members))
    return phases


def find_alone(phases: Sequence[Phase], member: int, margin_s: float = MARGIN_S) -> list[Window]:
    """Windows in which a member was the only one, a margin away from every neighbour."""
    windows: list[Window] = []
    for index, phase in enumerate(phases):
        if phase.members != {member}:
            continue
        begin, end = phase.begin, phase.end
        if index > 0 and phases[index - 1].members - {member}:
            begin += margin_s
        if index + 1 < len(phases) and phases[index + 1].members - {member}:
            end -= margin_s
        if end > begin:
            windows.append((begin, end))
    return _join(windows)


def find_briefly_alone(
    phases: Sequence[Phase], member: int, unsure: Iterable[Window]
) -> list[Window]:
    """Windows in which a member was the only one, however short, as while others were stopped.

    When a neighbour was stopped is known to the moment, when it came or went is not.

    Args:
        phases: The run.
        member: The member.
        unsure: When a neighbour may have been there besides.
    """
    clock = OwnTime(unsure)
    found: list[Window] = []
    for begin, end in find_alone(phases, member, margin_s=0.0):
        found += clock.cut(begin + SETTLE_S, end) if end > begin + SETTLE_S else []
    return found


def find_shared(phases: Iterable[Phase], member: int) -> list[Window]:
    """Windows in which a member was there with another."""
    return _join([(p.begin, p.end) for p in phases if member in p.members and len(p.members) > 1])


def find_crowded(phases: Iterable[Phase], least: int) -> list[Window]:
    """Windows in which at least so many members were there."""
    return _join([(p.begin, p.end) for p in phases if len(p.members) >= least])


def find_together(
    phases: Iterable[Phase], member: int, others: frozenset[int], at_once: int
) -> list[Window]:
    """Windows in which a member was there with as many of these as run at once, and no other.

    Args:
        phases: The run.
        member: The member.
        others: With whom it is to be.
        at_once: How many run at the same time, at most; the others wait for a place.
    """
    wanted = others | {member}
    count = min(at_once, len(wanted))
    return _join(
        [
            (p.begin, p.end)
            for p in phases
            if member in p.members and p.members <= wanted and len(p.members) == count
        ]
    )


def _join(windows: Sequence[Window]) -> list[Window]:
    joined: list[Window] = []
    for begin, end in windows:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined
