"""The runner: the batch script of a pack. Who: the user; where: the pack's compute node.

It starts members as job steps, up to the degree at the same time, refills places that become
free, keeps time limits, and writes every member's state. It waits on signals: a child's end
(SIGCHLD), a request from csub or from inside a member (SIGURG), or the end of the job (SIGTERM).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.verdict import StopReason
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import make_places
from slurm_colloc.runtime.wiring import RunnerParts
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.member_states import begin_attempt
from slurm_colloc.store.pack.pack_records import PackRecord

IDLE_WAIT_S = 1.0
STARTING_WAIT_S = 0.02


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
        self._crew = RunnerParts(
            pack=pack,
            record=record,
            allocation=allocation,
            attempt=self.attempt,
            journal=self.journal,
            settings=settings,
            slurm=slurm,
            slurm_log=slurm_log,
            announce=announce,
        )
        self.roster = self._crew.roster
        self.ledger = self._crew.ledger
        self._waker = Waker(self._on_terminate, self._on_foreign_signal)

    def prepare(self) -> None:
        """Divide the allocation among the members that are there, under the pack's lock."""
        crew = self._crew
        self._waker.install()
        crew.sharing.open()
        crew.watching.open()
        self.roster.places, why = make_places(
            self.pack, self.record.degree, self.allocation, lone=crew.lone
        )
        if why:
            self.journal.write("not_bound", reason=why)
        # What an earlier attempt left: its unfinished members start again.
        crew.intake.adopt_taken()
        self.journal.write(
            "attempt",
            attempt=self.attempt,
            node=self.allocation.node,
            job=self.allocation.job_id,
            launcher=crew.starter.launcher,
        )

    def run(self) -> int:
        """Run until every member has ended and the pack is closed.

        Returns:
            The worst member's exit status as a shell would give it.
        """
        crew = self._crew
        try:
            while not self._turn():
                self._wait()
        finally:
            try:
                crew.watching.stop()
            finally:
                # Whatever became of the monitor, no daemon may be left.
                crew.sharing.close()
        self.ledger.finish(self._wait)
        if crew.fate.ending is None:
            crew.watching.summarize()
        crew.dependents.finish()
        crew.postman.finish(self._wait)
        self.journal.write("end", exit=self.ledger.worst)
        # What depends on the whole pack must not take it for done.
        return self.ledger.worst.shell_status or int(crew.gate.has_handed_back)

    def _turn(self) -> bool:
        """Do all that can be done now; True once everything is done."""
        crew = self._crew
        crew.fence.check()
        self.ledger.flush()
        crew.sharing.work()
        crew.watching.work()
        crew.tender.note_clients()
        crew.control.end_stuck(crew.sharing.list_stuck())
        self._handle_requests()
        crew.tender.collect_started()
        crew.tender.collect_ended()
        crew.control.enforce_limits()
        crew.probing.work()
        crew.ramping.work()
        crew.postman.work()
        crew.dependents.look()
        if crew.fate.follow():
            crew.tender.resume()
        if crew.fate.ending is not None and self.slurm is None:
            for member in self.roster.running():
                crew.control.end(member, StopReason.CANCEL)
        while crew.fate.may_start:
            if not crew.sharing.is_settled:
                return False
            self.roster.takes_one = crew.sharing.takes_one_member
            crew.refill.work()
            if self.roster.running() or crew.gate.is_undecided:
                return False
            if crew.refill.close():
                return True
        return crew.fate.ending is not None and crew.ending.work()

    @property
    def is_over(self) -> bool:
        """Every member has ended for good and the pack is closed."""
        return all(member.is_final for member in self.roster.members.values()) and (
            inbox.list_waiting(str(self.pack)) is None
        )

    # -- setting up ---------------------------------------------------------------------------

    def _on_terminate(self) -> None:
        self._crew.fate.terminate()
        if self._crew.passes_on:
            for member in self.roster.running():
                # A job step gets its own signal.
                if member.launcher == "process":
                    self._crew.control.signal(member, signal.SIGTERM, steps_only=False)

    def _on_foreign_signal(self, number: int) -> None:
        if self._crew.lone:
            for member in self.roster.running():
                self._crew.control.signal(member, number, steps_only=False)

    # -- one turn -----------------------------------------------------------------------------

    def _handle_requests(self) -> None:
        for request in self._crew.control.take_requests():
            member = self.roster.members.get(request.number)
            if member is None and inbox.take(str(self.pack), request.number):
                with contextlib.suppress(StateError):
                    self._crew.intake.adopt(request.number)
                    member = self.roster.members[request.number]
            if member is not None and not member.is_final:
                self._crew.control.handle(member, request)

    def _wait(self) -> None:
        running = self.roster.running()
        due = [moment for member in running for moment in member.list_due()]
        due += [*self._crew.postman.list_due(), *self._crew.ending.list_due()]
        starting = any(member.is_starting for member in running)
        wait_s = STARTING_WAIT_S if starting else IDLE_WAIT_S
        self._waker.wait(wait_s, due, self._crew.sharing.filenos())


WOKEN_BY = (signal.SIGCHLD, signal.SIGURG)
"""A child's end; a request that csub, or a member, has left."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)
"""What a batch script may be sent; a lone member is to get it."""


class Waker:
    """Turns signals into wake-ups.

    Args:
        on_terminate: Called for SIGTERM.
        on_signal: Called with the number of any signal of PASSED_ON.
    """

    def __init__(self, on_terminate: Callable[[], None], on_signal: Callable[[int], None]) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_terminate = on_terminate
        self._on_signal = on_signal

    def install(self) -> None:
        """Take the signals over."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in WOKEN_BY:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._on_terminate())
        for number in PASSED_ON:
            signal.signal(number, lambda received, _: self._on_signal(received))

    def wait(self, timeout_s: float, due: list[float], readable: Sequence[int] = ()) -> None:
        """Wait for a signal, at most `timeout_s`, and not beyond anything that is due.

        Args:
            timeout_s: The longest wait.
            due: When something is to be done, on the monotonic clock.
            readable: Descriptors that end the wait when there is something to read.
        """
        if due:
            timeout_s = min(timeout_s, max(0.0, min(due) - time.monotonic()))
        select.select([self._read_end, *readable], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_end, 4096):
                pass
