"""What measuring a pack by pausing its members has shown: values only.

Windows of about a second are measured in turn, in each of which some members run and the others
are paused. The sum of normalised progress is STP (Eyerman and Eeckhout, 2008).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class DegreeState(enum.StrEnum):
    """How far the measurement of a pack is."""

    MEASURING = "MEASURING"
    """Members are started, or windows are measured: how many may run is not decided yet."""
    SETTLED = "SETTLED"
    OFF = "OFF"
    """Nothing can be measured, or nothing may be paused: as many run as were planned."""


class RateSource(enum.StrEnum):
    """How the rate alone of a member was obtained."""

    PAUSING = "pausing"
    """Its own, while all others were paused."""
    FIRST = "first"
    """Its own, while no other member had started, or done more than load."""
    FAMILY = "family"
    """That of another member of its family, which had all of the GPU's threads."""
    PROFILE = "profile"
    """By its usage profile."""


@dataclass(frozen=True)
class RateAlone:
    """The rate of a member without neighbours.

    Attributes:
        member: Its number.
        steps_per_s: Steps per second.
        error: Standard error of that, as a part of it; None where one window alone was measured.
        window_s: Seconds measured.
        at: When, in seconds since the epoch.
        source: How it was obtained.
        thread_percentage: The part of the GPU's threads that it had; None for all.
    """

    member: int
    steps_per_s: float
    error: float | None = None
    window_s: float = 0.0
    at: float = 0.0
    source: RateSource = RateSource.PAUSING
    thread_percentage: int | None = None


@dataclass(frozen=True)
class CurvePoint:
    """The measured sum of normalised progress at one degree.

    Attributes:
        degree: Members that ran.
        stp: Sum of their normalised progress.
        error: Standard error of the sum; None where it is not known.
        worst_slowdown: The slowdown that uses most of its bound; None where no bound is known.
        worst_member: Whose that is.
        worst_bound: The slowdown that is accepted for that member; None for any.
        window_s: Seconds measured, in all windows.
        members: Who ran.
    """

    degree: int
    stp: float
    error: float | None = None
    worst_slowdown: float | None = None
    worst_member: int | None = None
    worst_bound: float | None = None
    window_s: float = 0.0
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class DegreeDecision:
    """One decision about how many members run.

    Attributes:
        at: Seconds since the epoch.
        state: How far the measurement is from now on.
        running: Members that ran when it was made, paused ones included.
        degree: How many may run from now on.
        stp: The sum of normalised progress that it rests on; None where nothing was measured.
        reason: Why, in words.
    """

    at: float
    state: DegreeState
    running: int
    degree: int
    stp: float | None
    reason: str
