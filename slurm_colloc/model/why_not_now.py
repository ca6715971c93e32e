"""Why a waiting member of a pack does not start now; pure.

Also: why a member waits, as its runner has written it down, in words.

The runner starts the members that nothing is said of, and `csub why` prints what is said of the
others. Each gathers the facts from what it has: the runner from its memory, csub from the files.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import WaitKind, WaitReason
from slurm_colloc.model.quantities import format_count, format_elapsed

# ---- Why a member waits, in words ----------------------------------------------------------------

BEING_MEASURED = "the pack is being measured"


OF_GPU = frozenset(
    {
        *(WaitKind.MEASURING, WaitKind.DEGREE, WaitKind.MEMORY, WaitKind.DOOR, WaitKind.INSTANCE),
    }
)
"""Why none starts although there is a place: the GPU has no room for the next one."""


_WORDS: Mapping[WaitKind, str] = {
    WaitKind.DEPENDENCY: "Dependency {name}",
    WaitKind.TIME: "the pack has only {left} left, and it may take {limit}: it is submitted again "
    "once the pack has ended",
    WaitKind.PLACE: "{name} is next, and waits for a place with {count} CPUs",
    WaitKind.MEASURING: f"{BEING_MEASURED} with {{members}}",
    WaitKind.MEMORY: "the GPU has no memory left for it: {taken_mb} of {usable_mb} MB are reserved "
    "for {count}, and {need}",
    WaitKind.DOOR: "one at the door goes first: {name}",
    WaitKind.INSTANCE: "its GPU has no free MIG instance with {told}",
    WaitKind.PREPARING: "its GPU is being prepared",
    WaitKind.SIGNALLED: "it was signalled, and Slurm has not shown yet whether its pack goes on",
}


def describe_wait(reason: WaitReason) -> str:
    """The reason as a clause."""
    need_mb = reason.need_mb
    return _WORDS.get(reason.kind, "{told}").format(
        **vars(reason),
        members=format_count(reason.count, "member"),
        need="what it takes is not known" if need_mb is None else f"it may take {need_mb} MB",
        left=format_elapsed(reason.left_s),
        limit=format_elapsed(reason.limit_s),
    )


def say_no_more(degree: int) -> str:
    """`no more than 3 run at once`."""
    return f"no more than {say_at_once(degree)}"


def say_at_once(degree: int) -> str:
    """`3 run at once`."""
    return f"{degree} {'runs' if degree == 1 else 'run'} at once"


# ---- Why a waiting member of a pack does not start now; pure -------------------------------------


@dataclass(frozen=True)
class RunningMember:
    """A member that runs.

    Attributes:
        name: Its name, `4711/3`.
        alone: It has the GPU to itself.
        left_s: What is left of its wall limit in seconds; None for no limit.
    """

    name: str
    alone: bool = False
    left_s: int | None = None


@dataclass(frozen=True)
class StartFacts:
    """What decides whether a waiting member starts now; by default nothing is in its way.

    Attributes:
        is_held: It is held by itself.
        dependency: What it waits for, `afterok:4711/3`; empty for nothing.
        is_moved: It was submitted again in another pack.
        too_late: Why too little of the pack's time is left for it; None where that is not so.
        alone: It is to have the GPU to itself.
        has_run: It ran before, and is to start again.
        before: Names of the members that start before it.
        degree: Places of the pack.
        takes_one: Only one member can use the GPU at a time.
        running: The members that run.
        pack_waits: Why no member of the pack starts at present; None where that is not so.
        no_place: Why no free place is large enough; None where one is.
        degree_reason: Why as many run as may, although there is a place; else None.
        memory_reason: Why there is no GPU memory for it; else None. Others may find some.
    """

    is_held: bool = False
    dependency: str = ""
    is_moved: bool = False
    too_late: WaitReason | None = None
    alone: bool = False
    has_run: bool = False
    before: tuple[str, ...] = ()
    degree: int = 1
    takes_one: bool = False
    running: tuple[RunningMember, ...] = ()
    pack_waits: WaitReason | None = None
    no_place: WaitReason | None = None
    degree_reason: WaitReason | None = None
    memory_reason: WaitReason | None = None

    @property
    def has_room(self) -> bool:
        """A place is free for it."""
        if self.takes_one or self.alone:
            return not self.running
        has_place = not self.running or len(self.running) < self.degree
        return has_place and not any(member.alone for member in self.running)

    @property
    def obstacle(self) -> WaitReason | None:
        """What keeps it waiting although it has room; None for nothing."""
        return self.pack_waits or self.degree_reason or self.room_reason

    @property
    def room_reason(self) -> WaitReason | None:
        """Why there is no room for this one, where another may find some; None for nothing."""
        return self.no_place or self.memory_reason


def why_not_now(facts: StartFacts) -> str | None:
    """Why a waiting member does not start now, as a clause; None where it may.

    What is its own comes first, and lets those behind it pass; for the rest all wait.
    """
    if facts.is_held and not facts.dependency:
        return "held by csub hold"
    if facts.dependency:
        return f"{'held, ' * facts.is_held}waits for {facts.dependency} (Dependency)"
    if facts.is_moved:
        return "it was submitted again in another pack"
    if facts.too_late:
        return f"waits: {describe_wait(facts.too_late)}"
    if not facts.has_room:
        return _describe_room(facts)
    return f"waits: {describe_wait(facts.obstacle)}" if facts.obstacle else None


def _describe_room(facts: StartFacts) -> str:
    if facts.alone:
        return "it starts as soon as it has the GPU to itself"
    if facts.has_run:
        return "it starts as soon as its pack has a place for it"
    names = ", ".join(member.name for member in facts.running)
    which = f"one of {names}" if len(facts.running) > 1 else names
    left = [member.left_s for member in facts.running if member.left_s is not None]
    at_most = f" (at most {format_elapsed(max(0, min(left)))} left)" if left else ""
    after = f", after {', '.join(facts.before)}" if facts.before else ""
    limit = "its GPU takes one member at a time" if facts.takes_one else f"Degree {facts.degree}"
    return f"starts when {which} ends{at_most}{after} ({limit})"
