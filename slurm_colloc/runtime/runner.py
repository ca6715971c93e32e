"""The runner: the batch script of a pack. Who: the user; where: the pack's compute node.

It starts members as job steps, up to the degree at the same time, refills places that become
free, keeps time limits, and writes every member's state. It waits on signals: a child's end
(SIGCHLD), a request from csub or from inside a member (SIGURG), or the end of the job (SIGTERM).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import CollocError, SlurmError, StateError
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.assessor import Assessor
from slurm_colloc.runtime.control import Control
from slurm_colloc.runtime.dependents import Dependents, judge_own_dependency
from slurm_colloc.runtime.ending import Ending
from slurm_colloc.runtime.fate import FateWatch
from slurm_colloc.runtime.gate import Gate
from slurm_colloc.runtime.intake import Intake
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.ledger import Ledger
from slurm_colloc.runtime.lookout import Lookout, choose_common_bound
from slurm_colloc.runtime.mail import Postman
from slurm_colloc.runtime.places import make_places
from slurm_colloc.runtime.probing import Probing
from slurm_colloc.runtime.ramp import Ramping
from slurm_colloc.runtime.refill import Refill
from slurm_colloc.runtime.restarts import find_killed_before
from slurm_colloc.runtime.roster import Roster
from slurm_colloc.runtime.sharing import Sharing
from slurm_colloc.runtime.slurm_config import (
    read_kill_wait_s,
    requeues_jobs,
    signals_tasks_alone,
)
from slurm_colloc.runtime.starter import Starter
from slurm_colloc.runtime.tender import Tender
from slurm_colloc.runtime.time_left import TimeLeft
from slurm_colloc.runtime.verdict import Asked
from slurm_colloc.runtime.waker import Waker
from slurm_colloc.runtime.watching import Watching
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.access import SlurmAccess
from slurm_colloc.store import inbox
from slurm_colloc.store.packs import State
from slurm_colloc.store.records import PackRecord
from slurm_colloc.store.states import begin_attempt, read_attempt

IDLE_WAIT_S = 1.0
STARTING_WAIT_S = 0.02


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
        slurm_log: Descriptor of the file to which slurmstepd writes.
        announce: Told of a directory that must be gone before the batch script ends.
    """

    def __init__(
        self,
        pack: Path,
        record: PackRecord,
        allocation: Allocation,
        settings: Settings,
        slurm: SlurmAccess | None,
        *,
        slurm_log: int = 2,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self.pack = pack
        self.record = record
        self.allocation = allocation
        self.slurm = slurm
        self.journal = Journal(pack)
        self.attempt = begin_attempt(pack, allocation.restarts + 1)
        killed_before = find_killed_before(pack, allocation)
        self.roster = Roster([])
        self.ledger = Ledger(pack, self.attempt)
        self._fate = FateWatch(allocation, slurm, self.journal, slurm_log)
        self._waker = Waker(self._on_terminate, self._on_foreign_signal)
        self._lone = record.degree == 1 and record.request is None
        self._sharing = Sharing(
            pack,
            record,
            allocation,
            self.attempt,
            self.journal,
            lone=self._lone,
            announce=announce,
            identifies=settings.probe and record.degree > 1,
        )
        self._watching = Watching(
            pack, record, allocation, self.attempt, self.journal, settings=settings
        )
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
            place_on_gpu=self._sharing.place,
            watch=self._watching.place,
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
        self._probing = Probing(
            pack=pack,
            shown_id=allocation.shown_job_id,
            roster=self.roster,
            ledger=self.ledger,
            journal=self.journal,
            is_wanted=settings.probe,
            instruments=settings.instrument,
            find_gpu_model=lambda: self._sharing.setup.gpu_name,
            why_unwatched=lambda: self._watching.obstacle,
            end=lambda member: self._control.end(member, Asked.PROBED),
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
            assessor=Assessor(
                pack=pack,
                allocation=allocation,
                roster=self.roster,
                ledger=self.ledger,
                sharing=self._sharing,
                journal=self.journal,
                site_requeues=requeues_jobs(config),
            ),
            clients=self._sharing.clients,
        )
        state = State(pack.parent.parent, record.cluster)
        time_left = TimeLeft(
            pack,
            record,
            self.roster,
            self.ledger,
            self.journal,
            # As csub asks it, which submits them again.
            site_requeues=config.get("JobRequeue") == "1",
        )
        self._gate = Gate(
            pack,
            self.roster,
            self.ledger,
            self.journal,
            lambda job: judge_own_dependency(state, slurm, job),
            time_left=time_left,
        )
        self._ramping = Ramping(
            pack=pack,
            attempt=self.attempt,
            start_degree=record.start_degree,
            time_left=time_left,
            roster=self.roster,
            ledger=self.ledger,
            journal=self.journal,
            probing=self._probing,
            site_requeues=requeues_jobs(config),
            why_unwatched=lambda: self._watching.obstacle,
            lookout=Lookout(
                pack,
                self.roster,
                self._probing,
                instruments=settings.instrument,
                has_mps=lambda: self._sharing.mode is SharingMode.MPS,
                find_gpu_memory_mb=lambda: self._sharing.setup.gpu_memory_mb,
                bound=choose_common_bound(record.policy),
            ),
            step_back=self._control.step_back,
        )
        self._postman = Postman(
            pack=pack,
            record=record,
            allocation=allocation,
            config=None if slurm is None else config,
            roster=self.roster,
            journal=self.journal,
        )
        self._intake = Intake(
            pack=pack,
            attempt=self.attempt,
            killed_before=killed_before,
            roster=self.roster,
            ledger=self.ledger,
            note_requeue=self._postman.note_requeue,
        )
        self._ending = Ending(
            pack=pack,
            is_carried=record.carried,
            roster=self.roster,
            ledger=self.ledger,
            fate=self._fate,
            tender=self._tender,
            sharing=self._sharing,
            adopt=self._intake.adopt,
            kill_wait_s=read_kill_wait_s(config),
        )
        self._refill = Refill(
            pack=pack,
            roster=self.roster,
            gate=self._gate,
            probing=self._probing,
            ramping=self._ramping,
            sharing=self._sharing,
            starter=self.starter,
            tender=self._tender,
            ledger=self.ledger,
            intake=self._intake,
            check_fence=self._check_fence,
        )
        self._dependents = Dependents(pack, allocation.job_id, self.roster, slurm, self.journal)
        self.ledger.listeners.append(self._postman.note)

    def prepare(self) -> None:
        """Divide the allocation among the members that are there, under the pack's lock."""
        self._waker.install()
        self._sharing.open()
        self._watching.open()
        self.roster.places, why = make_places(
            self.pack, self.record.degree, self.allocation, lone=self._lone
        )
        if why:
            self.journal.write("not_bound", reason=why)
        # What an earlier attempt left: its unfinished members start again.
        self._intake.adopt_taken()
        self.journal.write(
            "attempt",
            attempt=self.attempt,
            node=self.allocation.node,
            job=self.allocation.job_id,
            launcher=self.starter.launcher,
        )

    def run(self) -> int:
        """Run until every member has ended and the pack is closed.

        Returns:
            The worst member's exit status as a shell would give it.
        """
        try:
            while not self._turn():
                self._wait()
        finally:
            try:
                self._watching.stop()
            finally:
                # Whatever became of the monitor, no daemon may be left.
                self._sharing.close()
        self.ledger.finish(self._wait)
        if self._fate.ending is None:
            self._watching.summarize()
        self._dependents.finish()
        self._postman.finish(self._wait)
        self.journal.write("end", exit=self.ledger.worst)
        # What depends on the whole pack must not take it for done.
        return self.ledger.worst.shell_status or int(self._gate.has_handed_back)

    def _turn(self) -> bool:
        """Do all that can be done now; True once everything is done."""
        self._check_fence()
        self.ledger.flush()
        self._sharing.work()
        self._watching.work()
        self._tender.note_clients()
        self._control.end_stuck(self._sharing.list_stuck())
        self._handle_requests()
        self._tender.collect_started()
        self._tender.collect_ended()
        self._control.enforce_limits()
        self._probing.work()
        self._ramping.work()
        self._postman.work()
        self._dependents.look()
        if self._fate.follow():
            self._tender.resume()
        if self._fate.ending is not None and self.slurm is None:
            for member in self.roster.running():
                self._control.end(member, Asked.CANCEL)
        while self._fate.may_start:
            if not self._sharing.is_settled:
                return False
            self.roster.takes_one = self._sharing.takes_one_member
            self._refill.work()
            if self.roster.running() or self._gate.is_undecided:
                return False
            if self._refill.close():
                return True
        return self._fate.ending is not None and self._ending.work()

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
                self._control.signal(member, number, steps_only=False)

    def _read_config(self) -> dict[str, str]:
        """Slurm's configuration, empty where it cannot be read."""
        if self.slurm is not None:
            with contextlib.suppress(SlurmError):
                return self.slurm.read_config()
        return {}

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
                    self._intake.adopt(request.number)
                    member = self.roster.members[request.number]
            if member is not None and not member.is_final:
                self._control.handle(member, request)

    def _wait(self) -> None:
        running = self.roster.running()
        due = [moment for member in running for moment in member.list_due()]
        due += [*self._postman.list_due(), *self._ending.list_due()]
        starting = any(member.is_starting for member in running)
        wait_s = STARTING_WAIT_S if starting else IDLE_WAIT_S
        self._waker.wait(wait_s, due, self._sharing.filenos())
