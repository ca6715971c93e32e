"""The curve that packs have measured of jobs of one family, or of a mix of families; pure values.

It outlives its pack: the next plan on that GPU model begins where the last one has settled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage.profile import ProfileRecord

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
