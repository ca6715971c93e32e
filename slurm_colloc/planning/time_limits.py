"""How long a pack and its members may take: their wall limits, and what is asked of Slurm; pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from slurm_colloc.model.plan import Capacity, Policy, SharingMode
from slurm_colloc.planning.job_needs import Need, choose_bound

SLOWDOWN_MARGIN = 1.2
"""A member may be slower than predicted by this before its wall limit ends it."""


def compute_wall_limit_s(
    need: Need, degree: int, policy: Policy, slowdown: float | None = None
) -> int | None:
    """A member's wall limit in seconds: its time alone, stretched where it shares.

    Args:
        need: The member's needs.
        degree: Members at the same time.
        policy: The policy; a member's bound is the most by which its time is stretched.
        slowdown: What is predicted for it; None where unknown.
    """
    if need.time_limit_s is None:
        return None
    factor = choose_bound(need, policy) if degree > 1 else 1.0
    # Without either the node may choose another mode than the one that this was predicted for.
    is_certain = policy.share.endswith("!") or policy.mode is SharingMode.TIMESLICE
    if slowdown is not None and is_certain:
        factor = max(1.0, min(factor, slowdown * SLOWDOWN_MARGIN))
    return round(need.time_limit_s * factor)


def compute_makespan_s(
    walls: Sequence[int | None], degree: int, allowed: Sequence[Sequence[int]] = ()
) -> int | None:
    """When the last member would end if each used its whole wall limit; None if one has none.

    Args:
        walls: Their wall limits in seconds, in start order; None for none.
        degree: Members at the same time.
        allowed: Of each member the places, from 0, that it may have; empty for any.
    """
    ends = [0] * degree
    for at, wall in enumerate(walls):
        if wall is None:
            return None
        if allowed:
            place = min(allowed[at], key=ends.__getitem__)
            ends[place] += wall
        else:
            heapq.heapreplace(ends, ends[0] + wall)
    return max(ends)


def describe_bounds(needs: Sequence[Need], policy: Policy) -> str:
    """The slowdowns that members accept, in words: `1.5`, or `1.2 to 2`."""
    bounds = [choose_bound(need, policy) for need in needs]
    low, high = f"{min(bounds):g}", f"{max(bounds):g}"
    return low if low == high else f"{low} to {high}"


def compute_time(
    needs: Sequence[Need],
    walls: Sequence[int | None],
    degree: int,
    capacity: Capacity,
    policy: Policy,
    *,
    allowed: Sequence[Sequence[int]] = (),
) -> tuple[int | None, int | None, str]:
    """The pack's time limit, a cap on each member's wall limit, and a reason where there is one.

    Args:
        needs: What the members need, in start order.
        walls: Their wall limits in seconds; None for none.
        degree: Members at the same time.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        allowed: As `compute_makespan_s` has it.
    """
    span = compute_makespan_s(walls, degree, allowed)
    if span is None:
        return None, None, "no --time was given: Slurm's default limits the whole pack"
    margin_s = policy.start_margin_s + policy.measure_s
    wanted = span + margin_s
    limit = capacity.time_limit_max_s
    longest = max(need.time_limit_s or 0 for need in needs)
    if limit is None or wanted <= limit or longest > limit:
        return wanted, None, ""
    cap = max(1, limit - margin_s)
    reason = (
        f"the pack asks for {limit} s, which is MaxTime here; {wanted} s would allow "
        f"every member its time stretched by {describe_bounds(needs, policy)}"
    )
    if cap < longest:
        reason += f", and a member that asks for {longest} s alone gets {cap} s"
    return limit, cap if len(needs) <= degree else None, reason
