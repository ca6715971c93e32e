"""What a monitor says against what programs, the driver and the GPU say themselves; pure.

Segments of a paired measurement come in groups of four: without, with, with, without. The mean of
the two in the middle less that of the outer two has no part in a drift that is linear over the
group, so a group is one observation. Groups are compared by the logarithm of the time per step,
and their mean has an interval by Student's t.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

GROUP = (False, True, True, False)
"""Which segments of a group are watched."""

# The 97.5 % quantile of Student's t by degrees of freedom (any statistical table); between two
# rows the upper one is used, whose interval is wider.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110,
    18: 2.101, 19: 2.093, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True)
class Segment:
    """A piece of a training's time.

    Attributes:
        phase: What is compared.
        group: Its group's number.
        place: Its place in the group, 0 to 3.
        is_watched: What is compared was on.
        seconds: Its length.
        steps: Steps in it.
        monitor_cpu_s: Processor time of the monitor meanwhile; None where it was not read.
    """

    phase: str
    group: int
    place: int
    is_watched: bool
    seconds: float
    steps: int
    monitor_cpu_s: float | None


@dataclass(frozen=True)
class Slowdown:
    """By how much steps take longer, in per cent of what they take without.

    Attributes:
        mean: Over the groups.
        low: Lower end of the 95 % confidence interval of the mean; None for fewer than two groups.
        high: Its upper end.
        median: Of the groups.
        sd: Standard deviation of the groups; None for fewer than two.
        groups: How many there are.
        step_ms: Time per step without, in milliseconds.
        monitor_share: Processor time of the monitor over the time, where it was on; 0 to 1.
    """

    mean: float
    low: float | None
    high: float | None
    median: float
    sd: float | None
    groups: int
    step_ms: float
    monitor_share: float | None


def compute_error(value: float | None, truth: float | None) -> float | None:
    """Relative error of a value; None where one of them is unknown or the truth is 0."""
    return None if value is None or not truth else value / truth - 1


def describe(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and largest of some values (nearest rank)."""
    ordered = sorted(values)
    rank = max(0, math.ceil(0.95 * len(ordered)) - 1)
    return {
        "median": round(statistics.median(ordered), 4),
        "p95": round(ordered[rank], 4),
        "max": round(ordered[-1], 4),
        "n": len(ordered),
    }


def read_between(times: Sequence[float], values: Sequence[float], moment: float) -> float:
    """A counter at a moment, by a straight line between two of its readings.

    Raises:
        ValueError: The moment lies outside of them.
    """
    if len(times) < 2 or not times[0] <= moment <= times[-1]:
        raise ValueError(f"{moment} lies outside the readings")
    index = max(1, bisect.bisect_left(times, moment))
    before, after = times[index - 1], times[index]
    share = (moment - before) / (after - before)
    return values[index - 1] + (values[index] - values[index - 1]) * share


def compute_rise_per_s(
    times: Sequence[float], values: Sequence[float], window: tuple[float, float]
) -> float:
    """By how much a counter rises in a second of a window.

    Raises:
        ValueError: The window is empty, or reaches outside the readings.
    """
    begin, end = window
    if end <= begin:
        raise ValueError("an empty window")
    rise = read_between(times, values, end) - read_between(times, values, begin)
    return rise / (end - begin)


def parse_counters(text: str) -> list[tuple[float, ...]]:
    """Columns of a progress file; a last line without its end is left out."""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return list(zip(*[[float(word) for word in line] for line in lines], strict=True))


def find_settled_window(member: Mapping[str, object], first_step_at: float) -> tuple[float, float]:
    """The time over which csub's report has taken a member's rate, in seconds since the epoch.

    Args:
        member: The member in summary.json.
        first_step_at: When its first step ended.

    Returns:
        Its begin and its end, with the pauses that are not part of the rate.

    Raises:
        ValueError: There is no rate.
    """
    rate = member["rate"]
    assert isinstance(rate, Mapping)
    if rate["steps_per_s"] is None:
        raise ValueError(f"no rate: {rate['unknown']}")
    begin = first_step_at + rate["warm_up_s"]
    return begin, begin + rate["window_s"] + rate["paused_s"]


def parse_compute_apps(text: str) -> dict[int, float | None]:
    """gpu_memory in MiB by pid, from nvidia-smi's table without header and units."""
    found: dict[int, float | None] = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) >= 2 and row[0].strip().isdigit():
            _keep_known(found, int(row[0]), row[1])
    return found


