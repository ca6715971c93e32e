"""Starting waiting members in places that are free, until none is left and the pack is closed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.end_causes import EndCause
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.why_not_now import is_waiting_reason
from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.launch.start_member import MemberStarter
from slurm_colloc.runtime.outcome.end_member import MemberEnds
from slurm_colloc.runtime.outcome.verdict import Verdict
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.requeue_after_kill import tell_of_restart
from slurm_colloc.runtime.queue.may_start import StartQueue
from slurm_colloc.runtime.queue.measured_degree import MeasuredDegree
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.probe_members import ProbeWindow
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.member_states import StateRecord, read_state
from slurm_colloc.store.pack.pack_directory import read_spec
from slurm_colloc.store.pack.runner_kills import RunnerKill


class PlaceFiller:
    """Starts the members that may start.

    Args:
        pack: The pack's directory.
        members: Its members and places.
        start_queue: Which member starts next.
        probe_window: Told of a member that starts.
        measured_degree: As many as are likely to run at once in the end.
        gpu_mode: Whether any may start here at all.
        starter: Starts members.
        ends: Told of those that could not be started.
        states: Writes their states.
        intake: Takes in new members.
        check_fence: Called before a start; raises where a newer attempt has begun.
    """

    def __init__(
        self,
        *,
        pack: Path,
        members: PackMembers,
        start_queue: StartQueue,
        probe_window: ProbeWindow,
        measured_degree: MeasuredDegree,
        gpu_mode: GpuMode,
        starter: MemberStarter,
        ends: MemberEnds,
        states: StateWriter,
        intake: MemberIntake,
        check_fence: Callable[[], None],
    ) -> None:
        self._pack = pack
        self._members = members
        self._start_queue = start_queue
        self._probe_window = probe_window
        self._measured_degree = measured_degree
        self._gpu_mode = gpu_mode
        self._starter = starter
        self._ends = ends
        self._states = states
        self._intake = intake
        self._check_fence = check_fence

    def work(self) -> None:
        """Take what has entered, and start as many as may run."""
        for number in inbox.list_waiting(str(self._pack)) or []:
            if number not in self._members.by_number and inbox.take(str(self._pack), number):
                self._intake.adopt(number)
        if self._gpu_mode.refusal:
            self._refuse_all()
            return
        while (member := self._start_queue.find_start()) is not None:
            self._probe_window.open_for(member)
            self._check_fence()
            self._start(member)

    def close(self) -> bool:
        """Close the pack if nothing waits; False if something has entered meanwhile."""
        if self._start_queue.find_next() is not None or not inbox.close(str(self._pack)):
            return False
        # A fenced attempt may have taken an entry before it noticed.
        self._intake.adopt_taken()
        return self._start_queue.leave_behind()

    def _start(self, member: Member) -> None:
        place = self._members.find_place(member.spec.plan.cpus)
        assert place is not None
        self._members.waiting.remove(member.number)
        place.occupant = member.number
        problem = None
        try:
            if self._starter.start(member, place, self._measured_degree.likely_degree):
                return
        except (OSError, StateError) as error:
            problem = error
        if problem is None or (
            isinstance(problem, FileNotFoundError)
            and self._starter.fall_back(
                member, f"{problem.filename} is not installed or not in PATH"
            )
        ):
            # It was held at the last moment, or is started in another way.
            self._ends.free(member)
            self._members.waiting.appendleft(member.number)
            return
        self._ends.end(
            member, Verdict(MemberState.FAILED, None, f"it could not be started: {problem}")
        )

    def _refuse_all(self) -> None:
        """None may start here: the GPU cannot be shared in the only way that was allowed."""
        for number in list(self._members.waiting):
            member = self._members.by_number[number]
            if not is_held(self._pack, number):
                self._members.waiting.remove(number)
                # One that has run before had a daemon, and lost it.
                cause = EndCause.MPS_GONE if member.record.starts else EndCause.NOT_STARTED
                reason = self._gpu_mode.refusal
                self._states.write_end(member, MemberState.FAILED, None, reason, cause=cause.value)


class MemberIntake:
    """Takes in members, new ones and those of earlier attempts.

    Args:
        pack: The pack's directory.
        attempt: The attempt that runs.
        killed_before: The killed runner after which it runs; None where there was none.
        members: Takes the members.
        states: Writes their states.
        note_requeue: Told of a member that starts again.
    """

    def __init__(
        self,
        *,
        pack: Path,
        attempt: int,
        killed_before: RunnerKill | None,
        members: PackMembers,
        states: StateWriter,
        note_requeue: Callable[[Member], None],
    ) -> None:
        self._pack = pack
        self._attempt = attempt
        self._killed_before = killed_before
        self._members = members
        self._states = states
        self._note_requeue = note_requeue

    def adopt_taken(self) -> None:
        """Take in all that an earlier attempt has taken from the inbox."""
        for number in inbox.list_taken(str(self._pack)):
            if number not in self._members.by_number:
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
        self._members.by_number[number] = member
        if member.is_final:
            self._states.note_end(record.exit_code, record.state)
            return
        if record.state is not MemberState.PENDING:
            self._note_requeue(member)
            member.record = dataclasses.replace(record, state=MemberState.PENDING)
            if self._killed_before is not None:
                member.record = tell_of_restart(member.record, self._killed_before)
        # What an earlier attempt was waiting for is over.
        stale = {"reason": ""} if is_waiting_reason(member.record.reason) else {}
        self._states.write(member, MemberState.PENDING, **stale)
        self._members.waiting.append(number)
