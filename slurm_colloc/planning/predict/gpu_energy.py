"""The energy of a GPU while a pack holds it; of numbers or arrays.

A GPU that works at all draws more than an idle one, once, however many members it has
(contention.AT_WORK_W); what their work takes on top is the same however fast it is done. So
sharing saves what the GPU draws by itself in the time that it saves.

Jobs that draw less than that by themselves count with what they draw; beside others the mean over
the members' time alone is taken, as not all of them are there all the time.
"""

from __future__ import annotations

from typing import Any

from slurm_colloc.planning.predict.contention import AT_WORK_W
from slurm_colloc.planning.priced_packs import Subject

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
