"""What sharing did to speed: slowdown, STP, ANTT, fairness, and the same work one after the other.

Also: energy of members, and of sharing against one after the other; what a member's time went into:
waiting for data, the host, the device.

Definitions of STP and ANTT: Eyerman and Eeckhout, "System-Level Performance Metrics for
Multiprogram Workloads", IEEE Micro 28(3), 2008. A value that is unknown makes every figure that
needs it unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.metrics.presence import AttributedPart, Attribution
from slurm_colloc.metrics.rates import (
    NOTHING_READ,
    WINDOW_LEAST_S,
    Interval,
    Track,
    Value,
    Window,
    compute_percentile,
    join_windows,
    sum_known,
)
from slurm_colloc.model.late_definitions import dataclass

SECONDS_PER_HOUR = 3600.0
SHORT_S = 10.0
"""A member that was there for less has no rate and no weight: STP and ANTT leave it out."""
ASSUMED_MOST = 0.1
"""Of the time of all one after the other: more than so much is never made of assumptions."""
JOULES_PER_KWH = 3.6e6


def compute_slowdown(solo: Value, shared: Value) -> float | None:
    """Solo rate over shared rate; None where one is unknown or nothing moved."""
    if solo is None or shared is None or solo <= 0 or shared <= 0:
        return None
    return solo / shared


def compute_mean_stp(stays: Sequence[tuple[float, Value]], shared_s: float) -> float | None:
    """STP over a time in which members came and went: its mean, weighted by time.

    Args:
        stays: How long of that time each member was there, in seconds, and its slowdown.
        shared_s: Length of that time in seconds.
    """
    if shared_s <= 0:
        return None
    total = sum_known(
        None if slowdown is None else present_s / slowdown for present_s, slowdown in stays
    )
    return None if total is None else total / shared_s


def compute_antt(slowdowns: Sequence[Value]) -> float | None:
    """ANTT: the mean slowdown."""
    total = sum_known(slowdowns)
    return None if total is None else total / len(slowdowns)


def compute_fairness(slowdowns: Sequence[Value]) -> tuple[float, float] | None:
    """How evenly the normalised progress is spread; None where a slowdown is unknown.

    By Jain's index, 1/n to 1 (Jain, Chiu and Hawe 1984), and as the least over the greatest
    (Eyerman and Eeckhout 2008).
    """
    progress = [1 / slowdown for slowdown in slowdowns if slowdown is not None]
    if not progress or len(progress) != len(slowdowns):
        return None
    jain = sum(progress) ** 2 / (len(progress) * sum(share * share for share in progress))
    return min(1.0, jain), min(progress) / max(progress)


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
) -> tuple[Value, Value]:
    """The time that members would take one after the other, and the hours of a GPU that it saves.

    Less than 0 where sharing cost time; both None where a time is unknown.
    """
    serial_s = sum_known(solo_times_s)
    saved = None if serial_s is None else (serial_s - shared_s) * gpus / SECONDS_PER_HOUR
    return serial_s, saved


# ---- Energy of members, and of sharing against one after the other -------------------------------
#
# NVML measures energy for the whole GPU. The split is a model: power of the idle GPU evenly among
# those present, the rest by SM activity (as Kepler, sustainable-computing.io, does by its
# utilisation). What the model does not explain is no member's.

_UNREAD_S = 2.0
"""So short a phase may lie between two readings of SM activity."""


@dataclass(frozen=True)
class EnergyPhase:
    """A time in which no member came or went.

    Attributes:
        length_s: Its length in seconds.
        energy_j: What the GPU used; None where unknown.
        sm_active: The GPU's SM activity, 0 to 1; None where unknown.
        sm_by_member: Each member that was there, with its own; None where unknown.
    """

    length_s: float
    energy_j: float | None
    sm_active: float | None
    sm_by_member: Mapping[int, float | None]


@dataclass(frozen=True)
class EnergySplit:
    """Energy by member.

    Attributes:
        whole_j: Energy of all phases; None where one is unknown.
        parts: By member, in joules; None where unknown.
        rest_j: What belongs to no part; None where the whole is unknown.
    """

    whole_j: float | None
    parts: Mapping[int, AttributedPart | None]
    rest_j: float | None


def measure_energy(counter: Track, power: Track, window: Window) -> float | None:
    """Energy of a GPU over a window in joules: its counter's rise, else the integral of power."""
    rise = counter.compute_increase(window)
    return power.compute_integral(window) if rise is None else rise


def find_idle_power_w(power: Track, before: float) -> float | None:
    """The lowest median of three readings in a row before a moment; None with fewer than three.

    A GPU on which a process has opened a context runs at full clock, and takes half as much again
    (79 W and 123 W on an H200), so a median of all readings would be that of a long start.
    """
    values = power.select([(float("-inf"), before)])
    threes = zip(values, values[1:], values[2:], strict=False)
    return min((compute_percentile(sorted(three), 0.5) for three in threes), default=None)


