"""Starting waiting members in places that are free, until none is left and the pack is closed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.degree.probe_window import ALONE_FIRST
from slurm_colloc.model.degree.ramp_decision import is_ramp_reason, is_time_reason
from slurm_colloc.model.end_causes import EndCause
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.launch.start_member import MemberStarter
from slurm_colloc.runtime.outcome.collect_ends import EndCollector
from slurm_colloc.runtime.outcome.verdict import Verdict
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.requeue_after_kill import tell_of_restart
from slurm_colloc.runtime.queue.may_start import StartQueue
from slurm_colloc.runtime.queue.measured_degree import MeasuredDegree
from slurm_colloc.runtime.queue.members import Member, PackMembers, PackPlace
from slurm_colloc.runtime.queue.probe_members import ProbeWindow
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.member_states import StateRecord, read_state
from slurm_colloc.store.pack.pack_directory import read_spec
from slurm_colloc.store.pack.runner_kills import RunnerKill


class PlaceFiller:
    """Starts whoever may start.

    Args:
        pack: The pack's directory.
        roster: Its members and places.
        gate: Which member is next.
        probing: Whether somebody is to be alone first.
        ramping: Whether as many run as may.
        sharing: Whether anybody may start here at all.
        starter: Starts members.
        tender: Told of those that could not be started.
        ledger: Writes their states.
        intake: Takes new members into the roster.
        check_fence: Called before a start; raises where a newer attempt has begun.
    """

    def __init__(
        self,
        *,
        pack: Path,
        roster: PackMembers,
        gate: StartQueue,
        probing: ProbeWindow,
        ramping: MeasuredDegree,
        sharing: GpuMode,
        starter: MemberStarter,
        tender: EndCollector,
        ledger: StateWriter,
        intake: MemberIntake,
        check_fence: Callable[[], None],
    ) -> None:
        self._pack = pack
        self._roster = roster
        self._gate = gate
        self._probing = probing
        self._ramping = ramping
        self._sharing = sharing
        self._starter = starter
        self._tender = tender
        self._ledger = ledger
        self._intake = intake
        self._check_fence = check_fence

    def work(self) -> None:
        """Take what has entered, and start as many as may run."""
        for number in inbox.list_waiting(str(self._pack)) or []:
            if number not in self._roster.members and inbox.take(str(self._pack), number):
                self._intake.adopt(number)
        if self._sharing.refusal:
            self._refuse_all()
            return
        while (member := self._gate.find_next()) is not None:
            place = self._roster.find_place(member.spec.plan.cpus)
            if place is None:
                return
            if self._probing.holds(member):
                self._probing.tell_waiting()
                return
            if self._ramping.holds(member):
                self._ramping.tell_waiting()
                return
            self._check_fence()
            self._start(member, place)

    def close(self) -> bool:
        """Close the pack if nothing waits; False if something has entered meanwhile."""
        if self._gate.find_next() is not None or not inbox.close(str(self._pack)):
            return False
        # A fenced attempt may have taken an entry before it noticed.
        self._intake.adopt_taken()
        return self._gate.leave_behind()

    def _start(self, member: Member, place: PackPlace) -> None:
        self._roster.waiting.remove(member.number)
        place.occupant = member.number
        try:
            if not self._starter.start(member, place):
                self._tender.release(member)
                self._roster.waiting.appendleft(member.number)
        except (OSError, StateError) as error:
            if isinstance(error, FileNotFoundError) and self._starter.fall_back(
                member, f"{error.filename} is not installed or not in PATH"
            ):
                self._tender.release(member)
                self._roster.waiting.appendleft(member.number)
                return
            self._tender.finish(
                member, Verdict(MemberState.FAILED, None, f"it could not be started: {error}")
            )

    def _refuse_all(self) -> None:
        """Nobody may start here: the GPU cannot be shared in the only way that was allowed."""
        for number in list(self._roster.waiting):
            member = self._roster.members[number]
            if not is_held(self._pack, number):
                self._roster.waiting.remove(number)
                # Who has run before had a daemon, and lost it.
                cause = EndCause.MPS_GONE if member.record.starts else EndCause.NOT_STARTED
                reason = self._sharing.refusal
                self._ledger.write_end(member, MemberState.FAILED, None, reason, cause=cause.value)


class MemberIntake:
    """Takes in members, new ones and those of earlier attempts.

    Args:
        pack: The pack's directory.
        attempt: The attempt that runs.
        killed_before: The killed runner after which it runs; None where there was none.
        roster: Takes the members.
        ledger: Writes their states.
        note_requeue: Told of a member that starts again.
    """

    def __init__(
        self,
        *,
        pack: Path,
        attempt: int,
        killed_before: RunnerKill | None,
        roster: PackMembers,
        ledger: StateWriter,
        note_requeue: Callable[[Member], None],
    ) -> None:
        self._pack = pack
        self._attempt = attempt
        self._killed_before = killed_before
        self._roster = roster
        self._ledger = ledger
        self._note_requeue = note_requeue

    def adopt_taken(self) -> None:
        """Take in all that an earlier attempt has taken from the inbox."""
        for number in inbox.list_taken(str(self._pack)):
            if number not in self._roster.members:
                self.adopt(number)

    def adopt(self, number: int) -> None:
        """Take in a member; unless it has ended it waits for its start, again where it has run.

        Raises:
            StateError: What it runs, or its state, is missing or damaged.
        """
        spec = read_spec(self._pack, number)
        record = read_state(self._pack, number, self._attempt - 1)
        if record is None:
            record = StateRecord(MemberState.PENDING, self._attempt)
        member = Member(number, spec, record)
        self._roster.members[number] = member
        if member.is_final:
            self._ledger.note_end(record.exit_code, record.state)
            return
        if record.state is not MemberState.PENDING:
            self._note_requeue(member)
            member.record = dataclasses.replace(record, state=MemberState.PENDING)
            if self._killed_before is not None:
                member.record = tell_of_restart(member.record, self._killed_before)
        # What an earlier attempt was waiting for is over.
        waited = member.record.reason
        is_over = ALONE_FIRST in waited or is_ramp_reason(waited) or is_time_reason(waited)
        stale = {"reason": ""} if is_over else {}
        self._ledger.write(member, MemberState.PENDING, **stale)
        self._roster.waiting.append(number)
