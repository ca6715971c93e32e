"""What a plan wins or loses in the queue, as far as the waits of earlier jobs tell; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.plan import PackPlan, Plan
from slurm_colloc.model.queue_waits import WaitEstimate, WaitTable

SAME_GPU_TIME = 0.05
"""Plans whose GPU times differ by no more are as good as each other for the cluster."""


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What a plan comes to with the queue before it.

    Attributes:
        gpu_s: Seconds for which its packs hold GPUs.
        mean_wait_s: Mean over its jobs: median wait of their pack's request, in seconds.
        mean_finish_s: The same of the wait and the time of their pack.
    """

    gpu_s: float
    mean_wait_s: float
    mean_finish_s: float


def estimate_wait(pack: PackPlan, waits: WaitTable) -> WaitEstimate | None:
    """How long a pack waits; None where nothing tells."""
    if pack.request is not None:
        return waits.estimate(pack.request.gpus, pack.request.time_limit_s)
    return waits.estimate(1, pack.members[0].wall_limit_s)


def foresee(plan: Plan, waits: WaitTable) -> Outlook | None:
    """What a plan comes to, by median waits; None where a pack's wait or time is unknown."""
    gpu_s = wait_s = finish_s = 0.0
    jobs = 0
    for pack in plan.packs:
        wait = estimate_wait(pack, waits)
        if wait is None or pack.predicted_finish_s is None:
            return None
        gpu_s += pack.predicted_finish_s
        wait_s += len(pack.members) * wait.median_s
        finish_s += len(pack.members) * (wait.median_s + pack.predicted_finish_s)
        jobs += len(pack.members)
    return Outlook(gpu_s, wait_s / jobs, finish_s / jobs) if jobs else None


def choose_by_queue(plans: Sequence[Plan], waits: WaitTable) -> tuple[Plan, str]:
    """The plan whose jobs end first among those that take as little GPU time as the first.

    Args:
        plans: The plan by its own merits, then others.
        waits: How long requests wait.

    Returns:
        It, and why it is not the first; empty where it is.
    """
    first = foresee(plans[0], waits)
    if first is None:
        return plans[0], ""
    best, best_outlook = plans[0], first
    for plan in plans[1:]:
        outlook = foresee(plan, waits)
        if outlook is None or outlook.gpu_s > first.gpu_s * (1 + SAME_GPU_TIME):
            continue
        if outlook.mean_finish_s < best_outlook.mean_finish_s:
            best, best_outlook = plan, outlook
    if best is plans[0]:
        return best, ""
    return best, (
        f"{len(best.packs)} packs instead of {len(plans[0].packs)}: with the queue as it was "
        f"lately, jobs end after {best_outlook.mean_finish_s / 60:.0f} min on average instead of "
        f"{first.mean_finish_s / 60:.0f} min (of which they wait "
        f"{best_outlook.mean_wait_s / 60:.0f} and {first.mean_wait_s / 60:.0f} min), for "
        f"{best_outlook.gpu_s / 3600:.2f} instead of {first.gpu_s / 3600:.2f} GPU hours"
    )
