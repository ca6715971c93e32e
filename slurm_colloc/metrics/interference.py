"""When a member became slower or faster, and who had come or gone just then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.rates import WINDOW_LEAST_S, Interval, compute_rate, select_within
from slurm_colloc.metrics.series import Window

CHANGE_LEAST = 0.05
"""A smaller change of the rate is not told apart from its own ups and downs."""


@dataclass(frozen=True)
class Felt:
    """One start of a neighbour.

    Attributes:
        member: Its number.
        begin: Seconds since the epoch.
        first_step_at: From when on it can be felt most; `begin` where it made no step.
        end: Seconds since the epoch.
    """

    member: int
    begin: float
    first_step_at: float
    end: float


@dataclass(frozen=True)
class PresenceChange:
    """Members came or went; what happens within 5 s is one change.

    Attributes:
        begin: Seconds since the epoch.
        end: When the last comer made its first step, or the last one went.
        came: Members that came.
        went: Members that went.
    """

    begin: float
    end: float
    came: tuple[int, ...]
    went: tuple[int, ...]


@dataclass(frozen=True)
class Interference:
    """A change of a member's rate at a change of its company.

    Attributes:
        at: When, in seconds since the epoch.
        came: Members that came.
        went: Members that went.
        before: Rate before, in steps per second.
        after: Rate after.
    """

    at: float
    came: tuple[int, ...]
    went: tuple[int, ...]
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """Rate after over rate before: less than 1 where it became slower."""
        return self.after / self.before


def find_changes(stays: Sequence[Felt], member: int, window: Window) -> list[PresenceChange]:
    """Where others came and went while a member was there.

    A comer's time from its start to its first step is part of the change: neither before nor after.

    Args:
        stays: Which members were there when.
        member: The member.
        window: From when to when it was there.
    """
    events = []
    for stay in stays:
        if stay.member != member and window[0] < stay.begin < window[1]:
            felt_at = min(stay.first_step_at, window[1])
            events.append(PresenceChange(stay.begin, felt_at, (stay.member,), ()))
        if stay.member != member and window[0] < stay.end < window[1]:
            events.append(PresenceChange(stay.end, stay.end, (), (stay.member,)))
    changes: list[PresenceChange] = []
    for new in sorted(events, key=lambda change: (change.begin, change.end)):
        last = changes[-1] if changes else None
        if last is not None and new.begin - last.end < WINDOW_LEAST_S:
            end = max(last.end, new.end)
            changes[-1] = PresenceChange(
                last.begin, end, last.came + new.came, last.went + new.went
            )
        else:
            changes.append(new)
    return changes


def find_interference(
    intervals: Sequence[Interval], changes: Sequence[PresenceChange], window: Window
) -> list[Interference]:
    """Compare a member's rate before and after each change.

    A change with less than 5 s of steps on one side is compared with nothing.

    Args:
        intervals: The member's settled intervals.
        changes: As `find_changes` finds them.
        window: From when to when it was there.
    """
    edges = [window[0], *(edge for c in changes for edge in (c.begin, c.end)), window[1]]
    windows = list(zip(edges[::2], edges[1::2], strict=True))
    rates = [compute_rate(select_within(intervals, [part])).steps_per_s for part in windows]
    found = []
    for change, before, after in zip(changes, rates, rates[1:], strict=False):
        if before is None or after is None or abs(after / before - 1) < CHANGE_LEAST:
            continue
        found.append(Interference(change.begin, change.came, change.went, before, after))
    return found
