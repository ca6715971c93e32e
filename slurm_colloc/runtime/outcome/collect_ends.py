"""Members whose processes have ended: the verdict, which may have to wait for Slurm's decision."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.guarded_steps import GuardedSteps
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.collect_starts import StartCollector
from slurm_colloc.runtime.launch.inner_steps import InnerSteps
from slurm_colloc.runtime.launch.member_processes import (
    ends_before_its_srun,
    outlives_its_srun,
    read_exit,
    read_log,
)
from slurm_colloc.runtime.launch.start_member import MemberStarter
from slurm_colloc.runtime.outcome.end_member import MemberEnds
from slurm_colloc.runtime.outcome.verdict import (
    StopReason,
    Verdict,
    judge_process_end,
    read_kill_reason,
)
from slurm_colloc.runtime.pack.slurm_decision import ASK_INTERVAL_S, SlurmDecision
from slurm_colloc.runtime.queue.members import Member, PackMembers

SRUN_GRACE_S = 10.0
"""How long an srun may still run once the wrapper has written how its member ended. On 26.05 it
waits until slurmctld has noted the end of the step: minutes, where slurmctld is away."""


class EndCollector:
    """Collects the ends of members' processes.

    Args:
        members: The members.
        starts: Notes starts that were not seen before the end.
        starter: Does without job steps where they do not work.
        inner_steps: The steps that members' own scripts have started.
        slurm_decision: Is told of what the runner did not do itself.
        ends: Does all that an end calls for.
        journal: The pack's log.
        steps: Keeps one member's end apart from those of the others.

    Attributes:
        undecided: Verdicts that wait for Slurm's decision about the pack, by member number.
    """

    def __init__(
        self,
        *,
        members: PackMembers,
        starts: StartCollector,
        starter: MemberStarter,
        inner_steps: InnerSteps,
        slurm_decision: SlurmDecision,
        ends: MemberEnds,
        journal: Journal,
        steps: GuardedSteps,
    ) -> None:
        self._members = members
        self._starts = starts
        self._starter = starter
        self._inner_steps = inner_steps
        self._slurm_decision = slurm_decision
        self._ends = ends
        self._journal = journal
        self._steps = steps
        self._decided: set[int] = set()
        self.undecided: dict[int, Verdict] = {}

    def collect(self) -> None:
        """Judge the members whose processes have ended."""
        for member in self._members.with_process():
            self._steps.run(
                f"the end of member {member.number}",
                partial(self._look_at, member),
                partial(self._end_unjudged, member),
            )
        self._end_decided()

    def _look_at(self, member: Member) -> None:
        assert member.process is not None
        status = member.process.poll()
        if status is None:
            if not self._has_left_its_srun(member):
                return
            self._journal.write("srun_left", member=member.number)
            # The record of the end says all; subprocess itself collects the srun later.
            status = 0
        self._starts.note(member)
        if outlives_its_srun(member):
            if not member.is_orphan:
                member.is_orphan = True
                self._journal.write("srun_lost", member=member.number, status=status)
            return
        self._judge(member, status)

    def _end_unjudged(self, member: Member, error: Exception) -> bool:
        """Its place is not kept for ever for what cannot be read."""
        if member.is_final or (member.process is not None and member.process.poll() is None):
            return False
        self.undecided.pop(member.number, None)
        self._ends.end_unjudged(member, f"how it ended cannot be found out: {error}")
        return True

    def _has_left_its_srun(self, member: Member) -> bool:
        """True where the wrapper has long written its end, and srun still waits for something."""
        if not ends_before_its_srun(member):
            return False
        now = time.monotonic()
        if member.ended_at is None:
            member.ended_at = now
        return now >= member.ended_at + SRUN_GRACE_S

    def _judge(self, member: Member, status: int) -> None:
        log = read_log(member)
        verdict = judge_process_end(
            read_exit(member),
            started=member.pid is not None,
            srun_status=status,
            log=log,
            asked=member.asked,
        )
        if verdict.ended_at is None:
            # What Slurm is asked about first may be decided a minute from now.
            verdict = dataclasses.replace(verdict, ended_at=time.time())
        self._inner_steps.end(member)
        if not self._may_be_the_packs(member, verdict):
            self._ends.end(member, verdict)
            return
        wait_s = ASK_INTERVAL_S if verdict.too_late else 0.0
        self._slurm_decision.open(read_kill_reason(log), ask_in_s=wait_s)
        self._ends.free(member)
        self.undecided[member.number] = verdict

    def _may_be_the_packs(self, member: Member, verdict: Verdict) -> bool:
        """Whether a member's end may be that of its pack, which Slurm alone can tell."""
        if verdict.foreign:
            return True
        if member.asked is not None:
            return False
        # So may be that of a step that does not come up.
        is_unstarted = verdict.never_started and verdict.state is MemberState.FAILED
        is_step = member.launcher == "srun"
        return (is_unstarted and is_step) or self._slurm_decision.was_terminated

    def resume(self) -> None:
        """The signal was meant for the members alone: what ended counts as it ended."""
        self._decided.update(self.undecided)
        self._journal.write("goes_on")
        self._end_decided()

    def _end_decided(self) -> None:
        for number in sorted(self._decided):
            member = self._members.by_number[number]
            self._steps.run(
                f"the end of member {number}",
                partial(self._resume, member),
                partial(self._end_unjudged, member),
            )
        self._decided &= self.undecided.keys()

    def _resume(self, member: Member) -> None:
        verdict = self.undecided[member.number]
        runs_again = verdict.too_late or (
            verdict.never_started and self._starter.fall_back(member, verdict.reason)
        )
        if member.asked in (StopReason.CANCEL, StopReason.REQUEUE) and (
            runs_again or verdict.state is not MemberState.COMPLETED
        ):
            # It was asked meanwhile, while csub still showed the member running.
            is_cancel = member.asked is StopReason.CANCEL
            state = MemberState.CANCELLED if is_cancel else MemberState.PENDING
            verdict = dataclasses.replace(verdict, state=state, reason=member.asked.value)
        elif runs_again:
            del self.undecided[member.number]
            self._members.waiting.appendleft(member.number)
            return
        elif verdict.state is None:
            # Slurm says so where it was asked to; otherwise its processes were killed.
            state = MemberState.CANCELLED if verdict.reason else MemberState.FAILED
            verdict = dataclasses.replace(verdict, state=state, reason="its step was killed")
        self._ends.end(member, verdict)
        del self.undecided[member.number]
