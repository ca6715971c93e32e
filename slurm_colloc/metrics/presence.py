"""Which members were there when: windows in which a member was alone, and in which it shared.

Also: how a number about one member of a shared GPU was obtained, and what stays unexplained; when a
member became slower or faster, and who had come or gone just then.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence

from slurm_colloc.metrics.rates import (
    WINDOW_LEAST_S,
    Interval,
    OwnTime,
    Value,
    Window,
    compute_rate,
    join_windows,
    select_within,
)
from slurm_colloc.model.late_definitions import dataclass

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


def list_windows(stays: Iterable[Stay]) -> list[Window]:
    """When they were, whoever's they are."""
    return [(stay.begin, stay.end) for stay in stays]


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
    return join_windows(windows)


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
    return join_windows(
        (p.begin, p.end) for p in phases if member in p.members and len(p.members) > 1
    )


def find_crowded(phases: Iterable[Phase], least: int) -> list[Window]:
    """Windows in which at least so many members were there."""
    return join_windows((p.begin, p.end) for p in phases if len(p.members) >= least)


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
    return join_windows(
        (p.begin, p.end)
        for p in phases
        if member in p.members and p.members <= wanted and len(p.members) == count
    )


# ---- How a number about one member of a shared GPU was obtained, and what stays unexplained ------


class Attribution(enum.StrEnum):
    """The word that goes with a number."""

    EXACT = "exact"
    """No other member was on what was measured."""
    PER_PROCESS = "per_process"
    """The driver reports it for each process."""
    MODELLED = "modelled"
    """Computed from the member's usage profile and its rate."""
    WHOLE_GPU = "whole_gpu"
    """Of the whole GPU; it cannot be split."""


@dataclass(frozen=True)
class AttributedPart:
    """A member's part of something.

    Attributes:
        value: The part.
        attribution: How it was obtained.
    """

    value: float
    attribution: Attribution


def model_sm_activity(
    solo_sm: Value, solo_rate: Value, steps: Value, length_s: float
) -> float | None:
    """A member's SM activity over some time: that of its steps, as they are alone.

    A step needs the same work of the GPU alone and in company. The GPU-wide value cannot be split
    by measurement under MPS or time slices. Under a thread limit of MPS the same work is done by
    fewer SMs that are each busier, so that the model says too much there.

    Args:
        solo_sm: SM activity alone, 0 to 1.
        solo_rate: Steps per second alone.
        steps: Steps in that time.
        length_s: The time in seconds.
    """
    if solo_sm is None or not solo_rate or steps is None or length_s <= 0:
        return None
    return solo_sm / solo_rate * steps / length_s


def attribute_gpu_use(alone: Value, modelled: Value, *, was_alone: bool) -> AttributedPart | None:
    """A member's part of the GPU.

    Args:
        alone: The GPU's value while it was there.
        modelled: What the model says.
        was_alone: No other member was ever there with it.
    """
    if was_alone:
        return None if alone is None else AttributedPart(alone, Attribution.EXACT)
    return None if modelled is None else AttributedPart(modelled, Attribution.MODELLED)


def compute_rest(measured: Value, parts: Iterable[Value]) -> tuple[float, float | None]:
    """The sum of the known parts of a whole, and what they leave of it.

    A part that is unknown stays in the rest, which is less than 0 where the model says too much; it
    is never spread. None where the whole could not be read.
    """
    explained = sum(part for part in parts if part is not None)
    return explained, None if measured is None else measured - explained


def attribute_whole(members: Sequence[object]) -> Attribution:
    """The word for a number of the whole GPU: it is exactly that of a pack's only member."""
    return Attribution.EXACT if len(members) == 1 else Attribution.WHOLE_GPU


# ---- When a member became slower or faster, and who had come or gone just then -------------------

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
