"""Energy of members, and of sharing against one after the other.

NVML measures energy for the whole GPU. The split is a model: power of the idle GPU evenly among
those present, the rest by SM activity (as Kepler, sustainable-computing.io, does by its
utilisation). What the model does not explain is no member's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.attribution import AttributedPart, Attribution
from slurm_colloc.metrics.rates import sum_known
from slurm_colloc.metrics.series import Track, Value, Window, compute_percentile
from slurm_colloc.metrics.slowdown import JOULES_PER_KWH

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


@dataclass(frozen=True)
class EnergySaved:
    """What sharing saved.

    Attributes:
        kwh: In kWh, less than 0 where sharing cost energy; None where unknown.
        how: `solo_power` where the power of each member alone is known; `idle_power` where the
            idle GPU's power over the time saved is counted; empty where unknown.
    """

    kwh: float | None
    how: str


def measure_energy(counter: Track | None, power: Track | None, window: Window) -> float | None:
    """Energy of a GPU over a window in joules: its counter's rise, else the integral of power."""
    for value in (
        counter.compute_increase(window) if counter is not None else None,
        power.compute_integral(window) if power is not None else None,
    ):
        if value is not None:
            return value
    return None


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
) -> EnergySaved:
    """What the same work one after the other would have used more.

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
        return EnergySaved((solo_j - shared_j) / JOULES_PER_KWH, "solo_power")
    if idle_power_w is not None and serial_s is not None:
        return EnergySaved(idle_power_w * (serial_s - shared_s) / JOULES_PER_KWH, "idle_power")
    return EnergySaved(None, "")
