"""Why a waiting member of a pack does not start now, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.model.member import WaitKind, WaitReason
from slurm_colloc.model.quantities import format_count, format_elapsed

BEING_MEASURED = "the pack is being measured"

_WORDS: Mapping[WaitKind, str] = {
    WaitKind.HELD: "held by csub hold",
    WaitKind.DEPENDENCY: "Dependency {name}",
    WaitKind.MOVED: "it was submitted again in another pack",
    WaitKind.TIME: "the pack has only {left} left, and it may take {limit}: it is submitted again "
    "once the pack has ended",
    WaitKind.AGAIN: "it starts as soon as its pack has a place for it",
    WaitKind.ALONE: "it starts as soon as it has the GPU to itself",
    WaitKind.PLACE: "{name} is next, and waits for a place with {count} CPUs",
    WaitKind.MEASURING: f"{BEING_MEASURED} with {{members}}",
    WaitKind.MEMORY: "the GPU has no memory left for it: {taken_mb} of {usable_mb} MB are reserved "
    "for {count}, and {need}",
    WaitKind.DOOR: "one at the door goes first: {name}",
    WaitKind.INSTANCE: "its GPU has no free MIG instance with {told}",
    WaitKind.PREPARING: "its GPU is being prepared",
    WaitKind.SIGNALLED: "it was signalled, and Slurm has not shown yet whether its pack goes on",
}

_COMPLETE = frozenset({WaitKind.HELD, WaitKind.MOVED, WaitKind.AGAIN, WaitKind.ALONE})
"""Those whose words say by themselves that the member waits."""


def describe_wait(reason: WaitReason) -> str:
    """The reason as a clause."""
    if reason.kind is WaitKind.PLACES:
        return _describe_places(reason, ())
    need_mb = reason.need_mb
    return _WORDS.get(reason.kind, "{told}").format(
        **vars(reason),
        members=format_count(reason.count, "member"),
        need="what it takes is not known" if need_mb is None else f"it may take {need_mb} MB",
        left=format_elapsed(reason.left_s or 0),
        limit=format_elapsed(reason.limit_s),
    )


def say_why(reason: WaitReason, before: Sequence[str] = ()) -> str:
    """The reason as `csub why` says it.

    Args:
        reason: The reason.
        before: Names of the members that start before it.
    """
    if reason.kind is WaitKind.DEPENDENCY:
        return f"{'held, ' if reason.told else ''}waits for {reason.name} (Dependency)"
    if reason.kind is WaitKind.PLACES:
        return _describe_places(reason, before)
    said = describe_wait(reason)
    return said if reason.kind in _COMPLETE else f"waits: {said}"


def _describe_places(reason: WaitReason, before: Sequence[str]) -> str:
    names = ", ".join(reason.names)
    which = f"one of {names}" if len(reason.names) > 1 else names
    at_most = "" if reason.left_s is None else f" (at most {format_elapsed(reason.left_s)} left)"
    after = f", after {', '.join(before)}" if before else ""
    limit = f"Degree {reason.count}" if reason.count else "its GPU takes one member at a time"
    return f"starts when {which} ends{at_most}{after} ({limit})"


def say_no_more(degree: int) -> str:
    """`no more than 3 run at once`."""
    return f"no more than {say_at_once(degree)}"


def say_at_once(degree: int) -> str:
    """`3 run at once`."""
    return f"{degree} {'runs' if degree == 1 else 'run'} at once"
