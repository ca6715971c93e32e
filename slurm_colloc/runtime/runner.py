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
from functools import partial
from pathlib import Path

from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.guarded_steps import RETRY_S, GivenUp, GiveUp, insist, is_passing
from slurm_colloc.runtime.members import make_places
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.runtime.wiring import RunnerParts, build_context
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store import inbox
from slurm_colloc.store.member_states import begin_attempt
from slurm_colloc.store.pack_directory import PackRecord

IDLE_WAIT_S = 1.0
STARTING_WAIT_S = 0.02
STARTING_RETRY_S = 0.2


class Runner:
    """Runs one attempt of one pack to its end.

    Args:
        path: The pack's directory.
        record: Its pack.json.
        allocation: What Slurm gave.
        settings: The settings of this node.
        slurm: Slurm, or None where the pack runs without it.
        slurm_log: Descriptor of the file to which slurmstepd writes.
        announce: Told of a directory that must be gone before the batch script ends.
    """

    def __init__(
        self,
        path: Path,
        record: PackRecord,
        allocation: Allocation,
        settings: Settings,
        slurm: SlurmAccess | None,
        *,
        slurm_log: int = 2,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        attempt = insist(
            "beginning an attempt", lambda: begin_attempt(path, allocation.restarts + 1)
        )

        def build_parts() -> tuple[PackContext, RunnerParts]:
            pack = build_context(
                path,
                record,
                attempt=attempt,
                allocation=allocation,
                settings=settings,
                slurm=slurm,
                announce=announce,
            )
            return pack, RunnerParts(pack, slurm_log=slurm_log)

        self.pack, self._parts = insist("preparing an attempt", build_parts)
        self.members = self._parts.members
        self.states = self._parts.states
        self._waker = Waker(self._on_terminate, self._on_foreign_signal)

    def prepare(self) -> None:
        """Divide the allocation among the members that are there, under the pack's lock."""
        parts = self._parts
        self._waker.install()
        try:
            parts.gpu_mode.open()
        except Exception as error:  # noqa: BLE001 - said, and members run without MPS
            parts.steps.note("the GPU", error)
            parts.gpu_mode.give_up(error)
        parts.steps.run("the monitor", parts.monitor.open)
        self.members.places, why = insist(
            "reading the members",
            lambda: make_places(
                self.pack.path,
                self.pack.record.degree,
                self.pack.allocation,
                lone=self.pack.is_lone,
                others=parts.job_sets.others,
            ),
        )
        if why:
            self.pack.journal.write("not_bound", reason=why)
        if self.pack.attempt > 1:
            parts.steps.run("what is stopped", parts.pauser.continue_left)
        # What an earlier attempt left: its unfinished members start again.
        insist("reading the members", parts.intake.adopt_taken)
        self.pack.journal.write(
            "attempt",
            attempt=self.pack.attempt,
            node=self.pack.allocation.node,
            job=self.pack.allocation.job_id,
            launcher=parts.starter.launcher,
        )

    def run(self) -> int:
        """Run until every member has ended and the pack is closed.

        Returns:
            The worst member's exit status as a shell would give it.

        Raises:
            GivenUp: No member runs, and the file system has not let one start for minutes.
            StateError: The last states could not be written.
        """
        parts = self._parts
        given_up: GivenUp | None = None
        try:
            while not self._turn():
                self._wait()
        except GivenUp as error:
            given_up, reason = error, str(error)
            self.pack.journal.write("gives_up", reason=reason)
            if not is_passing(error.error):
                # What the file system keeps from starting is submitted again by the next csub.
                parts.steps.run(
                    "refusing members", lambda: parts.place_filler.refuse_waiting(reason)
                )
        finally:
            try:
                parts.steps.run("what is paused", parts.measured_degree.stop)
                parts.steps.run("moved memory", parts.memory_turns.close)
                parts.last_work.begin()
                parts.monitor.stop()
            finally:
                # Whatever became of the monitor, no daemon may be left.
                parts.gpu_mode.close()
        self.states.finish(self._wait)
        parts.steps.run("requests", parts.requests.work)
        parts.steps.run("the chain", lambda: parts.chain.finish(is_over=self.is_over))
        parts.last_work.finish(self._wait_shortly, summarizes=parts.slurm_decision.ending is None)
        self.pack.journal.write("end", exit=self.states.worst)
        if given_up is not None and is_passing(given_up.error):
            raise given_up
        # What depends on the whole pack must not take it for done.
        return self.states.worst.shell_status or int(parts.start_queue.has_handed_back)

    def _turn(self) -> bool:
        """Do all that can be done now; True once everything is done."""
        parts = self._parts
        run = parts.steps.run
        run("the attempt", parts.fence.check)
        run("states", self.states.flush)
        run("the GPU", parts.gpu_mode.work, parts.gpu_mode.give_up)
        run("the monitor", parts.monitor.work)
        run("MPS clients", parts.starts.note_clients)
        run("stuck members", lambda: parts.control.end_stuck(self._list_stuck()))
        run("requests", parts.requests.work)
        parts.starts.collect()
        parts.ends.collect()
        parts.control.enforce_limits()
        run("the probe window", parts.probe_window.work)
        run("the mails", parts.mails.work)
        run("dependents", parts.dependents.look)
        run("Slurm's decision", self._follow_slurm)
        run("the chain", parts.chain.work)
        run("handing over", lambda: parts.chain.conclude(parts.ends))
        is_going_on = parts.slurm_decision.ending is None and not parts.slurm_decision.is_undecided
        run("the measured degree", lambda: self._measure(is_going_on=is_going_on))
        run("lending cores", parts.core_lender.work)
        if parts.slurm_decision.ending is not None:
            is_ended = run("ending the pack", parts.pack_end.work, self._give_up("ending the pack"))
            return bool(is_ended)
        if parts.chain.is_saving or parts.look.describe_pack_wait():
            return False
        run("taking members over", parts.take_over.work)
        return bool(run("starting members", self._fill, self._give_up("starting members")))

    def _list_stuck(self) -> list[int]:
        """Members that cannot go on, and do not end by themselves."""
        if self._parts.gpu_mode.has_lost_gpu:
            return [member.number for member in self.members.with_process()]
        return self._parts.gpu_mode.list_stuck()

    def _measure(self, *, is_going_on: bool) -> None:
        parts = self._parts
        if is_going_on:
            parts.measured_degree.work(parts.look)
            parts.memory.work()
        else:
            # Members are to hear what is sent to them.
            parts.measured_degree.stop()
        parts.memory_turns.work(parts.look, is_going_on=is_going_on)
        if is_going_on:
            parts.degree_writer.work()

    def _follow_slurm(self) -> None:
        parts = self._parts
        if parts.slurm_decision.follow():
            parts.ends.resume()
        if parts.slurm_decision.ending is not None and self.pack.slurm is None:
            for member in self.members.with_process():
                parts.control.end(member, StopReason.CANCEL)

    def _fill(self) -> bool:
        """Start what may start; True once all have ended and the pack is closed."""
        parts = self._parts
        self.members.takes_one = parts.gpu_mode.takes_one_member
        parts.place_filler.work()
        if self._has_unfinished or parts.start_queue.is_undecided:
            parts.job_sets.note_busy()
            return False
        # Before it closes it looks once more; what has come starts in the next turn.
        known = len(self.members.by_number)
        parts.steps.run("taking members over", partial(parts.take_over.work, at_once=True))
        if parts.take_over.is_busy or len(self.members.by_number) > known:
            return False
        parts.job_sets.note_idle()
        return parts.job_sets.may_close() and parts.place_filler.close()

    def _give_up(self, step: str) -> GiveUp:
        """What is done once a pack cannot go on: as long as a member runs, nothing."""

        def give_up(error: Exception) -> bool:
            if self._has_unfinished:
                return False
            raise GivenUp(step, error)

        return give_up

    @property
    def _has_unfinished(self) -> bool:
        """A member runs, or has ended and it is not known how."""
        return bool(self.members.with_process() or self._parts.ends.undecided)

    @property
    def is_over(self) -> bool:
        """Every member has ended for good and the pack is closed."""
        return all(member.is_final for member in self.members.by_number.values()) and (
            inbox.list_waiting(str(self.pack.path)) is None
        )

    # -- setting up ---------------------------------------------------------------------------

    def _on_terminate(self) -> None:
        self._parts.slurm_decision.terminate()
        if self._parts.passes_on:
            for member in self.members.with_process():
                # A job step gets its own signal.
                if member.launcher == "process":
                    self._parts.control.signal(member, signal.SIGTERM, steps_only=False)

    def _on_foreign_signal(self, number: int) -> None:
        if self.pack.is_lone:
            self._parts.chain.note_signal(number)
            for member in self.members.with_process():
                self._parts.control.signal(member, number, steps_only=False)

    # -- waiting ------------------------------------------------------------------------------

    def _wait_shortly(self) -> None:
        self._waker.wait(STARTING_WAIT_S, [])

    def _wait(self) -> None:
        running = self.members.with_process()
        is_starting = any(member.is_starting for member in running)
        if self._parts.steps.has_trouble:
            # What is due, or to be read, may be what cannot be done: it would be due at once again.
            self._waker.wait(RETRY_S if not is_starting else STARTING_RETRY_S, [])
            return
        due = [moment for member in running for moment in member.list_due()]
        due += [*self._parts.mails.list_due(), *self._parts.pack_end.list_due()]
        due += [*self._parts.measured_degree.list_due(), *self._parts.core_lender.list_due()]
        due += self._parts.memory_turns.list_due()
        wait_s = STARTING_WAIT_S if is_starting else IDLE_WAIT_S
        self._waker.wait(wait_s, due, self._parts.gpu_mode.filenos())


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
