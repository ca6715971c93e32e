"""Members as they start and end: reading what their wrappers wrote, and what it means."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.gpu.mps_clients import MpsClients
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.member_processes import (
    InnerSteps,
    clean,
    ends_before_its_srun,
    outlives_its_srun,
    read_exit,
    read_log,
    read_started,
)
from slurm_colloc.runtime.launch.start_member import MemberStarter
from slurm_colloc.runtime.outcome.judge_end import BlameFinder
from slurm_colloc.runtime.outcome.verdict import StopReason, Verdict, judge_end, read_kill_reason
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.slurm_decision import ASK_INTERVAL_S, SlurmDecision
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import Member, PackMembers

SRUN_GRACE_S = 10.0
"""How long an srun may still run once the wrapper has written how its member ended. On 26.05 it
waits until slurmctld has noted the end of the step: minutes, where slurmctld is away."""


class EndCollector:
    """Follows the members' processes.

    Args:
        allocation: The allocation.
        roster: The members.
        starter: Does without job steps where they do not work.
        inner_steps: The steps that members' own scripts have started.
        ledger: Writes their states.
        fate: Is told of what the runner did not do itself.
        journal: The pack's log.
        assessor: Says why a member ended.
        clients: Follows those that run under MPS.
        keeps_time: The runner keeps the members' wall limits; Slurm does it for a lone member.
    """

    def __init__(
        self,
        *,
        allocation: Allocation,
        roster: PackMembers,
        starter: MemberStarter,
        inner_steps: InnerSteps,
        ledger: StateWriter,
        fate: SlurmDecision,
        journal: Journal,
        keeps_time: bool,
        assessor: BlameFinder,
        clients: MpsClients,
    ) -> None:
        self._assessor = assessor
        self._clients = clients
        self._allocation = allocation
        self._roster = roster
        self._starter = starter
        self._inner_steps = inner_steps
        self._ledger = ledger
        self._fate = fate
        self._journal = journal
        self._keeps_time = keeps_time
        self.undecided: dict[int, Verdict] = {}

    def collect_started(self) -> None:
        """Note the members whose wrappers have come up."""
        now = time.monotonic()
        for member in self._roster.running():
            if not member.is_starting:
                continue
            started = read_started(member)
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
            gpu=member.gpu,
            cause="",
        )
        if member.gpu is not None and member.gpu.mode == SharingMode.MPS.value:
            self._clients.watch(member)
        use = None if member.gpu is None else dataclasses.asdict(member.gpu)
        self._journal.write("start", member=member.number, step=step, cpus=bound, gpu=use)

    def note_clients(self) -> None:
        """Write down who has become an MPS client."""
        while self._clients.news:
            number, is_client = self._clients.news.popitem()
            member = self._roster.members.get(number)
            if member is not None and member.process is not None and member.gpu is not None:
                member.gpu = dataclasses.replace(member.gpu, is_mps_client=is_client)
                self._ledger.write(member, member.record.state, gpu=member.gpu)

    def collect_ended(self) -> None:
        """Judge the members whose processes have ended."""
        for member in self._roster.running():
            assert member.process is not None
            status = member.process.poll()
            if status is None:
                if not self._has_left_its_srun(member):
                    continue
                self._journal.write("srun_left", member=member.number)
                # The record of the end says all; subprocess itself collects the srun later.
                status = 0
            if member.is_starting:
                started = read_started(member)
                if started is not None:
                    self._note_start(member, started, time.monotonic())
            if outlives_its_srun(member):
                if not member.is_orphan:
                    member.is_orphan = True
                    self._journal.write("srun_lost", member=member.number, status=status)
                continue
            self._judge(member, status)

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
        verdict = judge_end(
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
        # A step that does not come up may be the job's end, which Slurm is asked about first.
        unstarted = verdict.never_started and verdict.state is MemberState.FAILED
        unstarted = unstarted and member.launcher == "srun" and member.asked is None
        if verdict.foreign or unstarted or (self._fate.was_terminated and member.asked is None):
            wait_s = ASK_INTERVAL_S if verdict.too_late else 0.0
            self._fate.open(read_kill_reason(log), ask_in_s=wait_s)
            member.asked = None
            self.release(member, vacate_only=True)
            self.undecided[member.number] = verdict
            return
        self.finish(member, verdict)

    def finish(self, member: Member, verdict: Verdict) -> None:
        """Write how a member ended and give its place to the next."""
        aftermath = self._assessor.assess(member, verdict)
        verdict = aftermath.verdict
        assert verdict.state is not None
        was_stopped = member.asked is StopReason.STEPPED_BACK
        self.release(member)
        told = {
            "cause": aftermath.cause.value if aftermath.cause else "",
            # What an earlier start has shown counts as well.
            "evidence": tuple(dict.fromkeys((*member.record.evidence, *aftermath.evidence))),
            "retries": aftermath.retries,
            "gpu": member.gpu,
        }
        if verdict.state is MemberState.PENDING:
            self._ledger.write(
                member, MemberState.PENDING, reason=verdict.reason, exit_code=None, **told
            )
            if aftermath.cause is None and not was_stopped:
                self._roster.waiting.append(member.number)
            else:
                # It has lost its turn; who has had none yet is submitted again, if time runs out.
                self._roster.waiting.appendleft(member.number)
            self._journal.write("requeue", member=member.number, reason=verdict.reason)
            return
        self._ledger.write_end(
            member,
            verdict.state,
            verdict.exit_code,
            verdict.reason,
            ended_at=verdict.ended_at,
            **told,
        )
        self._journal.write(
            "member_end",
            member=member.number,
            state=verdict.state,
            exit=verdict.exit_code,
            cause=told["cause"],
        )

    def release(self, member: Member, *, vacate_only: bool = False) -> None:
        """Forget a member's process and free its place."""
        member.process = None
        member.pid = member.wrapper_pid = None
        member.deadline = member.signal_at = member.stop_at = None
        member.end_by = member.ended_at = None
        member.is_orphan = member.is_probed = False
        if not vacate_only:
            member.asked = None
        self._roster.vacate(member.number)
        clean(member)

    def resume(self) -> None:
        """The signal was meant for the members alone: what ended counts as it ended."""
        undecided, self.undecided = self.undecided, {}
        for number, verdict in undecided.items():
            member = self._roster.members[number]
            if verdict.too_late or (
                verdict.never_started and self._starter.fall_back(member, verdict.reason)
            ):
                self._roster.waiting.appendleft(number)
                continue
            if verdict.state is None:
                # Slurm says so where it was asked to; otherwise somebody killed its processes.
                state = MemberState.CANCELLED if verdict.reason else MemberState.FAILED
                verdict = dataclasses.replace(  # noqa: PLW2901
                    verdict, state=state, reason="its step was killed"
                )
            self.finish(self._roster.members[number], verdict)
        self._journal.write("goes_on")
