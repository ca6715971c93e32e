"""The waiting members of a pack: what becomes of their dependencies, and why they wait."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from slurm_colloc.model.job import Job
from slurm_colloc.model.job_values import ConditionOutlook
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import (
    EndCause,
    ExitCode,
    MemberState,
    SlurmJobState,
    WaitKind,
    WaitReason,
)
from slurm_colloc.model.why_not_now import describe_wait
from slurm_colloc.planning.arrange import Arrangement, Start, View
from slurm_colloc.runtime.member_dependencies import judge_own_dependency
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.room import TimeLeft
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.member_states import cancel_left, is_held, leave_behind, write_held
from slurm_colloc.store.pack_directory import read_moved, write_ended
from slurm_colloc.store.runner_requests import is_cancel_asked

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


@dataclass(eq=False, kw_only=True)
class StartQueue:
    """The waiting members of a pack.

    Attributes:
        pack: The attempt of the pack.
        time_left: Knows which would be ended half-way.
        states: Writes why members wait.
        has_handed_back: Some that wait are left to the next call of csub: too little time was left
            for them.
        is_undecided: A waiting member's dependency is looked at again in a moment; as of the last
            look that was followed.
    """

    pack: PackContext
    time_left: TimeLeft
    states: StateWriter

    def __post_init__(self) -> None:
        self.has_handed_back = False
        self.is_undecided = False
        self._satisfied: set[int] = set()
        self._open_since: dict[int, float] = {}
        self._told: dict[int, WaitReason | None] = {}
        self.passed: dict[int, int] = {}
        """How many have started before a member for which there was no room, by its number."""

    def judge(self, job: Job) -> tuple[ConditionOutlook, str]:
        """What a job's dependency on members of other packs is, see `judge_own_dependency`."""
        return judge_own_dependency(self.pack.state, self.pack.slurm, job)

    def judge_dependency(self, member: Member) -> DependencyLook | None:
        """What has become of a member's dependency; None where nothing is waited for any more."""
        job, number = member.spec.job, member.number
        if not job.depends or member.record.starts or number in self._satisfied:
            return None
        outlook, told = self.judge(job)
        now = time.monotonic()
        return DependencyLook(
            outlook, told, is_late=now - self._open_since.get(number, now) >= PATIENCE_S
        )

    def follow(
        self, view: View, chosen: Arrangement, dependencies: Mapping[int, DependencyLook]
    ) -> None:
        """Do what a look has found to be due, and write down why members wait.

        Args:
            view: What was seen.
            chosen: What follows.
            dependencies: What was found of dependencies, by member number.
        """
        by_number = self.pack.members.by_number
        for facts in view.waiting:
            member = by_number[facts.number]
            if facts.too_late and facts.too_late != member.record.waits:
                self.states.write(member, MemberState.PENDING, reason="", waits=facts.too_late)
                left_s = round(self.time_left.left_s or 0.0)
                self.pack.journal.write("too_late", member=facts.number, left_s=left_s)
            if facts.misfit:
                self.pack.members.waiting.remove(facts.number)
                cause = EndCause.NOT_STARTED.value
                self.states.write_end(member, MemberState.FAILED, None, facts.misfit, cause=cause)
        self.is_undecided = False
        for number, found in dependencies.items():
            self._follow_dependency(by_number[number], found)
        self._tell_waiting(chosen.told)
        if isinstance(chosen.order, Start) and chosen.order.passes is not None:
            front = chosen.order.passes
            self.passed[front] = self.passed.get(front, 0) + 1

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
