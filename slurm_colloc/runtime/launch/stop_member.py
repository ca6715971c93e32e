"""Ending and signalling members: time limits, `--signal`, and what requests call for."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from functools import partial

from slurm_colloc.errors import SlurmError, StateError
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.guarded_steps import RETRY_S, GuardedSteps
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.inner_steps import InnerSteps
from slurm_colloc.runtime.launch.member_processes import kill, terminate
from slurm_colloc.runtime.launch.path_watch import PathWatch
from slurm_colloc.runtime.outcome.cancellation_lines import CancellationLines
from slurm_colloc.runtime.outcome.verdict import StopReason
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pausing.pause_members import MemberPauser
from slurm_colloc.runtime.queue.members import Member, PackMembers

KILL_MARGIN_S = 5.0
"""Beyond KillWait, after which the runner ends a wrapper that did not do it."""


class MemberControl:
    """What may happen to a member besides running to its end.

    Args:
        members: The members.
        inner_steps: The steps that their own scripts have started.
        states: Writes their states.
        pauser: Lets paused members go on before anything is sent to them.
        journal: The pack's log.
        steps: Keeps one member's limits apart from those of the others.
        kill_wait_s: From TERM to KILL.
        lines: Says in their output that they are ended, as slurmstepd does.
    """

    def __init__(
        self,
        *,
        members: PackMembers,
        inner_steps: InnerSteps,
        states: StateWriter,
        pauser: MemberPauser,
        journal: Journal,
        steps: GuardedSteps,
        kill_wait_s: float,
        lines: CancellationLines,
    ) -> None:
        self._lines = lines
        self._steps = steps
        self._members = members
        self._inner_steps = inner_steps
        self._states = states
        self._pauser = pauser
        self._journal = journal
        self._kill_wait_s = kill_wait_s
        self._path_watch = PathWatch(journal)

    def cancel(self, member: Member, reason: str) -> None:
        """Have a member end for good, whatever it is at: this may be called again and again.

        Args:
            member: The member.
            reason: By whom or why, for its state.
        """
        if member.process is not None:
            self.end(member, StopReason.CANCEL)
        elif member.number in self._members.waiting:
            self._members.waiting.remove(member.number)
            code = ExitCode(0, signal.SIGTERM)
            self._states.write_end(member, MemberState.CANCELLED, code, reason)
        else:
            # Its processes have ended, and what that means is not decided.
            member.asked = StopReason.CANCEL

    def requeue(self, member: Member) -> None:
        """Have a member end, and start again; one that waits does so anyway."""
        if member.process is not None:
            self.end(member, StopReason.REQUEUE)
        elif member.number not in self._members.waiting and member.asked is None:
            member.asked = StopReason.REQUEUE

    def signal(self, member: Member, number: int, *, steps_only: bool) -> None:
        """Send a signal to a member's script, or to the job steps that it has started.

        Raises:
            SlurmError: The steps were not signalled, for Slurm did not answer.
            StateError: It cannot be told whether there are steps.
        """
        # A stopped process would get it only later.
        self._pauser.resume([member])
        if steps_only:
            self._inner_steps.signal(member, number)
        elif member.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)  # noqa: TID251 - its own

    def end(self, member: Member, why: StopReason) -> None:
        """TERM to the member now, KILL after KillWait (the wrapper does both).

        What ends a member for good takes the place of what would have it run again.
        """
        overridden: set[StopReason | None] = {None}
        if why is StopReason.CANCEL:
            overridden |= {StopReason.REQUEUE, StopReason.FAULT}
        if member.asked in overridden:
            member.asked = why
            if member.end_by is None:
                self._terminate(member)

    def end_stuck(self, numbers: Iterable[int]) -> None:
        """End those that keep a broken MPS server from mending, unless they are being ended."""
        for number in numbers:
            member = self._members.by_number[number]
            if member.process is not None and member.asked is None:
                self.end(member, StopReason.FAULT)

    def _terminate(self, member: Member) -> None:
        member.end_by = time.monotonic() + self._kill_wait_s + KILL_MARGIN_S
        self._pauser.resume([member])
        self._lines.write(member, member.asked)
        terminate(member)
        # What its wrapper does does not depend on it.
        with contextlib.suppress(SlurmError, StateError):
            self._inner_steps.signal(member, signal.SIGTERM)
        why = "" if member.asked is None else member.asked.value
        self._journal.write("terminate", member=member.number, reason=why)

    def enforce_limits(self) -> None:
        """Send what is due: `--signal`, the end of a wall limit, the last KILL."""
        look = partial(self._path_watch.look, self._members.with_process())
        self._steps.run("the PATH of members", look)
        for member in self._members.with_process():
            name = f"the limits of member {member.number}"
            self._steps.run(name, partial(self._enforce, member, time.monotonic()))

    def _enforce(self, member: Member, now: float) -> None:
        # The harshest first: what fails below must not stand in its way.
        if member.end_by is not None and now >= member.end_by:
            member.end_by = now + KILL_MARGIN_S
            kill(member)
        if member.paused_at is not None:
            # Its time stands still.
            return
        if member.deadline is not None and now >= member.deadline and member.asked is None:
            self.end(member, StopReason.TIMEOUT)
        if member.signal_at is not None and now >= member.signal_at:
            request = member.spec.job.signal
            assert request is not None
            # Where it fails another turn tries again: it may be all that makes it save its work.
            member.signal_at = now + RETRY_S
            self.signal(member, request.number, steps_only=not request.batch_shell)
            member.signal_at = None