def parse_processes_xml(text: str) -> dict[int, float | None]:
    """The same from `nvidia-smi -q -x`; empty where it is no such text."""
    found: dict[int, float | None] = {}
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return found
    for process in root.iter("process_info"):
        pid = process.findtext("pid", "").strip()
        if pid.isdigit():
            _keep_known(found, int(pid), process.findtext("used_memory", "").split(" ")[0])
    return found


def _keep_known(found: dict[int, float | None], pid: int, word: str) -> None:
    try:
        size: float | None = float(word)
    except ValueError:
        size = None
    # A client of MPS may stand in it twice.
    known = found.get(pid)
    found[pid] = size if known is None else max(known, size or 0.0)


def sum_by_member(
    sizes: Mapping[int, float | None], owners: Mapping[int, int]
) -> dict[int, float | None]:
    """gpu_memory in MiB by member; None where it is not told for one of its processes.

    Args:
        sizes: By pid.
        owners: The member of each pid that has one.
    """
    sums: dict[int, float | None] = {}
    for pid, size in sizes.items():
        if pid in owners:
            known = sums.get(owners[pid], 0.0)
            sums[owners[pid]] = None if size is None or known is None else known + size
    return sums


def find_nearest(
    rows: Iterable[Mapping[str, object]], column: str, at: float, within_s: float
) -> float | None:
    """The known value of a column that was read nearest to a moment; None where none was."""
    best: tuple[float, float] | None = None
    for row in rows:
        value, moment = row[column], row["at"]
        if not isinstance(value, int | float) or not isinstance(moment, int | float):
            continue
        away = abs(moment - at)
        if away <= within_s and (best is None or away < best[0]):
            best = (away, float(value))
    return None if best is None else best[1]


def compute_mean(
    rows: Iterable[Mapping[str, object]], column: str, window: tuple[float, float]
) -> float | None:
    """Mean of the known values of a column in a window; None where there are none."""
    begin, end = window
    values = [
        float(value)
        for row in rows
        if isinstance(value := row[column], int | float)
        and isinstance(at := row["at"], int | float)
        and begin <= at <= end
    ]
    return statistics.fmean(values) if values else None


def parse_segments(text: str) -> list[Segment]:
    """Read what a paired measurement has written."""
    return [
        Segment(
            row["phase"],
            int(row["group"]),
            int(row["place"]),
            row["watched"] == "1",
            float(row["seconds"]),
            int(row["steps"]),
            float(row["monitor_cpu_s"]) if row["monitor_cpu_s"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    ]


def compute_slowdown(segments: Iterable[Segment]) -> Slowdown:
    """By how much steps take longer where segments are watched.

    Raises:
        ValueError: There is no whole group.
    """
    groups: dict[int, list[Segment]] = {}
    for segment in segments:
        groups.setdefault(segment.group, []).append(segment)
    whole = [
        sorted(group, key=lambda segment: segment.place)
        for _, group in sorted(groups.items())
        if len(group) == len(GROUP)
    ]
    if not whole:
        raise ValueError("no whole group was measured")
    differences = [_compare_group(group) for group in whole]
    mean = statistics.fmean(differences)
    low = high = None
    if len(differences) > 1:
        half = find_t(len(differences) - 1) * statistics.stdev(differences)
        half /= math.sqrt(len(differences))
        low, high = _to_percent(mean - half), _to_percent(mean + half)
    every = list(itertools.chain.from_iterable(whole))
    without = [segment for segment in every if not segment.is_watched]
    watched = [segment for segment in every if segment.is_watched]
    cpu_s = [one.monitor_cpu_s for one in watched if one.monitor_cpu_s is not None]
    return Slowdown(
        mean=_to_percent(mean),
        low=low,
        high=high,
        median=_to_percent(statistics.median(differences)),
        sd=100 * statistics.stdev(differences) if len(differences) > 1 else None,
        groups=len(whole),
        step_ms=1000 * sum(s.seconds for s in without) / sum(s.steps for s in without),
        monitor_share=sum(cpu_s) / sum(s.seconds for s in watched) if cpu_s else None,
    )


def _compare_group(group: Sequence[Segment]) -> float:
    """The logarithm of time per step with over time per step without."""
    if tuple(segment.is_watched for segment in group) != GROUP:
        raise ValueError("a group that is not without, with, with, without")
    logs = [math.log(segment.seconds / segment.steps) for segment in group]
    return (logs[1] + logs[2]) / 2 - (logs[0] + logs[3]) / 2


def _to_percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def find_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, or that of fewer degrees of freedom."""
    return _T[max(known for known in _T if known <= degrees)]
