"""What measuring a pack by pausing its members has shown: values only.

Also: the curve that packs have measured of jobs of one family, or of a mix of families; which
degree is best in a pack, and from which numbers, in one sentence.

Windows of about a second are measured in turn, in each of which some members run and the others
are paused. The sum of normalised progress is STP (Eyerman and Eeckhout, 2008).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import tell_number
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import ProfileRecord
from slurm_colloc.model.why_not_now import say_at_once, say_no_more


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
        best: The degree with more progress, where with it the last would end later; else None.
    """

    at: float
    state: DegreeState
    running: int
    degree: int
    stp: float | None
    reason: str
    best: int | None = None


# ----
# The curve that packs have measured of jobs of one family, or of a mix of families; pure values.
#
# It outlives its pack: the next plan on that GPU model begins where the last one has settled.

_SEEN_MOST = 64


@dataclass(frozen=True)
class KnownPoint:
    """What so many at once have made together, in the newest pack that has measured it.

    Attributes:
        degree: How many ran.
        stp: Sum of their normalised progress.
        worst_slowdown: Of the one that was slowed down most; None where that is not known.
        at: When, in seconds since the epoch.
        runs: How many packs have measured this degree.
    """

    degree: int
    stp: float
    worst_slowdown: float | None = None
    at: float = 0.0
    runs: int = 1

    @property
    def slowdown(self) -> float:
        """The worst slowdown, or the mean one where the worst is not known."""
        return self.degree / self.stp if self.worst_slowdown is None else self.worst_slowdown


@dataclass(frozen=True)
class FamilyRate:
    """The rate alone of a family, as the newest pack has measured it by pausing.

    Attributes:
        family: Which.
        steps_per_s: The rate.
    """

    family: str
    steps_per_s: float


@dataclass(frozen=True)
class KnownCurve:
    """What is known of these families together on a GPU model.

    Attributes:
        families: Which, in order; each has run at every degree.
        gpu_model: The GPU's model.
        mode: How they shared the GPU.
        points: By degree, from 2 on.
        rates_alone: Of each family whose rate is known.
        names: Names of their jobs, for people.
        seen: The newest packs that are in it.
    """

    families: tuple[str, ...]
    gpu_model: str
    mode: SharingMode
    points: tuple[KnownPoint, ...]
    rates_alone: tuple[FamilyRate, ...] = ()
    names: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    def is_of(self, record: ProfileRecord) -> bool:
        """Whether the family of a usage profile is one of these, on its GPU model."""
        return record.family in self.families and record.gpu_model == self.gpu_model

    @property
    def best(self) -> KnownPoint:
        """The degree at which most progress was made."""
        return max(self.points, key=lambda point: point.stp)

    def add(self, newer: KnownCurve) -> KnownCurve:
        """With what one more pack has measured: of each degree the newest counts."""
        is_again = set(newer.seen) <= set(self.seen)
        points = {point.degree: point for point in self.points}
        for point in newer.points:
            known = points.get(point.degree)
            if known is None:
                points[point.degree] = point
                continue
            runs = known.runs + (0 if is_again else point.runs)
            newest = point if point.at >= known.at else known
            points[point.degree] = replace(newest, runs=runs)
        rates = {rate.family: rate for rate in (*self.rates_alone, *newer.rates_alone)}
        seen = dict.fromkeys((*self.seen, *newer.seen))
        return replace(
            newer,
            points=tuple(points[degree] for degree in sorted(points)),
            rates_alone=tuple(rates[family] for family in sorted(rates)),
            seen=tuple(seen)[-_SEEN_MOST:],
        )


# ---- Which degree is best in a pack, and from which numbers, in one sentence; pure ---------------
#
# Its runner writes these words, and csub says them again from what the runner has written.

_ERRORS = 2.0
"""A difference of fewer standard errors is none."""
_EVEN = 1.01
"""Below it a member does not count as slower."""


def describe_curve(curve: Sequence[CurvePoint], degree: int, best: int | None = None) -> str:
    """Why so many members of a pack run at once, by what was measured.

    `no more than 6 run at once: 6 together make 4.1 times the progress of one alone, 8 make 3.6,
    and member 2 would be 1.7 times slower than alone (1.5 is accepted)`.

    Args:
        curve: The measured points, in any order; of several of one degree the last counts.
        degree: How many may run.
        best: With how many the last would end later, although more progress is made; else None.

    Returns:
        The sentence, without a full stop; empty where no two were measured together.
    """
    points = {point.degree: point for point in curve if point.degree > 1}
    if not points:
        return ""
    later = "" if best is None else f"; with {best} at once the last would end later"
    chosen = points.get(degree)
    fewer = max((other for other in points if other < degree), default=None)
    more = min((other for other in points if other > degree), default=None)
    if more is None:
        shown = chosen or points[max(points)]
        fewer = max((other for other in points if other < shown.degree), default=None)
        others = [] if fewer is None else [points[fewer]]
        told = f"{say_at_once(degree)}: {_compare(shown, others)}"
        return told + _tell_bound(shown, ", and", "is") + later
    beyond = points[more]
    base = chosen if fewer is None or chosen is not None else points[fewer]
    told = _compare(beyond, []) if base is None else _compare(base, [beyond])
    is_more = beyond.stp > (1.0 if base is None else base.stp)
    bound = ""
    if is_beyond_bound(beyond):
        bound = _tell_bound(beyond, ", but" if is_more else ", and", "would be")
    elif chosen is not None and is_more and not _is_surely_more(beyond, chosen):
        bound = ", which is not surely more"
    return f"{say_no_more(degree)}: {told}{bound}{later}"


def describe_measured(
    state: DegreeState, curve: Sequence[CurvePoint], degree: int, made: Sequence[DegreeDecision]
) -> str:
    """What is known of how many run at once, or why nothing was measured; empty where neither is.

    Args:
        state: How far the measurement is.
        curve: The measured points, the newest ones.
        degree: How many may run.
        made: What was decided, the oldest first.
    """
    reason, best = (made[-1].reason, made[-1].best) if made else ("", None)
    told = describe_curve(curve, degree, best) if state is DegreeState.SETTLED else ""
    return told or reason


def is_beyond_bound(point: CurvePoint) -> bool:
    """Whether a member was slower there than is accepted for it."""
    slowdown, bound = point.worst_slowdown, point.worst_bound
    return slowdown is not None and bound is not None and slowdown > bound


def _compare(first: CurvePoint, others: Sequence[CurvePoint]) -> str:
    told = f"{first.degree} together make {first.stp:.1f} times the progress of one alone"
    return ", ".join([told, *(f"{other.degree} make {other.stp:.1f}" for other in others)])


def _tell_bound(point: CurvePoint, link: str, verb: str) -> str:
    slowdown, bound, member = point.worst_slowdown, point.worst_bound, point.worst_member
    if slowdown is None or bound is None or member is None or slowdown < _EVEN:
        return ""
    # Of two figures that look the same none would be seen to be the larger one.
    digits = 1 if f"{slowdown:.1f}" != f"{bound:.1f}" else 2
    return (
        f"{link} member {tell_number(member)} {verb} {slowdown:.{digits}f} times slower than alone "
        f"({bound:.{digits}f} is accepted)"
    )


def _is_surely_more(point: CurvePoint, than: CurvePoint) -> bool:
    if point.error is None or than.error is None:
        return f"{point.stp:.1f}" != f"{than.stp:.1f}"
    return point.stp - than.stp > _ERRORS * math.hypot(point.error, than.error)
