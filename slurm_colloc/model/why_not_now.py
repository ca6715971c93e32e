"""Why a waiting member of a pack does not start now; pure.

Also: in which words a runner says why no more members run, and how those words are recognised.

The runner starts the members that nothing is said of, and `csub why` prints what is said of the
others. Each gathers the facts from what it has: the runner from its memory, csub from the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_colloc.model.quantities import format_elapsed

# ---- In which words a runner says why no more members run, and how those words are recognised ----

NO_MORE = "no more than "
BEING_MEASURED = "the pack is being measured"
NO_MEMORY = "the GPU has no memory left for it: "
DOOR_FIRST = "one at the door goes first: "
TOO_LITTLE_TIME = "the pack has only "

_AT_ONCE = re.compile(r"\d+ runs? at once")


def say_no_more(degree: int) -> str:
    """`no more than 3 run at once`."""
    return f"{NO_MORE}{say_at_once(degree)}"


def say_at_once(degree: int) -> str:
    """`3 run at once`."""
    return f"{degree} {'runs' if degree == 1 else 'run'} at once"


def is_degree_reason(text: str) -> bool:
    """Whether a runner has written how many may run at once, and not something else."""
    begins = (BEING_MEASURED, NO_MORE, NO_MEMORY, DOOR_FIRST)
    return text.startswith(begins) or _AT_ONCE.match(text) is not None


def is_time_reason(text: str) -> bool:
    """Whether that a member waits was put down to the time that is left of its pack."""
    return text.startswith(TOO_LITTLE_TIME)


# ---- Why a waiting member of a pack does not start now; pure -------------------------------------

PREPARING_GPU = "its GPU is being prepared"
CHANGING_INSTANCES = "the MIG instances of its GPU are being changed"
NO_INSTANCE = "waits for a MIG instance"
"""What a runner writes down of a member that fits none of the free instances."""
ONE_AT_A_TIME = "one member at a time"
"""What the setup says where the GPU takes no second process."""

_NEXT_WAITS = "is next, and waits for a place with "
_DEPENDENCY = "Dependency "


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
        too_late: Why too little of the pack's time is left for it; empty where that is not so.
        alone: It is to have the GPU to itself.
        has_run: It ran before, and is to start again.
        before: Names of the members that start before it.
        degree: Places of the pack.
        takes_one: Only one member can use the GPU at a time.
        running: The members that run.
        pack_waits: Why no member of the pack starts at present; empty where that is not so.
        no_place: Why no free place is large enough; empty where one is.
        degree_reason: Why as many run as may, although there is a place; else empty.
        memory_reason: Why there is no GPU memory for it; else empty. Others may find some.
    """

    is_held: bool = False
    dependency: str = ""
    is_moved: bool = False
    too_late: str = ""
    alone: bool = False
    has_run: bool = False
    before: tuple[str, ...] = ()
    degree: int = 1
    takes_one: bool = False
    running: tuple[RunningMember, ...] = ()
    pack_waits: str = ""
    no_place: str = ""
    degree_reason: str = ""
    memory_reason: str = ""

    @property
    def has_room(self) -> bool:
        """A place is free for it."""
        if self.takes_one or self.alone:
            return not self.running
        has_place = not self.running or len(self.running) < self.degree
        return has_place and not any(member.alone for member in self.running)

    @property
    def obstacle(self) -> str:
        """What keeps it waiting although it has room; empty for nothing."""
        return self.pack_waits or self.degree_reason or self.room_reason

    @property
    def room_reason(self) -> str:
        """Why there is no room for this one, where another may find some; empty for nothing."""
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
        return f"waits: {facts.too_late}"
    if not facts.has_room:
        return _describe_room(facts)
    return f"waits: {facts.obstacle}" if facts.obstacle else None


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
    limit = f"its GPU takes {ONE_AT_A_TIME}" if facts.takes_one else f"Degree {facts.degree}"
    return f"starts when {which} ends{at_most}{after} ({limit})"


def describe_larger_place(name: str, cpus: int) -> str:
    """Why none starts although places are free: they are too small for the next."""
    return f"{name} {_NEXT_WAITS}{cpus} CPUs"


def is_obstacle(text: str) -> bool:
    """Whether a runner has written down, for all its waiting members, why none of them starts."""
    return _NEXT_WAITS in text


def is_waiting_reason(text: str) -> bool:
    """Whether a runner has written down why a member waits, and not why it starts again."""
    is_of_instances = text.startswith(NO_INSTANCE)
    return is_of_instances or is_obstacle(text) or is_degree_reason(text) or is_time_reason(text)


def read_dependency(reason: str) -> str:
    """`afterok:4711/3`, from why a member waits; empty where that is no dependency."""
    if not reason.startswith(_DEPENDENCY):
        return ""
    return reason.removeprefix(_DEPENDENCY).removeprefix("on ")
