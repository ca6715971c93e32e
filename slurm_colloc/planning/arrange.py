"""What a runner does next with its members, by all that it knows at one moment; pure.

`runtime.look` gathers a `View`, `arrange` gives one order for it, and the runner carries that out
and looks again, until there is none. What forbids a start is a row of CONSTRAINTS: the first that
answers is the reason that a member waits. The runner asks this list for its own members and for one
that might come from another pack; `csub why` asks it of what is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.model.member import OF_GPU, Stage, WaitKind, WaitReason
from slurm_colloc.model.why_not_now import say_no_more
from slurm_colloc.planning.hard_limits import FreeMemory, count_starts
from slurm_colloc.planning.known_degree import KnownDegree

PASSES_MOST = 8
"""So many members may start before the first one while there is no room for that one: then what
becomes free is kept for it."""


# ---- What is known at one moment -----------------------------------------------------------------


@dataclass(frozen=True)
class TurnFacts:
    """What counts of a member in a pack whose members take turns on the GPU's memory.

    Attributes:
        since: When its GPU memory came to where it is (monotonic clock).
        lasts_s: How long its turn is.
        may_end: Its turn may end: its GPU memory can be moved away.
        is_stuck: Its GPU memory could not be brought back, for there was no room.
    """

    since: float = 0.0
    lasts_s: float = 0.0
    may_end: bool = False
    is_stuck: bool = False


@dataclass(frozen=True)
class MemberFacts:
    """What counts of one member; by default nothing is in its way.

    Attributes:
        number: Its number in the pack.
        name: Its name, `4711/3`.
        stage: Where it stands.
        is_ending: It was told to end.
        queue: How many are before it at the door.
        kind: Members of one kind are measured as one; empty where it is not known what it is like.
        gpus: GPUs that it uses.
        is_held: It is held by itself.
        dependency: What it waits for, `afterok:4711/3`; empty for nothing.
        is_moved: It was submitted again in another pack.
        too_late: Why too little of the pack's time is left for it; None where that is not so.
        misfit: Why no MIG instance is enough for it, however many are free; empty where one is.
        alone: It has, or is to have, the GPU to itself.
        has_run: It ran before, and is to start again.
        left_s: What is left of its wall limit in seconds; None for no limit.
        no_place: Why no free place is large enough; None where one is.
        instance: Why no MIG instance is free for it; None where one is.
        waits_for_taken: Another member has an instance that is enough for it.
        need_mb: GPU memory that it needs on each of its GPUs; None where that is not known.
        reserved_mb: GPU memory that counts as its on each of `on_gpus`, once it runs.
        on_gpus: The GPUs that it runs on, by UUID.
        known: How many run at once by what earlier packs measured, with it among them.
        must_go_on: It would have too little of the pack's time left if it waited longer.
        may_load: It can be started up to its first use of the GPU.
        turn: What counts where members take turns.
    """

    number: int = 0
    name: str = ""
    stage: Stage = Stage.WAITING
    is_ending: bool = False
    queue: int = 0
    kind: str = ""
    gpus: int = 1
    is_held: bool = False
    dependency: str = ""
    is_moved: bool = False
    too_late: WaitReason | None = None
    misfit: str = ""
    alone: bool = False
    has_run: bool = False
    left_s: int | None = None
    no_place: WaitReason | None = None
    instance: WaitReason | None = None
    waits_for_taken: bool = False
    need_mb: int | None = None
    reserved_mb: int = 0
    on_gpus: tuple[str, ...] = ()
    known: KnownDegree | None = None
    must_go_on: bool = False
    may_load: bool = False
    turn: TurnFacts = TurnFacts()


@dataclass(frozen=True)
class DegreeFacts:
    """What was measured and decided of how many run at once.

    Attributes:
        degree: As many run.
        reason: Why, in words; empty where that is not known.
        is_decided: A measurement, or an earlier pack's, has decided it.
        is_measuring: Members are paused for a measurement.
        kinds: The kinds that the last measurement was of; none before it.
        is_old: It was so long ago that others may be tried.
        planned: As many run where nothing can be measured; None where something can.
        known: How many of those that run do so by what earlier packs measured; None where unknown.
        bounds: It bounds who starts: several may run, and they do not take turns.
    """

    degree: int = 1
    reason: str = ""
    is_decided: bool = False
    is_measuring: bool = False
    kinds: frozenset[str] = frozenset()
    is_old: bool = False
    planned: int | None = None
    known: KnownDegree | None = None
    bounds: bool = True


@dataclass(frozen=True)
class MemoryFacts:
    """GPU memory that members may have.

    Attributes:
        usable_mb: What members may take together of one GPU.
        gpus: The pack's GPUs by UUID; one without a name where they are not known.
        enforces: Members are held to their parts.
        counts: It bounds who runs: members are held to it, or it is seen what they take.
    """

    usable_mb: int
    gpus: tuple[str, ...] = ("",)
    enforces: bool = True
    counts: bool = True


@dataclass(frozen=True)
class View:
    """A pack at one moment.

    Attributes:
        places: Members that can be there at the same time.
        takes_one: Only one member can use the GPU at a time.
        has_instances: Each member has a MIG instance of its own.
        pack_waits: Why no member starts at present; None where that is not so.
        present: The members that have a place.
        waiting: Those that wait, the next one first.
        passed: How many have started before a member for which there was no room, by its number.
        degree: How many run at once.
        memory: GPU memory; None where it is not known how much there is.
    """

    places: int = 1
    takes_one: bool = False
    has_instances: bool = False
    pack_waits: WaitReason | None = None
    present: tuple[MemberFacts, ...] = ()
    waiting: tuple[MemberFacts, ...] = ()
    passed: Mapping[int, int] = field(default_factory=dict)
    degree: DegreeFacts = DegreeFacts(bounds=False)
    memory: MemoryFacts | None = None

    @property
    def running(self) -> list[MemberFacts]:
        """Members that use the GPU, or are paused on it."""
        return [member for member in self.present if member.stage is not Stage.LOADING]

    @property
    def loading(self) -> list[MemberFacts]:
        """Members at the door, the next one first."""
        loading = [m for m in self.present if m.stage is Stage.LOADING and not m.is_ending]
        return sorted(loading, key=lambda member: member.queue)

    @property
    def has_parked(self) -> bool:
        """Members are paused until there is room for them."""
        return any(member.stage is Stage.PARKED for member in self.present)

    def compute_free(self) -> FreeMemory | None:
        """GPU memory that is reserved for none; None where it is not known."""
        if self.memory is None:
            return None
        gpus = self.memory.gpus
        free_mb, count = dict.fromkeys(gpus, self.memory.usable_mb), dict.fromkeys(gpus, 0)
        for member in self.running:
            for gpu in [gpu for gpu in gpus if gpu in member.on_gpus] or gpus:
                free_mb[gpu] -= 0 if member.stage is Stage.AWAY else member.reserved_mb
                count[gpu] += 1
        return FreeMemory(self.memory.usable_mb, free_mb, count, self.memory.enforces)


# ---- What forbids a start: each says why, or None where it forbids nothing -----------------------

Constraint = Callable[[View, MemberFacts], WaitReason | None]


def _hold(_: View, member: MemberFacts) -> WaitReason | None:
    is_held = member.is_held and not member.dependency
    return WaitReason(WaitKind.HELD) if is_held else None


def _dependency(_: View, member: MemberFacts) -> WaitReason | None:
    if not member.dependency:
        return None
    told = "held" if member.is_held else ""
    return WaitReason(WaitKind.DEPENDENCY, member.dependency, told)


def _moved(_: View, member: MemberFacts) -> WaitReason | None:
    return WaitReason(WaitKind.MOVED) if member.is_moved else None


def _time(_: View, member: MemberFacts) -> WaitReason | None:
    return member.too_late


def _misfit(_: View, member: MemberFacts) -> WaitReason | None:
    return WaitReason(WaitKind.INSTANCE, told=member.misfit) if member.misfit else None


def _room(view: View, member: MemberFacts) -> WaitReason | None:
    """All places are taken, or it or another is to have the GPU to itself."""
    present = view.present
    has_place = not present or len(present) < view.places
    if view.takes_one or member.alone:
        has_place = not present
    if has_place and not any(other.alone for other in present):
        return None
    if member.alone:
        return WaitReason(WaitKind.ALONE)
    if member.has_run:
        return WaitReason(WaitKind.AGAIN)
    left = [other.left_s for other in present if other.left_s is not None]
    return WaitReason(
        WaitKind.PLACES,
        names=tuple(other.name for other in present),
        count=0 if view.takes_one else view.places,
        left_s=max(0, min(left)) if left else None,
    )


def _pack(view: View, _: MemberFacts) -> WaitReason | None:
    return view.pack_waits


def _cpus(_: View, member: MemberFacts) -> WaitReason | None:
    return member.no_place


def _instance(_: View, member: MemberFacts) -> WaitReason | None:
    return member.instance


def _degree(view: View, member: MemberFacts) -> WaitReason | None:
    """As many run as may, or they are just being measured."""
    degree, running = view.degree, view.running
    if not degree.bounds or not running or view.has_instances:
        return None
    if degree.is_measuring:
        return WaitReason(WaitKind.MEASURING, count=len(running))
    known = None if degree.kinds else member.known
    if known is not None and not known.is_open and len(running) >= known.degree:
        told = f"{say_no_more(known.degree)}: {known.describe()}"
        return WaitReason(WaitKind.DEGREE, told=told)
    if (view.has_parked or _is_full(view, degree, member)) and not member.must_go_on:
        return WaitReason(WaitKind.DEGREE, told=degree.reason or say_no_more(degree.degree))
    return None


def _is_full(view: View, degree: DegreeFacts, member: MemberFacts) -> bool:
    """Whether no more may run by the last measurement, which tells of such members."""
    running = view.running
    if not degree.is_decided or len(running) < degree.degree:
        return False
    # One alone is never measured: with one more it is.
    is_alone = degree.is_old and len(running) == 1
    return list_kinds([*running, member]) <= degree.kinds and not is_alone


def _door(view: View, member: MemberFacts) -> WaitReason | None:
    if view.has_instances or member.stage is Stage.LOADING or not view.loading:
        return None
    return WaitReason(WaitKind.DOOR, view.loading[0].name)


def _memory(view: View, member: MemberFacts) -> WaitReason | None:
    free = view.compute_free()
    if free is None or not view.running or not bounds_memory(view):
        return None
    need_mb = member.need_mb
    if free.choose_part_mb(need_mb, member.gpus) is not None:
        return None
    gpu = min(free.choose_gpus(member.gpus), key=free.free_mb.__getitem__)
    return WaitReason(
        WaitKind.MEMORY,
        count=free.members[gpu],
        taken_mb=free.usable_mb - free.free_mb[gpu],
        usable_mb=free.usable_mb,
        need_mb=need_mb,
    )


def bounds_memory(view: View) -> bool:
    """Whether GPU memory bounds who runs; each MIG instance has its own."""
    return view.memory is not None and view.memory.counts and not view.has_instances


OF_ITS_OWN: tuple[Constraint, ...] = (_hold, _dependency, _moved, _time, _misfit)
"""What concerns it alone."""

ON_THE_GPU: tuple[Constraint, ...] = (_degree, _memory)
"""What holds for one at the door, which has a place already."""

LETS_PASS = (*OF_ITS_OWN, _room)
"""What lets those behind it pass: they may have another reason, or none."""

BEFORE_FILES: tuple[Constraint, ...] = (_time, _room)
"""Where one of these answers, the member's files need not be read."""

