"""The runner: the batch script of a pack. Who: the user; where: the pack's compute node.

It starts members as job steps, up to the degree at the same time, refills places that become
free, keeps time limits, and writes every member's state. It waits on signals: a child's end
(SIGCHLD), a request from csub or from inside a member (SIGURG), or the end of the job (SIGTERM).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.errors import CollocError, SlurmError, StateError
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.allocation import Allocation, choose_places
from slurm_colloc.runtime.control import Control
from slurm_colloc.runtime.fate import FateWatch
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.ledger import Ledger
from slurm_colloc.runtime.roster import Member, Place, Roster
from slurm_colloc.runtime.starter import Starter
from slurm_colloc.runtime.tender import Tender
from slurm_colloc.runtime.verdict import Asked, Verdict
from slurm_colloc.runtime.waker import Waker
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.store import inbox
from slurm_colloc.store.directory import read_spec
from slurm_colloc.store.records import PackRecord
from slurm_colloc.store.states import StateRecord, begin_attempt, read_attempt, read_state

IDLE_WAIT_S = 1.0
STARTING_WAIT_S = 0.02


def read_kill_wait_s(config: Mapping[str, str]) -> float:
    """Slurm's KillWait; its default of 30 s where it cannot be read."""
    with contextlib.suppress(KeyError, ValueError, IndexError):
        return float(config["KillWait"].split()[0])
    return 30.0


def signals_tasks_alone(config: Mapping[str, str]) -> bool:
    """Signals other than KILL reach only the tasks of a step, not the processes below them.

    So does proctrack/cgroup (`_slurm_cgroup_is_pid_a_slurm_task`, 22.05 to 26.05); the other
    plugins signal every process of the step.
    """
    return config.get("ProctrackType", "") == "proctrack/cgroup"


class Fenced(CollocError):
    """A newer attempt of this pack has started elsewhere."""

    exit_code = 1


