"""What two submissions must have in common whose jobs may run in one pack; pure.

A job that joins a pack as it is submitted and a waiting member that another pack takes over are
asked the same here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_colloc.model.late_definitions import late_pattern, replace
from slurm_colloc.model.plan import Policy

_COMMENT = "comment"
"""Each member keeps its own: workflow managers write there which rule a job is."""

_WITH_A_DATE = late_pattern(r"(?a)\d{4}-\d\d-\d\d.*")


class Asked(Protocol):
    """What asked Slurm for an allocation: a job, or a pack."""

    @property
    def group(self) -> tuple[tuple[str, str], ...]:
        """The options that all jobs in it have, with their values."""

    @property
    def gpu_type(self) -> str | None:
        """The GPU type; None for any."""


def find_difference(own: Asked, other: Asked) -> str:
    """Say what another submission asked Slurm for that this one did not; empty where they agree."""
    ours, theirs = dict(own.group), dict(other.group)
    for name in sorted((ours.keys() | theirs.keys()) - {_COMMENT}):
        if ours.get(name) != theirs.get(name):
            return _tell_option(name, ours.get(name), theirs.get(name))
    if own.gpu_type != other.gpu_type:
        return f"its GPU type is {other.gpu_type or 'any'}, not {own.gpu_type or 'any'}"
    return ""


def _tell_option(name: str, ours: str | None, theirs: str | None) -> str:
    if theirs is None:
        return f"it has no --{name}"
    told = f"it has --{name}={theirs}" if theirs else f"it has --{name}"
    return told if ours is None else f"{told}, not {ours}"


def compute_own_meaning(group: Sequence[tuple[str, str]]) -> str:
    """Why options that look the same mean something else to another call; empty where none does."""
    for name, value in group:
        if name in ("begin", "deadline") and not _WITH_A_DATE.fullmatch(value):
            return f"its --{name}={value} would mean a different time for another job"
        if name == "dependency" and "singleton" in value:
            return "it was submitted with --dependency=singleton"
    return ""


def compute_reason_to_stay(policy: Policy | None, group: Sequence[tuple[str, str]]) -> str:
    """Why members of a submission and those of another do not move; empty where they may.

    Args:
        policy: The submission's; None where no job may join its packs.
        group: The options that all its jobs have.
    """
    if policy is None:
        return "no job may join it"
    if policy.join != "auto":
        return f"its --join is {policy.join}"
    if policy.running_limit is not None:
        return f"it runs {policy.running_limit} of its jobs at a time (--array=...%)"
    return compute_own_meaning(group)


def compute_contradiction(pack: Policy, call: Policy) -> str:
    """Say what the users of a pack and of a joiner want differently; empty where they agree."""
    if pack.share != call.share:
        return f"its --share is {pack.share}, not {call.share}"
    if pack.goal is not call.goal:
        return f"its --goal is {pack.goal}, not {call.goal}"
    return ""


def compare_policies(own: Policy, other: Policy) -> str:
    """Say in what the wishes of two submissions differ; empty where they share in the same way."""
    contradiction = compute_contradiction(other, own)
    if contradiction:
        return contradiction
    if (own.degree_is_asked, own.degree) != (other.degree_is_asked, other.degree):
        return f"its degree is {other.degree}, not {own.degree}"
    if _leave_out_own(own) != _leave_out_own(other):
        return "its limits on sharing differ"
    return ""


def _leave_out_own(policy: Policy) -> Policy:
    """Without what a pack asks for itself (how long it is measured, what watches it, its size).

    Nor the bound, which each member brings with it.
    """
    return replace(
        policy,
        measure_s=0,
        monitor_mb=0,
        is_small_for_queue=False,
        degree_max=0,
        slowdown_bound=1.0,
    )
