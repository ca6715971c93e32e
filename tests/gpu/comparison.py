"""What a monitor says against what programs, the driver and the GPU say themselves; pure."""

from __future__ import annotations

import bisect
import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree


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
