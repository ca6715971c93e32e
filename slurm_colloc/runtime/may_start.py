"""Which waiting member starts next, and why the others do not.

The facts are gathered here; what they mean says `model.why_not_now`, as it does for `csub why`.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.model.job_values import ConditionOutlook
from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.model.why_not_now import (
    CHANGING_INSTANCES,
    PREPARING_GPU,
    RunningMember,
    StartFacts,
    describe_larger_place,
    read_dependency,
    why_not_now,
)
from slurm_colloc.runtime.collect_ends import SlurmDecision
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.member_dependencies import Judge
from slurm_colloc.runtime.members import Member, PackMembers
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.member_states import is_held, leave_behind, write_held
from slurm_colloc.store.pack_directory import read_moved, write_ended

if TYPE_CHECKING:
    from slurm_colloc.runtime.pack_instances import PackInstances


PASSES_MOST = 8
"""So many members may start before the first one while there is no room for that one: then what
becomes free is kept for it."""

PATIENCE_S = 5.0
"""How long an open dependency may just be a state that this node, or Slurm, is late to show."""


@dataclasses.dataclass(eq=False, kw_only=True)
class StartQueue:
    """The waiting members of a pack.

    Attributes:
        pack: The pack's directory.
        members: Its members.
        shown_id: The pack's job id as users know it.
        time_left: Knows which would be ended half-way.
        judge: Judges a job's dependency on members of other packs.
        slurm_decision: Whether Slurm lets the pack go on.
        gpu_mode: Whether its GPU is ready.
        measured_degree: Whether as many run as may.
        memory: Whether there is GPU memory for one more.
        states: Writes why members wait.
        journal: The pack's log.
        describe_door: Why those wait that have not started, because one has that goes first; empty
            where none has.
        has_handed_back: Some that wait are left to the next call of csub: too little time was left
            for them.
        is_undecided: A waiting member's dependency is looked at again in a moment; as of the last
            look.
    """

    pack: Path
    members: PackMembers
    shown_id: str
    time_left: TimeLeft
    judge: Judge
    slurm_decision: SlurmDecision
    gpu_mode: GpuMode
    measured_degree: MeasuredDegree
    memory: GpuMemoryRoom
    states: StateWriter
    journal: Journal
    describe_door: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        self.has_handed_back = False
        self.is_undecided = False
        self._satisfied: set[int] = set()
        self._open_since: dict[int, float] = {}
        self._told: dict[int, str] = {}
        self._passed: dict[int, int] = {}

    # -- asking -------------------------------------------------------------------------------

    def describe_pack_wait(self) -> str:
        """Why no member of the pack starts at present; empty where that is not so."""
        if self.slurm_decision.ending is not None:
            return self.slurm_decision.ending.reason
        if self.slurm_decision.is_undecided:
            return "it was signalled, and Slurm has not shown yet whether its pack goes on"
        if self.gpu_mode.instances is not None and self.gpu_mode.instances.is_changing:
            return CHANGING_INSTANCES
        return "" if self.gpu_mode.is_settled else PREPARING_GPU

    def gather(self, member: Member) -> StartFacts:
        """What decides whether a waiting member starts, up to the first thing in its way."""
        facts = self._gather_own(member, self._gather_pack())
        facts = dataclasses.replace(facts, pack_waits=self.describe_pack_wait())
        if why_not_now(facts) is not None:
            return facts
        cpus = member.spec.plan.cpus
        if not self.members.find_places(cpus):
            name = str(member.name(self.shown_id))
            return dataclasses.replace(facts, no_place=describe_larger_place(name, cpus))
        instances = self.gpu_mode.instances
        if instances is not None:
            return dataclasses.replace(facts, degree_reason=self._find_instance(instances, member))
        return dataclasses.replace(
            facts,
            degree_reason=self.measured_degree.describe(member) or self.describe_door(),
            memory_reason=self.memory.describe(member),
        )

    def _find_instance(self, instances: PackInstances, member: Member) -> str:
        """Why a member has no MIG instance to start on; empty where it has one."""
        places = self.members.places
        instances.keep({place.occupant for place in places if place.occupant is not None})
        return instances.describe(member)

    def _gather_own(self, member: Member, pack: StartFacts) -> StartFacts:
        facts = self._gather_files(member, pack)
        if why_not_now(facts) is not None:
            return facts
        return dataclasses.replace(facts, dependency=self._find_open_dependency(member))

    def _gather_pack(self) -> StartFacts:
        """What holds for each of them."""
        now = time.monotonic()
        occupants = [place.occupant for place in self.members.places if place.occupant is not None]
        running = [
            self.members.by_number[number]
            for number in sorted(occupants)
            if number in self.members.by_number
        ]
        return StartFacts(
            degree=len(self.members.places),
            takes_one=self.members.takes_one,
            running=tuple(
                RunningMember(
                    str(member.name(self.shown_id)),
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
        facts = dataclasses.replace(
            pack,
            too_late=self.time_left.describe(member),
            alone=member.record.retries.alone,
            has_run=member.record.starts > 0,
        )
        if why_not_now(facts) is not None:
            return facts
        held = is_held(self.pack, member.number)
        return dataclasses.replace(
            facts,
            is_held=held,
            dependency=read_dependency(member.record.reason) if held else "",
            is_moved=read_moved(self.pack, member.number) is not None,
        )

    def list_next(self) -> list[Member]:
        """The waiting members that have no reason of their own to wait, dependencies apart."""
        pack = self._gather_pack()
        members = [self.members.by_number[number] for number in self.members.waiting]
        return [
            member for member in members if why_not_now(self._gather_files(member, pack)) is None
        ]

    # -- starting -----------------------------------------------------------------------------

    def find_start(self) -> Member | None:
        """The member that starts now; writes down why the others wait that have a place."""
        member = self.find_next()
        facts = StartFacts() if member is None else self.gather(member)
        self._tell_waiting(facts.no_place or facts.degree_reason or facts.memory_reason)
        if why_not_now(facts) is None:
            return member
        return None if member is None else self._find_behind(member, facts)

    def find_for_door(self) -> Member | None:
        """The next member, where it has a place and only the GPU has no room for it."""
        member = self.find_next()
        if member is None:
            return None
        facts = self.gather(member)
        is_for_gpu = facts.degree_reason or facts.memory_reason
        return member if is_for_gpu and not (facts.no_place or facts.pack_waits) else None

    def _find_behind(self, front: Member, facts: StartFacts) -> Member | None:
        """One for which there is room, where that does not keep the front one waiting for ever."""
        instances = self.gpu_mode.instances
        if instances is not None:
            if not instances.lets_pass(front):
                return None
        elif (
            facts.degree_reason
            or facts.pack_waits
            or not facts.room_reason
            or self._passed.get(front.number, 0) >= PASSES_MOST
        ):
            return None
        for member in self.list_next():
            if member is front or (instances is not None and not instances.has_free(member)):
                continue
            if why_not_now(self.gather(member)) is None:
                if instances is None:
                    self._passed[front.number] = self._passed.get(front.number, 0) + 1
                return member
        return None

    def find_next(self) -> Member | None:
        """The first waiting member that has no reason of its own to wait."""
        self.is_undecided = False
        pack = self._gather_pack()
        for number in list(self.members.waiting):
            member = self.members.by_number[number]
            facts = self._gather_own(member, pack)
            if facts.too_late and facts.too_late != member.record.reason:
                self.states.write(member, MemberState.PENDING, reason=facts.too_late)
                self.journal.write(
                    "too_late", member=number, left_s=round(self.time_left.left_s or 0.0)
                )
            if why_not_now(facts) is None:
                return member
        return None

    def _tell_waiting(self, text: str) -> None:
        """Write down why those wait that have a place, and take back what is not why any more.

        Args:
            text: What keeps all of them waiting; empty for nothing.
        """
        free = sum(place.occupant is None for place in self.members.places)
        waiting = list(self.members.waiting)
        at_front = waiting[:free] if text else []
        for number in waiting:
            member, told = self.members.by_number[number], self._told.get(number)
            wanted = text if number in at_front or told == text else ""
            reason = member.record.reason
            # What another has written down, and why it starts again, stays.
            if reason == wanted or reason not in ("", told):
                continue
            if not wanted or not is_held(self.pack, number):
                self._told[number] = wanted
                self.states.write(member, MemberState.PENDING, reason=wanted)
        self._told = {number: self._told[number] for number in waiting if number in self._told}

    # -- dependencies -------------------------------------------------------------------------

    def _find_open_dependency(self, member: Member) -> str:
        """What a member waits for; empty for nothing. In the end it is held, or cancelled."""
        job, number = member.spec.job, member.number
        if not job.depends or member.record.starts or number in self._satisfied:
            return ""
        outlook, reason = self.judge(job)
        if outlook is ConditionOutlook.SATISFIED:
            self._satisfied.add(number)
            self._open_since.pop(number, None)
            return ""
        since = self._open_since.setdefault(number, time.monotonic())
        if outlook is ConditionOutlook.OPEN and time.monotonic() - since < PATIENCE_S:
            self.is_undecided = True
            return read_dependency(reason) or reason
        del self._open_since[number]
        self.journal.write("dependency", member=number, reason=reason)
        if outlook is ConditionOutlook.NEVER:
            self.members.waiting.remove(number)
            code = ExitCode(0, signal.SIGTERM)
            self.states.write_end(member, MemberState.CANCELLED, code, reason)
        else:
            # Too early, and only a later pack can wait for it: nothing runs that must not.
            self.states.write(member, MemberState.PENDING, reason=reason)
            write_held(self.pack, number)
        return read_dependency(reason) or reason

    # -- the end ------------------------------------------------------------------------------

    def leave_behind(self) -> bool:
        """Leave held members to the csub that releases them; False if that has just happened.

        Called once the pack is closed and nothing else is left: the GPU is not kept for them. Those
        that have too little time here are left to the next call of csub, which submits them again.
        """
        released = False
        by_number = self.members.by_number
        waiting = list(self.members.waiting)
        short = [n for n in waiting if self.time_left.is_too_short_for(by_number[n])]
        for number in waiting:
            if read_moved(self.pack, number) is not None or number in short:
                continue
            if leave_behind(self.pack, number):
                self.journal.write("left_behind", member=number)
            else:
                released = True
        if short and not released:
            self.journal.write("handed_back", members=short)
            # Its Slurm job completes; that they had no turn is not to be taken for all right.
            write_ended(self.pack, SlurmJobState.TIMEOUT)
            self.has_handed_back = True
        return not released
