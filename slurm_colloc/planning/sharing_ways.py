"""The ways of sharing that are tried for a pack; on plain numbers, or on arrays of many packs.

Also: how long a pack lasts: when a member ends, those left are rated anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import Calibration, Load, ModeModel
from slurm_colloc.planning.contention import AT_WORK_W, predict_slowdowns
from slurm_colloc.planning.hard_limits import MIG_EIGHTHS, MIG_MEMBERS_MAX, MIG_SLICES, Subject

SETUP_S = {
    SharingMode.EXCLUSIVE: 0.0,
    SharingMode.TIMESLICE: 0.0,
    SharingMode.MPS: 2.0,
    SharingMode.MIG: 10.0,
}
"""Seconds for which the GPU is held on top: to start MPS, to make MIG instances."""

_PERCENT = 100
_SHARE_MIN = 10
_UNITS = 1_000_000


@dataclass(frozen=True)
class Arithmetic:
    """What differs between plain numbers and arrays.

    Attributes:
        minimum: The smaller of two, elementwise.
        maximum: The larger of two, elementwise.
        pick: Elements of a table by index.
    """

    minimum: Callable[[Any, Any], Any]
    maximum: Callable[[Any, Any], Any]
    pick: Callable[[Sequence[float], Any], Any]


PLAIN = Arithmetic(min, max, lambda table, index: table[index])


@dataclass(frozen=True)
class Family:
    """One way of sharing, for packs of any size.

    Attributes:
        mode: The sharing mode.
        model: Its model of contention.
        total: Under MPS: what the members' thread limits add up to, in percent; 0 for no limits.
        by_activity: The limits are in proportion to the members' SM activities, not equal.
    """

    mode: SharingMode
    model: ModeModel
    total: int = 0
    by_activity: bool = False


def build_families(
    calibration: Calibration | None, modes: Sequence[SharingMode]
) -> tuple[Family, ...]:
    """The ways of sharing of these modes, as far as there is a model of them.

    MIG needs no fitted model: what its instances share is little (science: model M3), and over
    PCIe they copy at the same time as members under MPS do.
    """
    families: list[Family] = []
    models = {} if calibration is None else calibration.modes
    for mode in sorted(set(modes)):
        model = models.get(mode.value)
        if mode is SharingMode.TIMESLICE and model is not None:
            families.append(Family(mode, model))
        if mode is SharingMode.MPS and model is not None:
            families += [Family(mode, model, total) for total in (200, 0, 100, 300)]
            families.append(Family(mode, model, 200, by_activity=True))
        if mode is SharingMode.MIG and calibration is not None:
            mps = models.get(SharingMode.MPS.value, ModeModel())
            families.append(Family(mode, model or ModeModel(copying=mps.copying)))
    return tuple(families)


def is_tried(family: Family, count: int) -> bool:
    """Whether a family says something of its own for packs of this size."""
    if family.mode is SharingMode.MIG:
        return count <= MIG_MEMBERS_MAX
    # Limits of all threads are none.
    return not family.total or family.by_activity or family.total // count < _PERCENT


def count_activity(load: Load) -> int:
    """SM activity in whole millionths, at least one, so that sums of it are exact."""
    return max(1, round(load.sm * _UNITS))


def compute_percentages(
    family: Family, activities: Sequence[Any], count: Any, total: Any, arithmetic: Arithmetic
) -> list[Any]:
    """The limit of each member in whole percent of the GPU's threads or SMs.

    Args:
        family: The way of sharing.
        activities: Of each member, from `count_activity`.
        count: How many members run.
        total: Sum of the activities of those.
        arithmetic: For numbers or arrays.
    """
    if family.mode is SharingMode.MIG:
        slices = arithmetic.pick(MIG_SLICES, arithmetic.minimum(count, MIG_MEMBERS_MAX))
        return [slices * _PERCENT // 7] * len(activities)
    if not family.total:
        return [_PERCENT + 0 * count] * len(activities)
    if family.by_activity:
        return [
            arithmetic.minimum(
                arithmetic.maximum(family.total * activity // total, _SHARE_MIN), _PERCENT
            )
            for activity in activities
        ]
    equal = arithmetic.minimum(arithmetic.maximum(family.total // count, 1), _PERCENT)
    return [equal] * len(activities)


def _compute_stretch(percent: int) -> float:
    """1/e of an instance: e is the harmonic mean of its share of SMs and of memory."""
    slices = max(1, min(7, round(percent * 7 / _PERCENT)))
    eighths = MIG_EIGHTHS.get(slices, slices + 1)
    return (7 / slices + 8 / eighths) / 2


_STRETCHES = tuple(_compute_stretch(percent) for percent in range(_PERCENT + 1))


def predict_in(
    family: Family,
    loads: Sequence[Load],
    percentages: Sequence[Any],
    arithmetic: Arithmetic,
    *,
    weights: Sequence[Any] | None = None,
    cores: Any = None,
    power_room_w: float | None = None,
    larger: Callable[[Any, Any], Any] = max,
) -> list[Any]:
    """Each member's slowdown under these limits; see planning.contention.

    MIG instances have SMs and DRAM of their own, and a member on one gets slower as
    `1 - B + B/e`, with B the larger of its SM and DRAM activity; only PCIe, host and power are
    common (science.md, model M3). What earlier packs showed them to do to each other was without
    walls: it is no part of it.
    """
    if family.mode is not SharingMode.MIG:
        limits = [percent / _PERCENT for percent in percentages]
        return predict_slowdowns(
            loads,
            limits,
            family.model,
            weights=weights,
            cores=cores,
            power_room_w=power_room_w,
            maximum=arithmetic.maximum,
            larger=larger,
        )
    outside = [
        dataclasses.replace(
            load, engine=0.0, sm=0.0, dram=0.0, tensor=0.0, sensitivity=0.0, pressure=0.0
        )
        for load in loads
    ]
    common = predict_slowdowns(
        outside,
        [1.0 + 0.0 * percent for percent in percentages],
        family.model,
        weights=weights,
        cores=cores,
        power_room_w=power_room_w,
        maximum=arithmetic.maximum,
        larger=larger,
    )
    slowdowns = []
    for load, percent, slowdown in zip(loads, percentages, common, strict=True):
        bound = arithmetic.maximum(load.sm, load.dram)
        stretch = arithmetic.pick(_STRETCHES, percent)
        slowdowns.append(slowdown * (1.0 - bound + bound * stretch))
    return slowdowns


# ---- How long a pack lasts: when a member ends, those left are rated anew ------------------------
#
# Those left keep their thread limits. They are taken to go as fast as they would where the same way
# of sharing were chosen for them alone, but no faster than its own limit lets each go alone. Of
# five members or fewer each end counts; in a larger pack those left are rated anew when a fifth has
# ended, which takes their slowdown for a little higher than it is.

TIE = 1e-6
"""Members whose ends are closer than this, relatively, end together."""

KEPT_SHARE = (4, 5)
"""Where no more than this share of the members is left of those that were rated, they are rated
anew."""


def compute_ends_s(
    run_s: Sequence[float],
    floors: Sequence[float],
    rate: Callable[[tuple[int, ...]], Sequence[float]],
) -> list[float]:
    """When each member of a pack ends.

    Args:
        run_s: Seconds that each takes alone.
        floors: Slowdown of each by its own limit, without neighbours.
        rate: The slowdowns of those that still run, by their positions, in the same order.

    Returns:
        Seconds from the pack's start.
    """
    left = list(run_s)
    ends = [0.0] * len(left)
    running = tuple(range(len(left)))
    slowdowns: dict[int, float] = {}
    rated = 0
    clock = 0.0
    while running:
        if not rated or len(running) * KEPT_SHARE[1] <= rated * KEPT_SHARE[0]:
            rated = len(running)
            slowdowns = {
                i: max(slowdown, floors[i])
                for i, slowdown in zip(running, rate(running), strict=True)
            }
        step = min(left[i] * slowdowns[i] for i in running)
        clock += step
        ended = {i for i in running if left[i] * slowdowns[i] <= step * (1 + TIE)}
        for i in running:
            left[i] = max(0.0, left[i] - step / slowdowns[i])
            if i in ended:
                ends[i] = clock
        running = tuple(i for i in running if i not in ended)
    return ends


# The energy of a GPU while a pack holds it; of numbers or arrays.
#
# A GPU that works at all draws more than an idle one, once, however many members it has
# (contention.AT_WORK_W); what their work takes on top is the same however fast it is done. So
# sharing saves what the GPU draws by itself in the time that it saves.
#
# Jobs that draw less than that by themselves count with what they draw; with others the mean over
# the members' time alone is taken, as not all of them are there all the time.

TINY_S = 1e-9
"""So that nothing is divided by no time at all."""


def compute_base_j(subject: Subject) -> float:
    """Energy above idle that a job alone takes because its GPU works at all, in joules."""
    return min(AT_WORK_W, subject.load.power_w) * subject.run_s if subject.load else 0.0


def compute_work_j(subject: Subject) -> float:
    """Energy on top of that which a job's work takes, in joules."""
    return max(0.0, subject.load.power_w - AT_WORK_W) * subject.run_s if subject.load else 0.0


def compute_energy_j(
    idle_power_w: float | None, held_s: Any, working_share: Any, base_j: Any, work_j: Any
) -> Any:
    """Energy of a pack in joules; None where the idle power is unknown.

    Args:
        idle_power_w: Power of the idle GPU.
        held_s: Seconds for which the pack holds it.
        working_share: How long the pack works over how long its members would one after the other.
        base_j: Sum of the members' `compute_base_j`.
        work_j: Sum of their `compute_work_j`.
    """
    if idle_power_w is None:
        return None
    return idle_power_w * held_s + base_j * working_share + work_j
