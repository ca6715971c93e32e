"""How long a pack lasts: when a member ends, those left are rated anew.

Those left keep their thread limits. They are taken to go as fast as they would where the same way
of sharing were chosen for them alone, but no faster than its own limit lets each go alone. Of five
members or fewer each end counts; in a larger pack those left are rated anew when a fifth has ended,
which takes their slowdown for a little higher than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurm_colloc.planning.predict.contention import AT_WORK_W
from slurm_colloc.planning.priced_packs import Subject

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
# Jobs that draw less than that by themselves count with what they draw; beside others the mean over
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
