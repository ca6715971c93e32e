"""Members as they start and end: reading what their wrappers wrote, and what it means."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.fate import FateWatch
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.ledger import Ledger
from slurm_colloc.runtime.roster import Member, Roster
from slurm_colloc.runtime.starter import Starter
from slurm_colloc.runtime.verdict import Verdict, judge_end, read_kill_reason
from slurm_colloc.slurm.client import SlurmCommands


class Tender:
    """Follows the members' processes.

    Args:
        allocation: The allocation.
        roster: The members.
        starter: Reads what their wrappers wrote.
        ledger: Writes their states.
        fate: Is told of what the runner did not do itself.
        journal: The pack's log.
        slurm: Slurm, or None where the pack runs without it.
        keeps_time: The runner keeps the members' wall limits; Slurm does it for a lone member.
    """

    def __init__(
        self,
        *,
        allocation: Allocation,
        roster: Roster,
        starter: Starter,
        ledger: Ledger,
        fate: FateWatch,
        journal: Journal,
        slurm: SlurmCommands | None,
        keeps_time: bool,
    ) -> None:
        self._allocation = allocation
        self._roster = roster
        self._starter = starter
        self._ledger = ledger
        self._fate = fate
        self._journal = journal
        self._slurm = slurm
        self._keeps_time = keeps_time
        self.undecided: dict[int, Verdict] = {}

    def collect_started(self) -> None:
        """Note the members whose wrappers have come up."""
        now = time.monotonic()
        for member in self._roster.running():
            if not member.is_starting:
                continue
            started = self._starter.read_started(member)
            if started is None:
                continue
            self._note_start(member, started, now)

    def _note_start(self, member: Member, started: dict[str, Any], now: float) -> None:
        plan, job = member.spec.plan, member.spec.job
        member.pid = started["pid"]
        member.wrapper_pid = started["wrapper_pid"]
        place = self._roster.place_of(member.number)
        bound = place.choose_cpus(plan.cpus) if place else ()
        step = started["step"]
        if plan.wall_limit_s is not None and self._keeps_time:
            member.deadline = now + plan.wall_limit_s
            if job.signal is not None:
                member.signal_at = member.deadline - job.signal.seconds_before_end
        self._ledger.write(
            member,
            MemberState.RUNNING,
            starts=member.record.starts + 1,
            started_at=started["at"],
            ended_at=None,
            exit_code=None,
            node=self._allocation.node,
            gpus=self._allocation.gpus,
            cpus=bound,
            step=None if step is None else f"{self._allocation.job_id}.{step}",
            wall_limit_s=plan.wall_limit_s,
            reason="",
        )
        self._journal.write("start", member=member.number, step=step, cpus=bound)

    def collect_ended(self) -> None:
        """Judge the members whose processes have ended."""
        for member in self._roster.running():
            assert member.process is not None
            status = member.process.poll()
            if status is None:
                continue
            if member.is_starting:
                started = self._starter.read_started(member)
                if started is not None:
                    self._note_start(member, started, time.monotonic())
            if self._starter.outlives_its_srun(member):
                if not member.is_orphan:
                    member.is_orphan = True
                    self._journal.write("srun_lost", member=member.number, status=status)
                continue
            self._judge(member, status)

    def _judge(self, member: Member, status: int) -> None:
        log = self._starter.read_log(member)
        verdict = judge_end(
            self._starter.read_exit(member),
            started=member.pid is not None,
            srun_status=status,
            log=log,
            asked=member.asked,
        )
        self._starter.end_inner_steps(member, self._slurm)
        if verdict.never_started and self._starter.fall_back(member, verdict.reason):
            self.release(member)
            self._roster.waiting.appendleft(member.number)
            return
        if verdict.foreign or (self._fate.was_terminated and member.asked is None):
            self._fate.open(read_kill_reason(log))
            member.asked = None
            self.release(member, vacate_only=True)
            self.undecided[member.number] = verdict
            return
        self.finish(member, verdict)

    def finish(self, member: Member, verdict: Verdict) -> None:
        """Write how a member ended and give its place to the next."""
        assert verdict.state is not None
        self.release(member)
        if verdict.state is MemberState.PENDING:
            self._ledger.write(member, MemberState.PENDING, reason=verdict.reason, exit_code=None)
            self._roster.waiting.append(member.number)
            self._journal.write("requeue", member=member.number)
            return
        self._ledger.write_end(member, verdict.state, verdict.exit_code, verdict.reason)
        self._journal.write(
            "member_end", member=member.number, state=verdict.state, exit=verdict.exit_code
        )

    def release(self, member: Member, *, vacate_only: bool = False) -> None:
        """Forget a member's process and free its place."""
        member.process = None
        member.pid = member.wrapper_pid = None
        member.deadline = member.signal_at = member.end_by = None
        member.is_orphan = False
        if not vacate_only:
            member.asked = None
        self._roster.vacate(member.number)
        self._starter.clean(member)

    def resume(self) -> None:
        """The signal was meant for the members alone: what ended counts as it ended."""
        undecided, self.undecided = self.undecided, {}
        for number, verdict in undecided.items():
            if verdict.state is None:
                # Slurm says so where it was asked to; otherwise somebody killed its processes.
                state = MemberState.CANCELLED if verdict.reason else MemberState.FAILED
                verdict = dataclasses.replace(  # noqa: PLW2901
                    verdict, state=state, reason="its step was killed"
                )
            self.finish(self._roster.members[number], verdict)
        self._journal.write("goes_on")
