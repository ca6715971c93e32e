"""What a member's time went into: waiting for data, the host, the device.

Data stalls are those of DS-Analyzer (Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and
Mitigating Data Stalls in DNN Training", VLDB 2021): time lost over the time of the run that lost
it. DS-Analyzer tells preparing from fetching by runs with one bottleneck removed; one run shows
only their sum, as the time that training waited for its loader.

The program's own clock says when it waited, the GPU's when any kernel ran. Kernels are launched
ahead, so some may run while the program waits for data. How long both happened at once is not
known: between max(0, data + device - 1) and min(data, device). The least is taken, so that
data + host + device = 1 + overlap, and `host` and `overlap` are lower bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.rates import WINDOW_LEAST_S, Interval, sum_known
from slurm_colloc.metrics.series import Track, Window

UTILIZATION_PERIOD_S = 1.0
"""Of the time before it, a reading of NVML's utilization covers so much at most (nvml.h)."""
READINGS_LEAST = 5

NO_LOADER = "wait for data unknown: no DataLoader that is seen was waited for"
NO_TIME_ALONE = (
    "host and device unknown: less than {least_s:.0f} s of settled steps alone, and in company the "
    "GPU's utilization cannot be split"
)
NOT_READ = "host and device unknown: the GPU's utilization could not be read"
SELDOM_READ = "host and device unknown: the GPU's utilization was read too seldom"
HOST_UNKNOWN = "host unknown: so is the wait for data"


@dataclass(frozen=True)
class Stall:
    """Shares of the time, each 0 to 1; None where unknown.

    Attributes:
        data: It waited for its loader, in all settled intervals, in company too.
        host: Of its settled time alone, it neither waited for data nor had a kernel running:
            Python, launching kernels. At least.
        device: Of its settled time alone, the time in which any kernel ran.
        sharing: Lost to the neighbours: 1 - 1 / slowdown.
        data_alone: As `data`, of its settled time alone.
        overlap: Of its settled time alone, waited for data while a kernel ran. At least.
        alone_s: Its settled time alone in seconds, where that is long enough to be split.
        unknown: Why something is None, a sentence each; empty where there is no rate either.
    """

    data: float | None
    host: float | None
    device: float | None
    sharing: float | None
    data_alone: float | None = None
    overlap: float | None = None
    alone_s: float | None = None
    unknown: tuple[str, ...] = ()


def compute_data_share(intervals: Sequence[Interval]) -> float | None:
    """Time waited for data over time, in settled intervals; None where one is unknown.

    None, too, where no time at all was counted: every batch of a loader takes some, so there was no
    loader that is seen. A program that is stopped while it waits takes that for waiting, so
    intervals with a stop in them are left out.
    """
    intervals = [interval for interval in intervals if not interval.stopped_s]
    wait_s = sum_known(interval.wait_s for interval in intervals)
    # Over the time of the steps: the reading after the last one of a run, or before a pause, comes
    # up to a tick later, and that time was not training.
    length_s = _measure(intervals)
    if not wait_s or length_s <= 0:
        return None
    # What was waited when the counters were read is up to one wait more than at the last step.
    return min(1.0, wait_s / length_s)


def split_stalls(
    intervals: Sequence[Interval],
    slowdown: float | None,
    alone: Sequence[Interval] = (),
    utilization: Track | None = None,
    least_s: float = WINDOW_LEAST_S,
) -> Stall:
    """Split a member's time.

    Args:
        intervals: Its settled intervals.
        slowdown: Its slowdown; below 1, it lost nothing.
        alone: Those in which no other member was on the GPU.
        utilization: NVML's utilization of the GPU, 0 to 1: the part of the time in which any
            kernel ran. SM activity does not measure that: a kernel that fills a tenth of the SMs
            has 0.1, though the GPU does not wait. None where it was never read.
        least_s: Fewer seconds alone are too short to be split.
    """
    sharing = None if slowdown is None else max(0.0, 1 - 1 / slowdown)
    if _measure(intervals) < WINDOW_LEAST_S:
        return Stall(None, None, None, sharing)
    data = compute_data_share(intervals)
    unknown = [NO_LOADER] if data is None else []
    alone_s = _measure(alone)
    if alone_s < least_s:
        unknown.append(NO_TIME_ALONE.format(least_s=least_s))
        return Stall(data, None, None, sharing, unknown=tuple(unknown))
    device, reason = _compute_device_share(alone, utilization)
    data_alone = compute_data_share(alone)
    host = overlap = None
    if device is None:
        unknown.append(reason)
    elif data_alone is None:
        unknown.append(HOST_UNKNOWN)
    else:
        host, overlap = max(0.0, 1 - data_alone - device), max(0.0, data_alone + device - 1)
    return Stall(data, host, device, sharing, data_alone, overlap, alone_s, tuple(unknown))


def _measure(intervals: Sequence[Interval]) -> float:
    return sum(interval.length_s for interval in intervals)


def _compute_device_share(
    alone: Sequence[Interval], utilization: Track | None
) -> tuple[float | None, str]:
    """The share of the time in which a kernel ran; None where unknown, and why."""
    if utilization is None or all(value is None for value in utilization.values):
        return None, NOT_READ
    values = utilization.select(find_covered(alone))
    if len(values) < READINGS_LEAST:
        return None, SELDOM_READ
    return min(1.0, sum(values) / len(values)), ""


def find_covered(intervals: Sequence[Interval]) -> list[Window]:
    """When utilization was read that covers nothing but some intervals, which are in order."""
    joined: list[Window] = []
    for interval in intervals:
        if joined and interval.begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], interval.end))
        else:
            joined.append((interval.begin, interval.end))
    shorter = ((begin + UTILIZATION_PERIOD_S, end) for begin, end in joined)
    return [(begin, end) for begin, end in shorter if end > begin]
