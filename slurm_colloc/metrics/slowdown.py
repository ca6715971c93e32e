"""What sharing did to speed: slowdown, STP, ANTT, fairness, and the same work one after the other.

Definitions of STP and ANTT: Eyerman and Eeckhout, "System-Level Performance Metrics for
Multiprogram Workloads", IEEE Micro 28(3), 2008. A value that is unknown makes every figure that
needs it unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.rates import sum_known
from slurm_colloc.metrics.series import Value

SECONDS_PER_HOUR = 3600.0
SHORT_S = 10.0
"""A member that was there for less has no rate and no weight: STP and ANTT leave it out."""
ASSUMED_MOST = 0.1
"""Of the time of all one after the other: more than so much is never made of assumptions."""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Fairness:
    """How evenly the progress is spread.

    Attributes:
        jain: Jain's index of normalised progress, 1/n to 1 (Jain, Chiu and Hawe 1984).
        min_over_max: Least over greatest normalised progress (Eyerman and Eeckhout 2008).
    """

    jain: float
    min_over_max: float


@dataclass(frozen=True)
class SharedStay:
    """A member's part of the time that is compared.

    Attributes:
        present_s: How long it was there, in seconds.
        slowdown: Its slowdown; None where unknown.
    """

    present_s: float
    slowdown: float | None


@dataclass(frozen=True)
class Comparison:
    """A pack against its members one after the other on the same GPU.

    Attributes:
        serial_s: Time that they would take one after the other; None where unknown.
        gpu_hours_saved: The difference, in hours of a GPU; less than 0 where sharing cost time.
    """

    serial_s: float | None
    gpu_hours_saved: float | None


def compute_slowdown(solo: Value, shared: Value) -> float | None:
    """Solo rate over shared rate; None where one is unknown or nothing moved."""
    if solo is None or shared is None or solo <= 0 or shared <= 0:
        return None
    return solo / shared


def compute_mean_stp(stays: Sequence[SharedStay], shared_s: float) -> float | None:
    """STP over a time in which members came and went: its mean, weighted by time.

    Args:
        stays: Each member's part of that time.
        shared_s: Length of that time in seconds.
    """
    if shared_s <= 0:
        return None
    total = sum_known(
        None if stay.slowdown is None else stay.present_s / stay.slowdown for stay in stays
    )
    return None if total is None else total / shared_s


def compute_antt(slowdowns: Sequence[Value]) -> float | None:
    """ANTT: the mean slowdown."""
    total = sum_known(slowdowns)
    return None if total is None else total / len(slowdowns)


def compute_fairness(slowdowns: Sequence[Value]) -> Fairness | None:
    """Fairness of the normalised progress; None where a slowdown is unknown."""
    progress = [1 / slowdown for slowdown in slowdowns if slowdown is not None]
    if not progress or len(progress) != len(slowdowns):
        return None
    jain = sum(progress) ** 2 / (len(progress) * sum(share * share for share in progress))
    return Fairness(min(1.0, jain), min(progress) / max(progress))


def compute_solo_time_s(
    present_s: float, stepping_s: float, steps: Value, solo_rate: Value
) -> float | None:
    """How long a member's work takes alone.

    Its steps take what they take alone; start, pauses and end are counted as they were.

    Args:
        present_s: How long it was there.
        stepping_s: How much of that it made steps, without pauses.
        steps: Its steps; None where unknown.
        solo_rate: Its solo rate in steps per second; None where unknown.
    """
    if steps is None or solo_rate is None or solo_rate <= 0:
        return None
    return max(0.0, present_s - stepping_s) + steps / solo_rate


def complete_solo_times(stays: Sequence[tuple[float, Value]]) -> list[Value]:
    """The times of members alone; a short one whose own is unknown needs as long as it was there.

    Where that would be more than a small part of all, as where most failed at once, theirs stay
    unknown.

    Args:
        stays: How long each was there, and how long its work takes alone.
    """
    filled = [
        present_s if solo_s is None and present_s < SHORT_S else solo_s
        for present_s, solo_s in stays
    ]
    assumed_s = sum(present_s for present_s, solo_s in stays if solo_s is None)
    total_s = sum_known(filled)
    if total_s is None or assumed_s <= ASSUMED_MOST * total_s:
        return filled
    return [solo_s for _, solo_s in stays]


def compare_with_serial(
    solo_times_s: Sequence[Value], shared_s: float, gpus: int = 1
) -> Comparison:
    """Compare a pack with its members one after the other."""
    serial_s = sum_known(solo_times_s)
    saved = None if serial_s is None else (serial_s - shared_s) * gpus / SECONDS_PER_HOUR
    return Comparison(serial_s, saved)
