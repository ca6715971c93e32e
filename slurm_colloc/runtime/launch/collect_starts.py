"""Members whose wrappers have come up: their start is written down, and their time runs."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.gpu.mps_clients import MpsClients
from slurm_colloc.runtime.guarded_steps import GuardedSteps
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.member_processes import read_started
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import Member, PackMembers


class StartCollector:
    """Notes the starts of members.

    Args:
        allocation: The allocation.
        members: The members.
        states: Writes their states.
        journal: The pack's log.
        keeps_time: The runner keeps the members' wall limits; Slurm does it for a lone member.
        clients: Follows those that run under MPS.
        steps: Keeps one member's start apart from those of the others.
    """

    def __init__(
        self,
        *,
        allocation: Allocation,
        members: PackMembers,
        states: StateWriter,
        journal: Journal,
        keeps_time: bool,
        clients: MpsClients,
        steps: GuardedSteps,
    ) -> None:
        self._steps = steps
        self._allocation = allocation
        self._members = members
        self._states = states
        self._journal = journal
        self._keeps_time = keeps_time
        self._clients = clients

    def collect(self) -> None:
        """Note the members whose wrappers have come up."""
        for member in self._members.with_process():
            self._steps.run(f"the start of member {member.number}", partial(self.note, member))

    def note(self, member: Member) -> None:
        """Note the start of a member, if its wrapper has come up since the last look."""
        started = read_started(member) if member.is_starting else None
        if started is None:
            return
        plan = member.spec.plan
        member.pid = started["pid"]
        member.wrapper_pid = started["wrapper_pid"]
        place = self._members.place_of(member.number)
        bound = place.choose_cpus(plan.cpus) if place else ()
        step = started["step"]
        if self._keeps_time:
            member.begin_time(time.monotonic())
        self._states.write(
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
            at_door=member.is_at_door,
        )
        if member.gpu is not None and member.gpu.is_under_mps:
            self._clients.watch(member)
        use = None if member.gpu is None else dataclasses.asdict(member.gpu)
        self._journal.write("start", member=member.number, step=step, cpus=bound, gpu=use)

    def note_clients(self) -> None:
        """Write down which members have become MPS clients."""
        while self._clients.news:
            number, is_client = self._clients.news.popitem()
            member = self._members.by_number.get(number)
            if member is not None and member.process is not None and member.gpu is not None:
                member.gpu = dataclasses.replace(member.gpu, is_mps_client=is_client)
                self._states.write(member, member.record.state, gpu=member.gpu)
