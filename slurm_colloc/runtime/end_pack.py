"""A pack whose job Slurm ends: its members' last states, and what may be killed before them.

Also: what follows the last member's end: its mails, the jobs that wait for it, the pack's summary.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.runtime.chain_links import ChainLinks
from slurm_colloc.runtime.collect_ends import GOES_ON, EndCollector, SlurmDecision
from slurm_colloc.runtime.fill_places import MemberIntake
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.member_dependencies import Dependents
from slurm_colloc.runtime.member_mails import LAST_WAIT_S, MemberMails
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.runtime.write_states import CancellationLines, StateWriter
from slurm_colloc.store import inbox
from slurm_colloc.store.member_states import is_held
from slurm_colloc.store.pack_directory import write_ended

LET_GO_SHARE = 0.3
"""Of KillWait, after which members that have not ended at TERM are not counted on any more."""


@dataclass(eq=False, kw_only=True)
class PackEnd:
    """Ends one attempt once Slurm has decided so.

    Attributes:
        pack: The attempt of the pack.
        states: Writes their states.
        slurm_decision: What Slurm says of the job.
        ends: Knows how members ended before Slurm had said it.
        gpu_mode: Is told to let go before Slurm kills.
        intake: Takes in a new member.
        kill_wait_s: Slurm's KillWait.
        lines: Says in their output that they were ended, as slurmstepd does.
        chain: Whether there is a next link, for what a time limit ends.
    """

    pack: PackContext
    states: StateWriter
    slurm_decision: SlurmDecision
    ends: EndCollector
    gpu_mode: GpuMode
    intake: MemberIntake
    kill_wait_s: float
    lines: CancellationLines
    chain: ChainLinks

    def __post_init__(self) -> None:
        self._let_go_at: float | None = None
        self._told: set[int] = set()

    def work(self) -> bool:
        """Go on with the end; True once every member has ended and all is written."""
        if self.pack.members.with_process():
            self._expect_kill()
            return False
        self._settle()
        return True

    def list_due(self) -> list[float]:
        """When something is to be done (monotonic clock)."""
        return [] if self._let_go_at is None else [self._let_go_at]

    def _expect_kill(self) -> None:
        """Members do not end: Slurm will kill them after KillWait, and this process with them."""
        now = time.monotonic()
        if self._let_go_at is None:
            self._let_go_at = now + self.kill_wait_s * LET_GO_SHARE
            # As slurmstepd does: at the KILL it would be too late.
            verdict = self.slurm_decision.settle()
            if verdict is not None and verdict.state is not None:
                for member in self.pack.members.running():
                    self._say_ended(member, verdict.state)
        if now >= self._let_go_at:
            self._let_go_at = math.inf
            self.gpu_mode.let_go()

    def _settle(self) -> None:
        """Write what is certain; what Slurm has yet to say is left to those that read."""
        verdict = self.slurm_decision.settle()
        for member in self.pack.members.list_members():
            # That it was cancelled no later attempt would know.
            if member.asked is StopReason.CANCEL and not member.is_final:
                self._end(member, MemberState.CANCELLED, StopReason.CANCEL.value)
        if self.chain.goes_on and (verdict is None or verdict.state in {None, MemberState.TIMEOUT}):
            # One that saves in an instant has ended before its wrapper had Slurm's TERM.
            for number in self.ends.undecided:
                member = self.pack.members.by_number[number]
                if not member.is_final:
                    self.states.write(member, MemberState.PENDING, reason=GOES_ON)
            return
        if verdict is None or verdict.state is None:
            return
        # One that never had its turn is no time-out: the next csub call submits it again.
        stays = verdict.state is MemberState.TIMEOUT
        for number in [] if stays else inbox.list_waiting(str(self.pack.path)) or []:
            if inbox.take(str(self.pack.path), number):
                self.intake.adopt(number)
        for member in self.pack.members.by_number.values():
            is_left = member.record.starts == 0 or is_held(self.pack.path, member.number)
            if not member.is_final and not (stays and is_left):
                self._end(member, verdict.state, verdict.reason)
        if stays:
            # Slurm itself forgets it after some minutes.
            write_ended(self.pack.path, SlurmJobState.TIMEOUT)
        inbox.close(str(self.pack.path))

    def _end(self, member: Member, state: MemberState, reason: str) -> None:
        own = self.ends.undecided.get(member.number)
        self._say_ended(member, state)
        self.states.write_end(
            member,
            state,
            (own.exit_code if own else None) or ExitCode(0, signal.SIGTERM),
            reason,
            ended_at=own.ended_at if own else None,
        )

    def _say_ended(self, member: Member, state: MemberState) -> None:
        if member.asked is None and member.number not in self._told:
            self._told.add(member.number)
            self.lines.write(member, state)


# ----
# What follows the last member's end: its mails, the jobs that wait for it, the pack's summary.
#
# The GPU is free for others only once the Slurm job has ended, and nothing outlives that for
# certain. So all of it is begun at once, while the monitor and the MPS daemon are still being
# ended, and is waited for only for a moment. The next call of csub makes a summary that was not
# made (cli.await_summaries); jobs that wait for members start, at the latest, when the pack is
# over.

LAST_WORK_S = 2.0
"""How long the end of a pack waits for its summary, and for Slurm about jobs that wait for it."""


@dataclass(eq=False, kw_only=True)
class LastWork:
    """Does, alongside each other, what is left to do for a pack.

    Attributes:
        pack: The attempt of the pack.
        monitor: Has the summary made.
        dependents: Lets the jobs go that wait for members.
        mails: Sends the last mails.
    """

    pack: PackContext
    monitor: PackMonitor
    dependents: Dependents
    mails: MemberMails

    def __post_init__(self) -> None:
        self._begun_at = time.monotonic()

    def begin(self) -> None:
        """Begin with what needs neither the monitor's figures nor the last states."""
        self._begun_at = time.monotonic()
        self.pack.steps.run("the mails", self.mails.work)
        self.pack.steps.run("dependents", lambda: self.dependents.look(at_once=True))

    def finish(self, wait: Callable[[], None], *, summarizes: bool) -> None:
        """Wait for it within reason, and say what is left.

        Args:
            wait: Waits for a moment.
            summarizes: The pack has come to its own end, so it gets its summary.
        """
        since = time.monotonic()
        if summarizes:
            wants_mail = self.mails.waits_for_summary
            self.pack.steps.run(
                "the summary", lambda: self.monitor.begin_summary(wants_mail=wants_mail)
            )
        self.pack.steps.run("dependents", lambda: self.dependents.look(at_once=True))
        self.pack.steps.run("the mails", self.mails.work)
        while self._list_left(since):
            # The mail about a whole array has its table from the summary.
            is_made = not self.monitor.is_summarizing
            if is_made or time.monotonic() >= since + LAST_WORK_S:
                self.pack.steps.run("the mails", self.mails.release)
            wait()
            self.pack.steps.run("the mails", self.mails.work)
        left = self.monitor.has_summary_left, self.dependents.is_busy
        if any(left):
            self.pack.journal.write("left_over", summary=left[0], dependents=left[1])
        self.mails.give_up()

    def _list_left(self, since: float) -> list[str]:
        """What is still worth being waited for."""
        now = time.monotonic()
        is_early = now < since + LAST_WORK_S
        return [
            name
            for name, is_busy, may_take in (
                ("summary", self.monitor.is_summarizing, is_early),
                ("dependents", self.dependents.is_busy, is_early),
                ("mails", not self.mails.are_sent, now < self._begun_at + LAST_WAIT_S),
            )
            if is_busy and may_take
        ]