def split_energy(phases: Sequence[EnergyPhase], idle_power_w: Value) -> EnergySplit:
    """Split energy among members; the parts and the rest make the whole.

    Args:
        phases: The times in order.
        idle_power_w: Power of the idle GPU in watts; None where unknown, and then only who was
            alone has a part.
    """
    parts: dict[int, list[Value]] = {}
    shared: set[int] = set()
    for phase in phases:
        for member in phase.sm_by_member:
            parts.setdefault(member, []).append(_compute_part(phase, member, idle_power_w))
            if len(phase.sm_by_member) > 1:
                shared.add(member)
    found: dict[int, AttributedPart | None] = {}
    for member, values in parts.items():
        total = sum_known(values)
        word = Attribution.MODELLED if member in shared else Attribution.EXACT
        found[member] = None if total is None else AttributedPart(total, word)
    whole_j = sum_known(phase.energy_j for phase in phases)
    rest_j = None
    if whole_j is not None:
        rest_j = whole_j - sum(part.value for part in found.values() if part is not None)
    return EnergySplit(whole_j, found, rest_j)


def _compute_part(phase: EnergyPhase, member: int, idle_power_w: Value) -> float | None:
    if len(phase.sm_by_member) == 1:
        return phase.energy_j
    own = phase.sm_by_member[member]
    if phase.energy_j is None or idle_power_w is None or own is None:
        return None
    if phase.sm_active is None and phase.length_s > _UNREAD_S:
        return None
    # A GPU that sleeps deeper than it did before the first step has no active part.
    idle_j = min(phase.energy_j, idle_power_w * phase.length_s)
    active_j = phase.energy_j - idle_j
    # No member has used more than there was, whatever the models say together.
    modelled = sum(value for value in phase.sm_by_member.values() if value is not None)
    active = max(phase.sm_active or 0.0, modelled)
    share = own / active if active > 0 else 0.0
    return idle_j / len(phase.sm_by_member) + active_j * share


def compute_saving(
    shared_j: Value,
    solo_energies_j: Sequence[Value],
    serial_s: Value,
    shared_s: float,
    idle_power_w: Value,
) -> tuple[Value, str]:
    """What the same work one after the other would have used more, in kWh, and how that is known.

    Less than 0 where sharing cost energy. By `solo_power` where the power of each member alone is
    known, by `idle_power` where that of the idle GPU over the time saved is counted.

    Args:
        shared_j: What the pack used, in joules.
        solo_energies_j: What each member would use alone: its power alone times its solo time.
        serial_s: Time one after the other.
        shared_s: Time of the pack.
        idle_power_w: Power of the idle GPU. Where a member's power alone is unknown, the active
            energy of the same work is taken as the same, so that the idle power over the time
            saved is what was saved.
    """
    solo_j = sum_known(solo_energies_j)
    if solo_j is not None and shared_j is not None:
        return (solo_j - shared_j) / JOULES_PER_KWH, "solo_power"
    if idle_power_w is not None and serial_s is not None:
        return idle_power_w * (serial_s - shared_s) / JOULES_PER_KWH, "idle_power"
    return None, ""


# ---- What a member's time went into: waiting for data, the host, the device ----------------------
#
# Data stalls are those of DS-Analyzer (Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and
# Mitigating Data Stalls in DNN Training", VLDB 2021): time lost over the time of the run that lost
# it. DS-Analyzer tells preparing from fetching by runs with one bottleneck removed; one run shows
# only their sum, as the time that training waited for its loader.
#
# The program's own clock says when it waited, the GPU's when any kernel ran. Kernels are launched
# ahead, so some may run while the program waits for data. How long both happened at once is not
# known: between max(0, data + device - 1) and min(data, device). The least is taken, so that
# data + host + device = 1 + overlap, and `host` and `overlap` are lower bounds.

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
    utilization: Track = NOTHING_READ,
    least_s: float = WINDOW_LEAST_S,
) -> Stall:
    """Split a member's time.

    Args:
        intervals: Its settled intervals.
        slowdown: Its slowdown; below 1, it lost nothing.
        alone: Those in which no other member was on the GPU.
        utilization: NVML's utilization of the GPU, 0 to 1: the part of the time in which any
            kernel ran. SM activity does not measure that: a kernel that fills a tenth of the SMs
            has 0.1, though the GPU does not wait.
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
    alone: Sequence[Interval], utilization: Track
) -> tuple[float | None, str]:
    """The share of the time in which a kernel ran; None where unknown, and why."""
    if all(value is None for value in utilization.values):
        return None, NOT_READ
    values = utilization.select(find_covered(alone))
    if len(values) < READINGS_LEAST:
        return None, SELDOM_READ
    return min(1.0, sum(values) / len(values)), ""


def find_covered(intervals: Sequence[Interval]) -> list[Window]:
    """When utilization was read that covers nothing but some intervals, which are in order."""
    joined = join_windows((interval.begin, interval.end) for interval in intervals)
    shorter = ((begin + UTILIZATION_PERIOD_S, end) for begin, end in joined)
    return [(begin, end) for begin, end in shorter if end > begin]
