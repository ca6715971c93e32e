"""From progress lines to rates in a common window, and from Slurm's log to wall times; pure."""

from __future__ import annotations

import bisect
import datetime
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STARTED = re.compile(
    r"\[(\S+?)\] (?:sched: Allocate|sched/backfill: _start_job: Started) JobId=(\d+)\b"
)
_DONE = re.compile(r"\[(\S+?)\] _job_complete: JobId=(\d+) done")


@dataclass(frozen=True)
class Series:
    """How many images a training had seen when.

    Args:
        times_s: Moments on the clock that all trainings share, rising.
        images: Images so far at each of them.
    """

    times_s: tuple[float, ...]
    images: tuple[float, ...]

    def read_images_at(self, moment_s: float) -> float:
        """Images at a moment within the series, by a straight line between two of its points."""
        if not self.times_s[0] <= moment_s <= self.times_s[-1]:
            raise ValueError(f"{moment_s} lies outside the series")
        index = max(1, bisect.bisect_left(self.times_s, moment_s))
        before_s, after_s = self.times_s[index - 1], self.times_s[index]
        before, after = self.images[index - 1], self.images[index]
        return before + (after - before) * (moment_s - before_s) / (after_s - before_s)


@dataclass(frozen=True)
class Window:
    """A span in which all trainings of a measurement ran."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


def parse_series(text: str) -> Series:
    """Read a progress file; a last line without its end is left out.

    Raises:
        ValueError: It has fewer than two points, or time or images do not rise.
    """
    rows = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    times = tuple(float(row[0]) for row in rows)
    images = tuple(float(row[1]) for row in rows)
    if len(times) < 2:
        raise ValueError("a training was not seen at two moments")
    for values in (times, images):
        if any(later <= earlier for earlier, later in itertools.pairwise(values)):
            raise ValueError("a training's progress does not rise")
    return Series(times, images)


def choose_fullest(series: Sequence[Series]) -> list[Series]:
    """Those that ran when most ran at the same time; of several such times, in the longest."""
    moments = sorted({moment for each in series for moment in (each.times_s[0], each.times_s[-1])})
    spans = [
        ([each for each in series if each.times_s[0] <= begin and end <= each.times_s[-1]],
         end - begin)
        for begin, end in itertools.pairwise(moments)
    ]  # fmt: skip
    return max(spans, key=lambda span: (len(span[0]), span[1]))[0]


def choose_window(series: Sequence[Series], wanted_s: float) -> Window:
    """The middle of the span in which all of them ran, of the wanted length or what there is.

    Raises:
        ValueError: They did not run at the same time.
    """
    begin_s = max(each.times_s[0] for each in series)
    end_s = min(each.times_s[-1] for each in series)
    if end_s <= begin_s:
        raise ValueError("the trainings did not run at the same time")
    spare_s = max(0.0, end_s - begin_s - wanted_s) / 2
    return Window(begin_s + spare_s, end_s - spare_s)


def compute_rates(series: Iterable[Series], window: Window) -> list[float]:
    """Images per second of each training in the window."""
    return [
        (each.read_images_at(window.end_s) - each.read_images_at(window.begin_s)) / window.length_s
        for each in series
    ]


def compute_lost_s(series: Sequence[Series], begin_s: float, window: Window) -> float:
    """Seconds of full throughput that starts cost, and times with fewer members than later.

    Args:
        series: All trainings.
        begin_s: When the first of them was started.
        window: Whose throughput is the full one; each of them ran in all of it or in none.
    """
    full, done = 0.0, 0.0
    for each in series:
        if each.times_s[-1] <= window.begin_s:
            done += each.images[-1]
        elif each.times_s[0] <= window.begin_s:
            full += compute_rates([each], window)[0]
            done += each.read_images_at(window.begin_s)
    return window.begin_s - begin_s - done / full


def compute_wall_s(slurmctld_log: str, job_id: str) -> float:
    """From the moment when Slurm gave a job its node to the moment when the job was over.

    Args:
        slurmctld_log: The controller's log, whose stamps have milliseconds.
        job_id: The job.

    Raises:
        ValueError: The log does not say.
    """
    found = []
    for pattern in (_STARTED, _DONE):
        moments = [m[1] for m in pattern.finditer(slurmctld_log) if m[2] == job_id]
        if not moments:
            raise ValueError(f"slurmctld's log does not say when job {job_id} began and ended")
        found.append(datetime.datetime.fromisoformat(moments[-1]))
    return (found[1] - found[0]).total_seconds()
