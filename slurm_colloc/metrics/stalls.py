"""What a member's time went into.

Stall shares are those of DS-Analyzer (Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and
Mitigating Data Stalls in DNN Training", VLDB 2021): time lost over the time of the run that lost
it. DS-Analyzer tells preparing from fetching by runs with one bottleneck removed; one run shows
only their sum, as the time that training waited for its loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.rates import Interval, sum_known


@dataclass(frozen=True)
class Stall:
    """Shares of the time, each 0 to 1; None where unknown.

    Attributes:
        data: Waiting for data: fetching and preparing it.
        host: Waiting for the host otherwise.
        device: Waiting for the GPU.
        sharing: Lost to the neighbours: 1 - 1 / slowdown.
    """

    data: float | None
    host: float | None
    device: float | None
    sharing: float | None


def compute_data_share(intervals: Sequence[Interval]) -> float | None:
    """Time waited for data over time, in settled intervals; None where one is unknown."""
    wait_s = sum_known(interval.wait_s for interval in intervals)
    read_s = sum(interval.read_s for interval in intervals)
    if wait_s is None or read_s <= 0:
        return None
    # Counters are read a moment apart from the clock.
    return min(1.0, wait_s / read_s)


def split_stalls(intervals: Sequence[Interval], slowdown: float | None) -> Stall:
    """Split a member's time.

    Nothing measures the host's and the device's part yet, so both are None.

    Args:
        intervals: Its settled intervals.
        slowdown: Its slowdown; below 1, it lost nothing.
    """
    sharing = None if slowdown is None else max(0.0, 1 - 1 / slowdown)
    return Stall(compute_data_share(intervals), None, None, sharing)
