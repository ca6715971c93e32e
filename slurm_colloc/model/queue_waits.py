"""How long jobs waited in a partition, by what they asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEAST_JOBS = 20
"""Fewer jobs make no estimate."""

BUCKETS_S = (3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
"""Time limits that are counted together end here; what is longer, or has none, is one more."""


@dataclass(frozen=True)
class PastJob:
    """A job that has waited.

    Attributes:
        gpus: GPUs that it asked for.
        time_limit_s: Its time limit; None for none.
        wait_s: From when it could have started to its start, in seconds.
    """

    gpus: int
    time_limit_s: int | None
    wait_s: float


@dataclass(frozen=True)
class WaitEstimate:
    """How long a request waits, by jobs that asked for the like.

    Attributes:
        median_s: Half of them waited no longer.
        p90_s: Nine of ten waited no longer.
        jobs: How many they were.
        of: What they had in common with the request, in words.
    """

    median_s: float
    p90_s: float
    jobs: int
    of: str


Cell = tuple[int | None, int | None]
"""GPUs and bucket of the time limit; None for any."""


@dataclass(frozen=True)
class WaitTable:
    """Waits in one partition.

    Attributes:
        jobs: How many jobs it is made of.
        cells: Number of jobs, median and 90th percentile of their waits in seconds, of cells
            with enough jobs.
        unknown: Why there are none, in words; empty where there are.
    """

    jobs: int
    cells: Mapping[Cell, tuple[int, float, float]] = field(default_factory=dict)
    unknown: str = ""

    def estimate(self, gpus: int, time_limit_s: int | None) -> WaitEstimate | None:
        """How long a request will wait, by the finest cell with enough jobs; None where none has.

        Args:
            gpus: GPUs that are asked for.
            time_limit_s: The time limit; None for none.
        """
        bucket = choose_bucket(time_limit_s)
        words = f"{gpus} GPU{'' if gpus == 1 else 's'}"
        finer: tuple[tuple[Cell, str], ...] = (
            ((gpus, bucket), f"{words} and {_describe_bucket(bucket)}"),
            ((gpus, None), words),
            ((None, None), "any request"),
        )
        for cell, of in finer:
            if cell in self.cells:
                jobs, median_s, p90_s = self.cells[cell]
                return WaitEstimate(median_s, p90_s, jobs, of)
        return None


def choose_bucket(time_limit_s: int | None) -> int:
    """The bucket of a time limit."""
    if time_limit_s is None:
        return len(BUCKETS_S)
    return next((i for i, most in enumerate(BUCKETS_S) if time_limit_s <= most), len(BUCKETS_S))


def _describe_bucket(bucket: int) -> str:
    if bucket == len(BUCKETS_S):
        return f"more than {BUCKETS_S[-1] // 3600} h"
    return f"at most {BUCKETS_S[bucket] // 3600} h"


def build_wait_table(jobs: Iterable[PastJob]) -> WaitTable:
    """Count waits by what was asked for; cells with too few jobs are left out."""
    waits: dict[Cell, list[float]] = {}
    for job in jobs:
        bucket = choose_bucket(job.time_limit_s)
        for cell in ((job.gpus, bucket), (job.gpus, None), (None, None)):
            waits.setdefault(cell, []).append(job.wait_s)
    count = len(waits.get((None, None), ()))
    cells = {
        cell: (len(found), _find_quantile(found, 0.5), _find_quantile(found, 0.9))
        for cell, found in waits.items()
        if len(found) >= LEAST_JOBS
    }
    unknown = "" if cells else f"{count} job{'' if count == 1 else 's'} in sacct"
    return WaitTable(count, cells, unknown)


def _find_quantile(values: list[float], share: float) -> float:
    """A quantile, on the line between the two values around it."""
    values.sort()
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