class Runner:
    """Runs one attempt of one pack to its end.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        allocation: What Slurm gave.
        settings: The settings of this node.
        slurm: Slurm, or None where the pack runs without it.
    """

    def __init__(
        self,
        pack: Path,
        record: PackRecord,
        allocation: Allocation,
        settings: Settings,
        slurm: SlurmCommands | None,
    ) -> None:
        self.pack = pack
        self.record = record
        self.allocation = allocation
        self.slurm = slurm
        self.journal = Journal(pack)
        self.attempt = begin_attempt(pack, allocation.restarts + 1)
        self.roster = Roster([])
        self.ledger = Ledger(pack, self.attempt)
        self._fate = FateWatch(allocation, slurm, self.journal)
        self._waker = Waker(self._on_terminate, self._on_foreign_signal)
        self._lone = record.degree == 1 and record.request is None
        config = self._read_config()
        kill_wait_s = float(settings.kill_wait_s or read_kill_wait_s(config))
        self._passes_on = signals_tasks_alone(config)
        self.starter = Starter(
            pack=pack,
            record=record,
            allocation=allocation,
            attempt=self.attempt,
            launcher="process" if self._lone or slurm is None else settings.launcher,
            kill_wait_s=kill_wait_s,
            passes_on=self._passes_on,
            lone=self._lone and slurm is not None,
            journal=self.journal,
        )
        self._control = Control(
            pack=pack,
            roster=self.roster,
            starter=self.starter,
            ledger=self.ledger,
            journal=self.journal,
            slurm=slurm,
            kill_wait_s=kill_wait_s,
        )
        self._tender = Tender(
            allocation=allocation,
            roster=self.roster,
            starter=self.starter,
            ledger=self.ledger,
            fate=self._fate,
            journal=self.journal,
            slurm=slurm,
            keeps_time=not (self._lone and slurm is not None),
        )

    def run(self) -> int:
        """Run until every member has ended and the pack is closed.

        Returns:
            The worst member's exit status as a shell would give it.
        """
        self._waker.install()
        self._make_places()
        for number in inbox.list_taken(str(self.pack)):
            # What an earlier attempt left: its unfinished members start again.
            self._adopt(number)
        self.journal.write(
            "attempt",
            attempt=self.attempt,
            node=self.allocation.node,
            job=self.allocation.job_id,
            launcher=self.starter.launcher,
        )
        while not self._turn():
            self._wait()
        self.ledger.finish(self._wait)
        self.journal.write("end", exit=self.ledger.worst)
        return self.ledger.worst.shell_status

    def _turn(self) -> bool:
        """Do all that can be done now; True once everything is done."""
        self._check_fence()
        self.ledger.flush()
        self._handle_requests()
        self._tender.collect_started()
        self._tender.collect_ended()
        self._control.enforce_limits()
        if self._fate.follow():
            self._tender.resume()
        if self._fate.ending is not None and self.slurm is None:
            for member in self.roster.running():
                self._control.end(member, Asked.CANCEL)
        while self._fate.may_start:
            self._refill()
            if self.roster.running():
                return False
            if self._close():
                return True
        if self._fate.ending is not None and not self.roster.running():
            self._settle_ending()
            return True
        return False

    def list_members(self) -> list[Member]:
        """Its members by number."""
        return [self.roster.members[number] for number in sorted(self.roster.members)]

    @property
    def is_over(self) -> bool:
        """Every member has ended for good and the pack is closed."""
        return all(member.is_final for member in self.roster.members.values()) and (
            inbox.list_waiting(str(self.pack)) is None
        )

    # -- setting up ---------------------------------------------------------------------------

    def _on_terminate(self) -> None:
        self._fate.terminate()
        if self._passes_on:
            for member in self.roster.running():
                # A job step gets its own signal.
                if member.launcher == "process":
                    self._control.signal(member, signal.SIGTERM, steps_only=False)

    def _on_foreign_signal(self, number: int) -> None:
        if self._lone:
            for member in self.roster.running():
                if member.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member.pid, number)

    def _read_config(self) -> dict[str, str]:
        """Slurm's configuration, empty where it cannot be read."""
        if self.slurm is not None:
            with contextlib.suppress(SlurmError):
                return self.slurm.read_config()
        return {}

    def _make_places(self) -> None:
        wants = sorted(
            (read_spec(self.pack, number).plan.cpus for number in self.record.members),
            reverse=True,
        )
        wanted = wants[: self.record.degree]
        if self._lone:
            shares: tuple[tuple[int, ...], ...] = ((),)
            why = ""
        else:
            shares, why = choose_places(self.allocation, wanted)
        if why:
            self.journal.write("not_bound", reason=why)
        self.roster.places = [
            Place(index, want, cpus)
            for index, (want, cpus) in enumerate(zip(wanted, shares, strict=True))
        ]

    def _adopt(self, number: int) -> None:
        spec = read_spec(self.pack, number)
        record = read_state(self.pack, number, self.attempt - 1)
        if record is None:
            record = StateRecord(MemberState.PENDING, self.attempt)
        member = Member(number, spec, record)
        self.roster.members[number] = member
        if member.is_final:
            self.ledger.note_end(record.exit_code, record.state)
            return
        if record.state is not MemberState.PENDING:
            member.record = dataclasses.replace(record, state=MemberState.PENDING)
        self.ledger.write(member, MemberState.PENDING, reason=record.reason)
        self.roster.waiting.append(number)

    # -- one turn -----------------------------------------------------------------------------

    def _check_fence(self) -> None:
        newest = read_attempt(self.pack)
        if newest > self.attempt:
            for member in self.roster.running():
                self.starter.kill(member)
            raise Fenced(f"attempt {newest} of this pack has started; attempt {self.attempt} ends")

    def _handle_requests(self) -> None:
        for request in self._control.take_requests():
            member = self.roster.members.get(request.number)
            if member is None and inbox.take(str(self.pack), request.number):
                with contextlib.suppress(StateError):
                    self._adopt(request.number)
                    member = self.roster.members[request.number]
            if member is not None and not member.is_final:
                self._control.handle(member, request)

    # -- the end of the pack ------------------------------------------------------------------

    def _settle_ending(self) -> None:
        """Write what is certain; what Slurm has yet to say is left to whoever reads."""
        fate = self._fate.settle()
        if fate is None or fate.state is None:
            return
        for number in inbox.list_waiting(str(self.pack)) or []:
            if inbox.take(str(self.pack), number) and number not in self.roster.members:
                self._adopt(number)
        for member in self.roster.members.values():
            if not member.is_final:
                verdict = self._tender.undecided.get(member.number)
                code = verdict.exit_code if verdict else None
                self.ledger.write_end(
                    member, fate.state, code or ExitCode(0, signal.SIGTERM), fate.reason
                )
        inbox.close(str(self.pack))

    def _refill(self) -> None:
        for number in inbox.list_waiting(str(self.pack)) or []:
            if number not in self.roster.members and inbox.take(str(self.pack), number):
                self._adopt(number)
        while self.roster.waiting:
            member = self.roster.members[self.roster.waiting[0]]
            place = self.roster.find_place(member.spec.plan.cpus)
            if place is None:
                return
            self._check_fence()
            self.roster.waiting.popleft()
            place.occupant = member.number
            try:
                self.starter.start(member, place)
            except (OSError, StateError) as error:
                if isinstance(error, FileNotFoundError) and self.starter.fall_back(
                    member, f"{error.filename} is not installed or not in PATH"
                ):
                    self._tender.release(member)
                    self.roster.waiting.appendleft(member.number)
                    continue
                self._tender.finish(
                    member, Verdict(MemberState.FAILED, None, f"it could not be started: {error}")
                )

    def _close(self) -> bool:
        """Close the pack if nothing waits; False if something has entered meanwhile."""
        if self.roster.waiting or not inbox.close(str(self.pack)):
            return False
        # A fenced attempt may have taken an entry before it noticed.
        late = [n for n in inbox.list_taken(str(self.pack)) if n not in self.roster.members]
        for number in late:
            self._adopt(number)
        return not self.roster.waiting

    def _wait(self) -> None:
        running = self.roster.running()
        due = [
            moment
            for member in running
            for moment in (member.deadline, member.signal_at, member.end_by)
            if moment is not None
        ]
        starting = any(member.is_starting for member in running)
        self._waker.wait(STARTING_WAIT_S if starting else IDLE_WAIT_S, due)
