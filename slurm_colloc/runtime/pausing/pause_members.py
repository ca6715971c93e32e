"""Pausing members, and what a pause is for them: no time at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from slurm_colloc.host.system.node_processes import ProcessId, identify, read_process
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.pausing.pause_obstacles import find_pause_obstacle
from slurm_colloc.runtime.pausing.step_processes import (
    StepProcesses,
    StoppedMember,
    continue_stopped,
)
from slurm_colloc.runtime.programs.pause_lease import LEASE_S, RENEW_S
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_pauses import MEASURED, PARKED, append_change

LOOK_S = 1.0
"""How often it is looked whether paused members still are."""


class MemberPauser:
    """Stops the processes of members, and lets them go on.

    Args:
        pack: The pack's directory.
        journal: The pack's log.
        clock: Seconds that only grow.
    """

    def __init__(
        self, pack: Path, journal: Journal, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pack = pack
        self._journal = journal
        self._clock = clock
        self._processes = StepProcesses(str(pack))
        self._stopped: dict[int, StoppedMember] = {}
        self._obstacles: dict[int, str] = {}
        self._looked_at = 0.0

    def find_obstacles(self, members: Iterable[Member]) -> dict[int, str]:
        """Why members are never to be paused, by number; those are missing that may be."""
        wanted = list(members)
        found = self._processes.find(_list_wrappers(wanted))
        obstacles = {
            member.number: find_pause_obstacle(found.get(member.number, ()))
            if member.spec.job.pause
            else "--no-pause"
            for member in wanted
        }
        for number, obstacle in obstacles.items():
            if obstacle and self._obstacles.get(number) != obstacle:
                self._obstacles[number] = obstacle
                self._journal.write("not_paused", member=number, reason=obstacle)
        return {number: obstacle for number, obstacle in obstacles.items() if obstacle}

    def get_obstacle(self, number: int) -> str:
        """Why a member is never paused, as last found; empty where it may be."""
        return self._obstacles.get(number, "")

    def pause(self, members: Iterable[Member], reason: str = MEASURED) -> None:
        """Stop all processes of members; those that are paused stay so.

        Args:
            members: Running members.
            reason: `measured` or `parked`.
        """
        wanted = list(members)
        new = [
            m
            for m in wanted
            # One that is being ended has its time to save what it has.
            if m.paused_at is None and m.wrapper_pid is not None and m.end_by is None
        ]
        if reason != MEASURED and (others := [m for m in wanted if m.paused_at is not None]):
            # They stay, for another reason.
            self._write(paused=others, resumed=others, reason=reason)
        if not new:
            return
        # Written first: what lies in between is a pause by what is read later.
        self._write(paused=new, reason=reason)
        now = self._clock()
        for member in new:
            self._begin(member)
            member.paused_at = now
        self._processes.stop(_list_wrappers(new), self._stopped)
        for member in new:
            if not self._stopped[member.number].is_whole:
                self._journal.write("not_wholly_paused", member=member.number)

    def resume(self, members: Iterable[Member]) -> None:
        """Let members go on; the time of their pauses counts for none of their limits."""
        paused = [member for member in members if member.paused_at is not None]
        if not paused:
            return
        for member in paused:
            stopped = self._stopped.pop(member.number, None)
            if stopped is not None:
                stopped.resume()
        now = self._clock()
        for member in paused:
            assert member.paused_at is not None
            member.add_time(now - member.paused_at)
            member.paused_at = None
        self._write(resumed=paused)

    def forget(self, member: Member) -> None:
        """A member has ended, or is gone."""
        stopped = self._stopped.pop(member.number, None)
        if stopped is not None:
            # Its wrapper may have been killed, and what it has started be left.
            stopped.resume()
        if member.paused_at is not None:
            member.paused_at = None
            self._write(resumed=[member])

    def check(self, members: Iterable[Member]) -> None:
        """See whether paused members still are, and renew their pauses.

        Where all go on Slurm had suspended the job, and has resumed it: they are stopped again.
        Else a member may have been sent a signal, which is to be heard: it goes on. A process that
        has come since is stopped.
        """
        now = self._clock()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        paused = [m for m in members if m.paused_at is not None and m.number in self._stopped]
        for member in paused:
            stopped = self._stopped[member.number]
            if now >= stopped.lasts_until:
                self._pause_again(member, stopped.lasts_until)
            elif now >= stopped.lasts_until - LEASE_S + RENEW_S:
                stopped.renew(now)
        let_go = [m for m in paused if any(map(_runs, self._stopped[m.number].processes))]
        if len(let_go) > 1 and let_go == paused:
            for member in let_go:
                self._journal.write("paused_again", member=member.number)
                self._begin(member)
        elif let_go:
            for member in let_go:
                self._journal.write("goes_on", member=member.number, reason="a signal")
            self.resume(let_go)
            paused = [m for m in paused if m not in let_go]
        if paused:
            self._processes.stop(_list_wrappers(paused), self._stopped)

    def _begin(self, member: Member) -> None:
        """Tell its wrapper that it is paused, before it is."""
        wrapper = None if member.wrapper_pid is None else identify(member.wrapper_pid)
        stopped = self._stopped[member.number] = StoppedMember(wrapper=wrapper)
        stopped.renew(self._clock())

    def _pause_again(self, member: Member, lapsed_at: float) -> None:
        """This process hung, and the member has gone on meanwhile: that was no pause."""
        assert member.paused_at is not None
        now = self._clock()
        self._write(resumed=[member], at=time.time() - (now - lapsed_at))
        self._write(paused=[member], reason=PARKED if member.is_parked else MEASURED)
        member.add_time(lapsed_at - member.paused_at)
        member.paused_at = now
        self._begin(member)
        self._processes.stop(_list_wrappers([member]), self._stopped)
        self._journal.write("paused_again", member=member.number, reason="the runner hung")

    def continue_left(self) -> None:
        """Let go on what an earlier attempt on this node has left stopped."""
        if count := continue_stopped(str(self._pack)):
            self._journal.write("continued", processes=count)

    def _write(
        self,
        *,
        paused: Iterable[Member] = (),
        resumed: Iterable[Member] = (),
        reason: str = MEASURED,
        at: float | None = None,
    ) -> None:
        try:
            append_change(
                self._pack,
                time.time() if at is None else at,
                paused=[(m.number, m.record.starts) for m in paused],
                resumed=[(m.number, m.record.starts) for m in resumed],
                reason=reason,
            )
        except OSError as error:
            # A report will count it as time of its own; no member is kept waiting for that.
            self._journal.write("pause_not_written", reason=str(error))


def _list_wrappers(members: Iterable[Member]) -> dict[int, int]:
    return {m.number: m.wrapper_pid for m in members if m.wrapper_pid is not None}


def _runs(process: ProcessId) -> bool:
    found = read_process(process.pid)
    return found is not None and found.id == process and found.state not in "TtZX"
