"""Which waiting member starts next, and why the others do not.

The facts are gathered here; what they mean says `model.why_not_now`, as it does for `csub why`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from slurm_colloc.model.job_values import ConditionOutlook
from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.model.member import (
    EndCause,
    ExitCode,
    MemberState,
    SlurmJobState,
    WaitKind,
    WaitReason,
)
from slurm_colloc.model.why_not_now import RunningMember, StartFacts, describe_wait, why_not_now
from slurm_colloc.runtime.collect_ends import SlurmDecision
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.member_dependencies import Judge
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.member_states import cancel_left, is_held, leave_behind, write_held
from slurm_colloc.store.pack_directory import read_moved, write_ended
from slurm_colloc.store.runner_requests import is_cancel_asked

PASSES_MOST = 8
"""So many members may start before the first one while there is no room for that one: then what
becomes free is kept for it."""

PATIENCE_S = 5.0
"""How long an open dependency may just be a state that this node, or Slurm, is late to show."""


@dataclass(frozen=True)
class DependencyLook:
    """What a waiting member's dependency was found to be.

    Attributes:
        outlook: Whether it holds, may yet, or never will.
        told: What the member waits for, `afterok:4711/3`; where it is NEVER, why; empty
            where it holds.
        is_late: It has been open for longer than PATIENCE_S.
    """

    outlook: ConditionOutlook
    told: str
    is_late: bool = False


@dataclass
class QueueLook:
    """What one look at the waiting members has found. Looking changes nothing; `follow` does.

    Attributes:
        front: The first that has no reason of its own to wait; None for none.
        facts: What decides whether it starts.
        start: The one that starts now; None for none.
        dependencies: What was found of dependencies, by member number.
        too_late: Why members are not started here any more, likewise, where that is new.
        misfits: Why no MIG instance is enough for members, likewise.
    """

    front: Member | None = None
    facts: StartFacts = field(default_factory=StartFacts)
    start: Member | None = None
    dependencies: dict[int, DependencyLook] = field(default_factory=dict)
    too_late: dict[int, WaitReason] = field(default_factory=dict)
    misfits: dict[int, str] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class StartQueue:
    """The waiting members of a pack.

    Attributes:
        pack: The attempt of the pack.
        time_left: Knows which would be ended half-way.
        judge: Judges a job's dependency on members of other packs.
        slurm_decision: Whether Slurm lets the pack go on.
        gpu_mode: Whether its GPU is ready.
        measured_degree: Whether as many run as may.
        memory: Whether there is GPU memory for one more.
        states: Writes why members wait.
        describe_door: Why those wait that have not started, because one has that goes first; None
            where none has.
        has_handed_back: Some that wait are left to the next call of csub: too little time was left
            for them.
        is_undecided: A waiting member's dependency is looked at again in a moment; as of the last
            look that was followed.
    """

    pack: PackContext
    time_left: TimeLeft
    judge: Judge
    slurm_decision: SlurmDecision
    gpu_mode: GpuMode
    measured_degree: MeasuredDegree
    memory: GpuMemoryRoom
    states: StateWriter
    describe_door: Callable[[], WaitReason | None] = lambda: None

    def __post_init__(self) -> None:
        self.has_handed_back = False
        self.is_undecided = False
        self._satisfied: set[int] = set()
        self._open_since: dict[int, float] = {}
        self._told: dict[int, WaitReason | None] = {}
        self._passed: dict[int, int] = {}

    # -- asking -------------------------------------------------------------------------------

    def describe_pack_wait(self) -> WaitReason | None:
        """Why no member of the pack starts at present; None where that is not so."""
        ending = self.slurm_decision.ending
        if ending is not None:
            # Slurm may show it running after all.
            return WaitReason(WaitKind.ENDING, told=ending.reason) if ending.reason else None
        if self.slurm_decision.is_undecided:
            return WaitReason(WaitKind.SIGNALLED)
        return None if self.gpu_mode.is_settled else WaitReason(WaitKind.PREPARING)

    def gather(self, member: Member, look: QueueLook) -> StartFacts:
        """What decides whether a waiting member starts, up to the first thing in its way.

        Args:
            member: The member.
            look: Takes what is found of its dependency.
        """
        facts = self._gather_own(member, self._gather_pack(), look)
        facts = replace(facts, pack_waits=self.describe_pack_wait())
        if why_not_now(facts) is not None:
            return facts
        cpus = member.spec.plan.cpus
        if not self.pack.members.find_places(cpus):
            name = str(member.name(self.pack.shown_id))
            return replace(facts, no_place=WaitReason(WaitKind.PLACE, name, count=cpus))
        instances = self.gpu_mode.instances
        if instances is not None:
            return replace(facts, degree_reason=instances.seats.describe(member))
        return replace(
            facts,
            degree_reason=self.measured_degree.describe(member) or self.describe_door(),
            memory_reason=self.memory.describe(member),
        )

    def _gather_own(self, member: Member, pack: StartFacts, look: QueueLook) -> StartFacts:
        facts = self._gather_files(member, pack)
        if why_not_now(facts) is not None:
            return facts
        found = look.dependencies.get(member.number) or self._judge_dependency(member)
        if found is None:
            return facts
        look.dependencies[member.number] = found
        return replace(facts, dependency=found.told)

    def _judge_dependency(self, member: Member) -> DependencyLook | None:
        """What has become of a member's dependency; None where nothing is waited for any more."""
        job, number = member.spec.job, member.number
        if not job.depends or member.record.starts or number in self._satisfied:
            return None
        outlook, told = self.judge(job)
        now = time.monotonic()
        return DependencyLook(
            outlook, told, is_late=now - self._open_since.get(number, now) >= PATIENCE_S
        )

    def _gather_pack(self) -> StartFacts:
        """What holds for each of them."""
        now = time.monotonic()
        occupants = [
            place.occupant for place in self.pack.members.places if place.occupant is not None
        ]
        running = [
            self.pack.members.by_number[number]
            for number in sorted(occupants)
            if number in self.pack.members.by_number
        ]
        return StartFacts(
            degree=len(self.pack.members.places),
            takes_one=self.pack.members.takes_one,
            running=tuple(
                RunningMember(
                    str(member.name(self.pack.shown_id)),
                    member.record.retries.alone,
                    None if member.deadline is None else int(member.deadline - now),
                )
                for member in running
            ),
        )

    def _gather_files(self, member: Member, pack: StartFacts) -> StartFacts:
        """What is a member's own; its files are looked at only where all else lets it start.

        Args:
            member: The member.
            pack: From `_gather_pack`.
        """
        facts = replace(
            pack,
            too_late=self.time_left.describe(member),
            alone=member.record.retries.alone,
            has_run=member.record.starts > 0,
        )
        if why_not_now(facts) is not None:
            return facts
        held = is_held(self.pack.path, member.number)
        return replace(
            facts,
            is_held=held,
            dependency=member.record.dependency if held else "",
            is_moved=read_moved(self.pack.path, member.number) is not None,
        )

    def list_next(self) -> list[Member]:
        """The waiting members that have no reason of their own to wait, dependencies apart."""
        pack = self._gather_pack()
        members = [self.pack.members.by_number[number] for number in self.pack.members.waiting]
        return [
            member for member in members if why_not_now(self._gather_files(member, pack)) is None
        ]

    # -- starting -----------------------------------------------------------------------------

    def look(self) -> QueueLook:
        """Look for the first waiting member that has no reason of its own to wait."""
        look, pack = QueueLook(), self._gather_pack()
        instances = self.gpu_mode.instances
        for number in self.pack.members.waiting:
            member = self.pack.members.by_number[number]
            facts = self._gather_own(member, pack, look)
            if facts.too_late and facts.too_late != member.record.waits:
                look.too_late[number] = facts.too_late
            if why_not_now(facts) is not None:
                continue
            if instances is not None and (told := instances.seats.find_misfit(member)):
                look.misfits[number] = told
                continue
            look.front, look.facts = member, self.gather(member, look)
            break
        return look

    def choose_start(self) -> QueueLook:
        """Look for the member that starts now."""
        look = self.look()
        if look.front is not None:
            is_free = why_not_now(look.facts) is None
            look.start = look.front if is_free else self._find_behind(look.front, look)
        return look

    def find_for_door(self) -> Member | None:
        """The next member, where it has a place and only the GPU has no room for it."""
        return self._find_for_gpu(self.look())

    def find_next(self) -> Member | None:
        """The next member, where it may start now or only the GPU has no room for it."""
        look = self.look()
        is_free = look.front is not None and why_not_now(look.facts) is None
        return look.front if is_free else self._find_for_gpu(look)

    def _find_for_gpu(self, look: QueueLook) -> Member | None:
        is_for_gpu = look.facts.degree_reason or look.facts.memory_reason
        return (
            look.front
            if is_for_gpu and not (look.facts.no_place or look.facts.pack_waits)
            else None
        )

    def _find_behind(self, front: Member, look: QueueLook) -> Member | None:
        """One for which there is room, where that does not keep the front one waiting for ever."""
        facts, instances = look.facts, self.gpu_mode.instances
        if instances is not None:
            # What is free would not be enough for one that waits for an instance.
            if not instances.seats.waits_for_taken(front):
                return None
        elif (
            facts.degree_reason
            or facts.pack_waits
            or not facts.room_reason
            or self._passed.get(front.number, 0) >= PASSES_MOST
        ):
            return None
        for member in self.list_next():
            if member is front or (instances is not None and instances.seats.find(member) is None):
                continue
            if why_not_now(self.gather(member, look)) is None:
                return member
        return None

    # -- acting -------------------------------------------------------------------------------

    def take_next(self) -> Member | None:
        """The member that starts now; what is due for the others has been done."""
        instances = self.gpu_mode.instances
        if instances is not None:
            places = self.pack.members.places
            instances.seats.keep({place.occupant for place in places if place.occupant is not None})
        look = self.choose_start()
        self.follow(look)
        return look.start

    def follow(self, look: QueueLook) -> None:
        """Do what a look has found to be due, and write down why members wait."""
        by_number, facts = self.pack.members.by_number, look.facts
        for number, reason in look.too_late.items():
            self.states.write(by_number[number], MemberState.PENDING, reason="", waits=reason)
            left_s = round(self.time_left.left_s or 0.0)
            self.pack.journal.write("too_late", member=number, left_s=left_s)
        for number, told in look.misfits.items():
            self.pack.members.waiting.remove(number)
            cause = EndCause.NOT_STARTED.value
            self.states.write_end(by_number[number], MemberState.FAILED, None, told, cause=cause)
        self.is_undecided = False
        for number, found in look.dependencies.items():
            self._follow_dependency(by_number[number], found)
        self._tell_waiting(facts.no_place or facts.degree_reason or facts.memory_reason)
        if look.front is None or look.start is look.front:
            return
        if self.gpu_mode.instances is None and look.start is not None:
            self._passed[look.front.number] = self._passed.get(look.front.number, 0) + 1

    def _follow_dependency(self, member: Member, found: DependencyLook) -> None:
        """In the end a member with a dependency is let go, held, or cancelled."""
        number = member.number
        if found.outlook is ConditionOutlook.OPEN and not found.is_late:
            self._open_since.setdefault(number, time.monotonic())
            self.is_undecided = True
            return
        self._open_since.pop(number, None)
        if found.outlook is ConditionOutlook.SATISFIED:
            self._satisfied.add(number)
            return
        waits = WaitReason(WaitKind.DEPENDENCY, name=found.told)
        is_never = found.outlook is ConditionOutlook.NEVER
        reason = found.told if is_never else describe_wait(waits)
        self.pack.journal.write("dependency", member=number, reason=reason)
        if is_never:
            self.pack.members.waiting.remove(number)
            code = ExitCode(0, signal.SIGTERM)
            self.states.write_end(member, MemberState.CANCELLED, code, reason)
        else:
            # Too early, and only a later pack can wait for it: nothing runs that must not.
            self.states.write(member, MemberState.PENDING, reason="", waits=waits)
            write_held(self.pack.path, number)

    def _tell_waiting(self, reason: WaitReason | None) -> None:
        """Write down why those wait that have a place, and take back what is not why any more.

        Args:
            reason: What keeps all of them waiting; None for nothing.
        """
        free = sum(place.occupant is None for place in self.pack.members.places)
        waiting = list(self.pack.members.waiting)
        at_front = waiting[:free] if reason else []
        for number in waiting:
            member, told = self.pack.members.by_number[number], self._told.get(number)
            wanted = reason if number in at_front or told == reason else None
            waits = member.record.waits
            # What another has written down, and why it starts again, stays.
            if waits == wanted or member.record.reason or waits not in (None, told):
                continue
            if not wanted or not is_held(self.pack.path, number):
                self._told[number] = wanted
                self.states.write(member, MemberState.PENDING, waits=wanted)
        self._told = {number: self._told[number] for number in waiting if number in self._told}

    # -- the end ------------------------------------------------------------------------------

    def leave_behind(self) -> bool:
        """Leave held members to the csub that releases them; False if that has just happened.

        Called once the pack is closed and nothing else is left: the GPU is not kept for them. Those
        that have too little time here are left to the next call of csub, which submits them again.
        """
        released = False
        by_number = self.pack.members.by_number
        waiting = list(self.pack.members.waiting)
        short = [n for n in waiting if self.time_left.is_too_short_for(by_number[n])]
        for number in waiting:
            if read_moved(self.pack.path, number) is not None or number in short:
                continue
            if leave_behind(self.pack.path, number):
                self.pack.journal.write("left_behind", member=number)
                # csub writes its request first and then looks whether the member was left.
                if is_cancel_asked([(self.pack.path, number)]):
                    cancel_left(self.pack.path, number)
            else:
                released = True
        if short and not released:
            self.pack.journal.write("handed_back", members=short)
            # Its Slurm job completes; that they had no turn is not to be taken for all right.
            write_ended(self.pack.path, SlurmJobState.TIMEOUT)
            self.has_handed_back = True
        return not released
