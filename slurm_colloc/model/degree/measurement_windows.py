"""What a measurement by pausing is given, asks for and answers; values only."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from slurm_colloc.model.degree.measured_curve import CurvePoint

WINDOW_S = 1.0
SETTLE_S = 0.3
"""From the moment in which members are paused or go on until a window begins: kernels that were
launched before are done by then (measured on an H100, docs/benchmarks.md)."""


@dataclass(frozen=True)
class PausableMember:
    """A running member, as far as it matters here.

    Attributes:
        number: Its number.
        kind: Equal for members that are alike; empty where that is not known.
        bound: The slowdown that is accepted for it; None for any.
        rate_alone: Its rate alone in steps per second, where that is known and need not be
            measured; None where it is to be measured.
        steps_per_s: Its rate as it was last seen; None where unknown.
        may_pause: It may be paused; else it runs in every window.
        line_s: Seconds between the lines in which it prints its steps; None where each step is
            counted.
    """

    number: int
    kind: str = ""
    bound: float | None = None
    rate_alone: float | None = None
    steps_per_s: float | None = None
    may_pause: bool = True
    line_s: float | None = None


@dataclass(frozen=True)
class Window:
    """A time in which certain members run, and all others are paused.

    Attributes:
        members: Numbers of those that run.
        length_s: How long it lasts, without the time in which things settle.
    """

    members: frozenset[int]
    length_s: float = WINDOW_S


@dataclass(frozen=True)
class WindowResult:
    """What a window showed.

    Attributes:
        rates: Steps per second of those that ran; None where they could not be read.
        length_s: How long it lasted, the time in which things settled included.
    """

    rates: Mapping[int, float | None]
    length_s: float


@dataclass(frozen=True)
class MeasuredRate:
    """A rate alone that was measured.

    Attributes:
        member: Whose.
        steps_per_s: The mean.
        error: Its standard error, as a part of it; None for a single window.
        window_s: Seconds measured.
    """

    member: int
    steps_per_s: float
    error: float | None
    window_s: float


@dataclass(frozen=True)
class DegreeMeasurement:
    """What was measured.

    Attributes:
        degree: How many of the members, in their order, are to run.
        curve: The points measured, by degree.
        rates_alone: Those measured now.
        cost_s: What it has cost: seconds of the progress that all make at the best degree.
        problem: Why nothing could be decided; empty where that is not so.
    """

    degree: int
    curve: tuple[CurvePoint, ...] = ()
    rates_alone: tuple[MeasuredRate, ...] = ()
    cost_s: float = 0.0
    problem: str = ""


class MeasurementCutShort(Exception):
    """No further window comes: what was seen has to do. Raised again where that is too little."""


Measuring = Generator[Window, WindowResult, DegreeMeasurement]