AHEAD = (*OF_ITS_OWN, _room, _pack)
"""Where one of these answers, what the member needs does not matter."""

CONSTRAINTS = (*AHEAD, _cpus, _instance, _degree, _door, _memory)


def find_wait(
    view: View, member: MemberFacts, constraints: Sequence[Constraint] = CONSTRAINTS
) -> WaitReason | None:
    """Why a member does not start, or go on to the GPU, now; None where it may.

    Args:
        view: The pack.
        member: The member; it need not be one of the pack's.
        constraints: What is asked.
    """
    for constraint in constraints:
        if (reason := constraint(view, member)) is not None:
            return reason
    return None


# ---- Orders --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """Something to be done with one member.

    Attributes:
        number: Its number in the pack.
    """

    number: int


@dataclass(frozen=True)
class Enter(Order):
    """It is at the door, and goes on to the GPU."""


@dataclass(frozen=True)
class Start(Order):
    """It starts.

    Attributes:
        passes: The number of the member before it for which there is no room; None for none.
    """

    passes: int | None = None


@dataclass(frozen=True)
class Preload(Order):
    """It starts, and waits at the door for room on the GPU."""


@dataclass(frozen=True)
class Return(Order):
    """Its GPU memory is brought back, and it goes on."""


@dataclass(frozen=True)
class EndTurn(Order):
    """Its GPU memory is moved away, and it is paused."""


@dataclass(frozen=True)
class Arrangement:
    """What is to be done in a view, and why the next member waits.

    Attributes:
        order: What is done now; None for nothing.
        front: The number of the first member that lets none behind it pass; None for none.
        reason: Why that one does not start; None where it does.
        at_door: Why the first at the door does not go on; None where none is there, or it does.
    """

    order: Order | None = None
    front: int | None = None
    reason: WaitReason | None = None
    at_door: WaitReason | None = None

    @property
    def told(self) -> WaitReason | None:
        """What keeps those waiting that have a place; None for nothing."""
        is_told = self.reason is not None and self.reason.kind in {WaitKind.PLACE, *OF_GPU}
        return self.reason if is_told else None


def arrange(view: View) -> Arrangement:
    """What is done next: one goes on from the door, or starts, or is loaded ahead of its turn."""
    at_door = None
    if view.loading:
        first = view.loading[0]
        at_door = find_wait(view, first, ON_THE_GPU)
        if at_door is None:
            return Arrangement(Enter(first.number))
    front = find_front(view)
    if front is None:
        return Arrangement(at_door=at_door)
    reason = find_wait(view, front)
    chosen = Arrangement(None, front.number, reason, at_door)
    if reason is None:
        return replace(chosen, order=Start(front.number))
    behind = _find_behind(view, front, reason)
    if behind is not None:
        return replace(chosen, order=Start(behind.number, passes=front.number))
    return replace(chosen, order=_choose_load(view, front, reason))


def find_front(view: View) -> MemberFacts | None:
    """The first that lets none behind it pass; None where there is none."""
    return next((m for m in view.waiting if find_wait(view, m, LETS_PASS) is None), None)


def wants_others(view: View) -> bool:
    """Whether it matters who waits behind the front: one of them may pass it."""
    front = find_front(view)
    reason = None if front is None else find_wait(view, front)
    kinds = (WaitKind.PLACE, WaitKind.MEMORY, WaitKind.INSTANCE)
    return reason is not None and reason.kind in kinds


def find_next(view: View) -> MemberFacts | None:
    """The next member, where it may start now or only the GPU has no room for it."""
    front = find_front(view)
    reason = None if front is None else find_wait(view, front)
    return front if reason is None or reason.kind in OF_GPU else None


def _find_behind(view: View, front: MemberFacts, reason: WaitReason) -> MemberFacts | None:
    """One for which there is room, where that does not keep the front one waiting for ever."""
    if view.has_instances:
        # What is free would not be enough for one that waits for an instance.
        if not front.waits_for_taken:
            return None
    elif (
        reason.kind not in (WaitKind.PLACE, WaitKind.MEMORY)
        or view.passed.get(front.number, 0) >= PASSES_MOST
    ):
        return None
    others = (member for member in view.waiting if member is not front)
    return next((member for member in others if find_wait(view, member) is None), None)


def _choose_load(view: View, front: MemberFacts, reason: WaitReason) -> Preload | None:
    """Where only the GPU has no room for the next member, it may load its program meanwhile."""
    if reason.kind not in OF_GPU or not front.may_load or view.has_instances:
        return None
    # What loads would disturb a measurement; who is parked goes on before any that waits. On which
    # of several GPUs there will be room is not known.
    gpus = () if view.memory is None else view.memory.gpus
    is_kept = view.degree.is_measuring or view.has_parked or len(gpus) > 1
    return None if is_kept else Preload(front.number)


# ---- Turns on the GPU's memory -------------------------------------------------------------------


def arrange_turns(view: View, now: float) -> Order | None:
    """Whose turn ends, or who goes on; None where all stays as it is.

    Args:
        view: A pack whose members take turns.
        now: The monotonic clock.
    """
    stuck = next((member for member in view.running if member.turn.is_stuck), None)
    # Each starts once before any goes on: all come to their first steps soon.
    waiting = None if stuck else find_next(view)
    away = [member for member in view.running if member.stage is Stage.AWAY]
    wanted = stuck or waiting or min(away, key=lambda member: member.turn.since, default=None)
    if wanted is None:
        return None
    free = view.compute_free()
    if wanted.stage is Stage.AWAY and (free is None or wanted.reserved_mb <= free.find_free_mb(1)):
        return Return(wanted.number)
    if wanted is waiting and find_wait(view, wanted, ON_THE_GPU) is None:
        # It starts in this turn of the runner.
        return None
    over = [
        member
        for member in view.running
        if member.turn.may_end and (stuck or now - member.turn.since >= member.turn.lasts_s)
    ]
    first = min(over, key=lambda member: member.turn.since, default=None)
    return None if first is None else EndTurn(first.number)


# ---- How many more have room ---------------------------------------------------------------------


def count_room(view: View) -> int:
    """How many more members may start now, whatever they are like; those at the door go first."""
    free = view.places - len(view.present)
    degree, running = view.degree, view.running
    is_waited_for = any(member.stage in (Stage.PARKED, Stage.AWAY) for member in running)
    if free <= 0 or not running or is_waited_for or degree.is_measuring:
        # A pack in which none runs ends, and gives its GPU to the next one.
        return 0
    most = free
    if degree.is_decided:
        # A pack that was measured at most doubles, and is measured again.
        most = min(len(running), degree.degree - len(running))
    elif degree.planned is not None:
        most = degree.planned - len(running)
    elif degree.known is not None and not degree.known.is_open:
        most = degree.known.degree - len(running)
    most = min(free, most, count_memory_room(view, free))
    return max(0, most - len(view.loading))


def count_memory_room(view: View, most: int) -> int:
    """How many more could start now by GPU memory that are like those that run.

    One of the largest need that is known stands for all; where one is not known, unknown ones do.

    Args:
        view: The pack.
        most: No more are asked for.
    """
    free = view.compute_free()
    if free is None or not bounds_memory(view):
        return most
    needs_mb = [member.need_mb for member in view.running]
    need_mb = None if None in needs_mb else max((mb or 0 for mb in needs_mb), default=None)
    gpus = max((member.gpus for member in view.running), default=1)
    return count_starts(free, [need_mb or None] * most, gpus)


def list_kinds(members: Sequence[MemberFacts]) -> frozenset[str]:
    """The kinds of members; one of which it is not known what it is like is its own."""
    return frozenset(member.kind or f"#{member.number}" for member in members)
