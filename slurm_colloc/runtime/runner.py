"""The runner: the batch script of a pack. Who: the user; where: the pack's compute node.

It starts members as job steps, up to the degree at the same time, refills places that become
free, keeps time limits, and writes every member's state. It waits on signals: a child's end
(SIGCHLD), a request from csub or from inside a member (SIGURG), or the end of the job (SIGTERM).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.errors import CollocError, SlurmError, StateError
from slurm_colloc.model.member import FINAL_STATES, ExitCode, MemberState
from slurm_colloc.runtime.allocation import Allocation, choose_places
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.roster import Member, Place, Roster
from slurm_colloc.runtime.starter import LOG_LIMIT, Starter
from slurm_colloc.runtime.verdict import (
    Asked,
    PackFate,
    Verdict,
    judge_end,
    judge_pack,
    read_kill_reason,
)
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.store import inbox
from slurm_colloc.store.packs import read_spec
from slurm_colloc.store.records import PackRecord
from slurm_colloc.store.requests import Action, Request, take_requests
from slurm_colloc.store.states import (
    StateRecord,
    begin_attempt,
    read_attempt,
    read_state,
    remove_environment,
    write_state,
)

IDLE_WAIT_S = 1.0
STARTING_WAIT_S = 0.02
FATE_INTERVAL_S = 1.0
"""How often Slurm is asked what becomes of the pack, while that is open."""

KILL_MARGIN_S = 5.0
"""Beyond KillWait, after which the runner ends a wrapper that did not do it."""


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
        self._kill_reason = ""
        self._foreign_at: float | None = None
        self._next_fate_check = 0.0
        self._ending: PackFate | None = None
        self._terminated = False
        self._undecided: dict[int, Verdict] = {}
        self._worst = ExitCode()
        self._lone = record.degree == 1 and record.request is None
        config = self._read_config()
        kill_wait_s = float(settings.kill_wait_s or read_kill_wait_s(config))
        self._kill_wait_s = kill_wait_s
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
        self._log_offset = os.fstat(2).st_size
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Run until every member has ended and the pack is closed.

        Returns:
            The worst member's exit status as a shell would give it.
        """
        self._install_signals()
        self._make_places()
        self._recover()
        self.journal.write(
            "attempt", attempt=self.attempt, node=self.allocation.node, job=self.allocation.job_id,
            launcher=self.starter.launcher,
        )  # fmt: skip
        while True:
            self._check_fence()
            self._handle_requests()
            self._collect_started()
            self._collect_ended()
            self._enforce_limits()
            self._follow_fate()
            if self._ending is None and self._foreign_at is None and not self._terminated:
                self._refill()
            if not self.roster.running():
                if self._ending is not None or self._terminated:
                    self._settle_ending()
                    break
                if self._foreign_at is None and self._close():
                    break
                if self._foreign_at is None:
                    continue
            self._wait()
        self.journal.write("end", exit=self._worst)
        return self._worst.shell_status

    def list_members(self) -> list[Member]:
        """Its members by number."""
        return [self.roster.members[number] for number in sorted(self.roster.members)]

    @property
    def is_over(self) -> bool:
        """Every member has ended for good and the pack is closed."""
        return all(member.is_final for member in self.roster.members.values()) and (
            inbox.list_waiting(str(self.pack)) is None
        )

    @property
    def worst(self) -> ExitCode:
        """How the worst member ended."""
        return self._worst

    # -- setting up ---------------------------------------------------------------------------

    def _install_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGURG):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)
        # A lone member is the batch script for all that sbatch users know: pass on what comes.
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._on_foreign_signal)

    def _on_terminate(self, *_: object) -> None:
        self._terminated = True
        if self._passes_on:
            for member in self.roster.running():
                # A job step gets its own signal.
                if member.launcher == "process":
                    self._signal(member, signal.SIGTERM, steps_only=False)

    def _on_foreign_signal(self, number: int, _: object) -> None:
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

    def _recover(self) -> None:
        """Take up what an earlier attempt left: its unfinished members start again."""
        for number in inbox.list_taken(str(self.pack)):
            self._adopt(number)

    def _adopt(self, number: int) -> None:
        spec = read_spec(self.pack, number)
        record = read_state(self.pack, number, self.attempt - 1)
        if record is None:
            record = StateRecord(MemberState.PENDING, self.attempt)
        member = Member(number, spec, record)
        self.roster.members[number] = member
        if member.is_final:
            self._note_exit(record.exit_code, record.state)
            return
        if record.state is not MemberState.PENDING:
            member.record = dataclasses.replace(record, state=MemberState.PENDING)
        self._write(member, MemberState.PENDING, reason=record.reason)
        self.roster.waiting.append(number)

    # -- one turn -----------------------------------------------------------------------------

    def _check_fence(self) -> None:
        newest = read_attempt(self.pack)
        if newest > self.attempt:
            for member in self.roster.running():
                self.starter.kill(member)
            raise Fenced(f"attempt {newest} of this pack has started; attempt {self.attempt} ends")

    def _handle_requests(self) -> None:
        for request in take_requests(self.pack):
            member = self.roster.members.get(request.number)
            if member is None and inbox.take(str(self.pack), request.number):
                with contextlib.suppress(StateError):
                    self._adopt(request.number)
                    member = self.roster.members[request.number]
            if member is not None and not member.is_final:
                self.journal.write(
                    "request", action=request.action, member=request.number, reason=request.reason
                )
                self._handle_request(member, request)

    def _handle_request(self, member: Member, request: Request) -> None:
        if request.action is Action.SIGNAL:
            self._signal(member, request.signal, steps_only=request.steps_only)
        elif member.process is not None:
            cancel = request.action is Action.CANCEL
            self._end(member, Asked.CANCEL if cancel else Asked.REQUEUE)
        elif request.action is Action.CANCEL:
            self.roster.waiting.remove(member.number)
            self._write(member, MemberState.CANCELLED, ended_at=time.time(), reason=request.reason)
            self._note_exit(ExitCode(0, signal.SIGTERM), MemberState.CANCELLED)
            remove_environment(self.pack, member.number)

    def _signal(self, member: Member, number: int, *, steps_only: bool) -> None:
        if steps_only:
            self.starter.signal_inner_steps(member, self.slurm, number)
        elif member.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)

    def _collect_started(self) -> None:
        now = time.monotonic()
        for member in self.roster.running():
            if not member.is_starting:
                continue
            started = self.starter.read_started(member)
            if started is None:
                continue
            self._note_start(member, started, now)

    def _note_start(self, member: Member, started: dict[str, object], now: float) -> None:
        plan, job = member.spec.plan, member.spec.job
        member.pid = int(str(started["pid"]))
        member.wrapper_pid = int(str(started["wrapper_pid"]))
        place = self.roster.place_of(member.number)
        bound = place.choose_cpus(plan.cpus) if place else ()
        step = started["step"]
        if plan.wall_limit_s is not None and not (self._lone and self.slurm):
            member.deadline = now + plan.wall_limit_s
            if job.signal is not None:
                member.signal_at = member.deadline - job.signal.seconds_before_end
        self._write(
            member,
            MemberState.RUNNING,
            starts=member.record.starts + 1,
            started_at=float(str(started["at"])),
            ended_at=None,
            exit_code=None,
            node=self.allocation.node,
            gpus=self.allocation.gpus,
            cpus=bound,
            step=None if step is None else f"{self.allocation.job_id}.{step}",
            wall_limit_s=plan.wall_limit_s,
            reason="",
        )
        self.journal.write("start", member=member.number, step=step, cpus=bound)

    def _collect_ended(self) -> None:
        for member in self.roster.running():
            assert member.process is not None
            status = member.process.poll()
            if status is None:
                continue
            if member.is_starting:
                started = self.starter.read_started(member)
                if started is not None:
                    self._note_start(member, started, time.monotonic())
            if self.starter.outlives_its_srun(member):
                if not member.is_orphan:
                    member.is_orphan = True
                    self.journal.write("srun_lost", member=member.number, status=status)
                continue
            self._judge(member, status)

    def _judge(self, member: Member, status: int) -> None:
        log = self.starter.read_log(member)
        verdict = judge_end(
            self.starter.read_exit(member),
            started=member.pid is not None,
            srun_status=status,
            log=log,
            asked=member.asked,
        )
        self.starter.end_inner_steps(member, self.slurm)
        if verdict.never_started and self.starter.fall_back(member, verdict.reason):
            self._release(member)
            self.roster.waiting.appendleft(member.number)
            return
        if verdict.foreign or (self._terminated and member.asked is None):
            self._open_fate(read_kill_reason(log))
            member.asked = None
            self._release(member, vacate_only=True)
            self._undecided[member.number] = verdict
            return
        self._finish(member, verdict)

    def _finish(self, member: Member, verdict: Verdict) -> None:
        """Write how a member ended and give its place to the next."""
        assert verdict.state is not None
        self._release(member)
        if verdict.state is MemberState.PENDING:
            self._write(member, MemberState.PENDING, reason=verdict.reason, exit_code=None)
            self.roster.waiting.append(member.number)
            self.journal.write("requeue", member=member.number)
            return
        code = verdict.exit_code
        self._write(
            member, verdict.state, ended_at=time.time(), exit_code=code, reason=verdict.reason
        )
        self._note_exit(code, verdict.state)
        remove_environment(self.pack, member.number)
        self.journal.write("member_end", member=member.number, state=verdict.state, exit=code)

    def _release(self, member: Member, *, vacate_only: bool = False) -> None:
        member.process = None
        member.pid = member.wrapper_pid = None
        member.deadline = member.signal_at = member.end_by = None
        member.is_orphan = False
        if not vacate_only:
            member.asked = None
        self.roster.vacate(member.number)
        self.starter.clean(member)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for member in self.roster.running():
            if member.signal_at is not None and now >= member.signal_at:
                member.signal_at = None
                request = member.spec.job.signal
                assert request is not None
                self._signal(member, request.number, steps_only=not request.batch_shell)
            if member.deadline is not None and now >= member.deadline and member.asked is None:
                self._end(member, Asked.TIMEOUT)
            if member.end_by is not None and now >= member.end_by:
                member.end_by = now + KILL_MARGIN_S
                self.starter.kill(member)

    def _end(self, member: Member, why: Asked) -> None:
        """TERM to the member now, KILL after KillWait (the wrapper does both)."""
        if member.asked is None:
            member.asked = why
            member.end_by = time.monotonic() + self._kill_wait_s + KILL_MARGIN_S
            self.starter.terminate(member)
            self.journal.write("terminate", member=member.number, reason=why.value)

    # -- the end of the pack ------------------------------------------------------------------

    def _open_fate(self, kill_reason: str) -> None:
        """A TERM that this runner did not send: start nothing until Slurm shows what it means."""
        if self._foreign_at is None:
            self._foreign_at = time.monotonic()
            self._next_fate_check = 0.0
            self.journal.write("foreign_signal", reason=kill_reason)
        self._kill_reason = kill_reason or self._kill_reason

    def _follow_fate(self) -> None:
        if self._terminated and self._foreign_at is None:
            self._open_fate("")
        if self._foreign_at is None or self._ending is not None:
            return
        now = time.monotonic()
        if now < self._next_fate_check:
            return
        self._next_fate_check = now + FATE_INTERVAL_S
        if self.slurm is None:
            self._ending = PackFate(False, MemberState.CANCELLED, "the pack was cancelled")
            for member in self.roster.running():
                self._end(member, Asked.CANCEL)
            return
        fate = self._ask_fate(self.slurm)
        if fate is None:
            return
        if not fate.goes_on:
            self._ending = fate
            self.journal.write("ending", reason=fate.reason)
        elif not self._terminated:
            self._resume()

    def _ask_fate(self, slurm: SlurmCommands) -> PackFate | None:
        fields = None
        with contextlib.suppress(SlurmError):
            fields = slurm.read_job(self.allocation.job_id)
        return judge_pack(fields, self.allocation.restarts, self._kill_reason)

    def _read_own_log(self) -> str:
        """What was written to the batch script's standard error since this attempt began."""
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(2).st_mode):
                with open("/proc/self/fd/2", "rb") as file:
                    file.seek(max(self._log_offset, os.fstat(2).st_size - LOG_LIMIT))
                    return file.read().decode("utf-8", "replace")
        return ""

    def _resume(self) -> None:
        """The signal was meant for the members alone: what ended counts as it ended."""
        self._foreign_at = None
        self._kill_reason = ""
        undecided, self._undecided = self._undecided, {}
        for number, verdict in undecided.items():
            if verdict.state is None:
                # Slurm says so where it was asked to; otherwise somebody killed its processes.
                state = MemberState.CANCELLED if verdict.reason else MemberState.FAILED
                verdict = dataclasses.replace(  # noqa: PLW2901
                    verdict, state=state, reason="its step was killed"
                )
            self._finish(self.roster.members[number], verdict)
        self.journal.write("goes_on")

    def _settle_ending(self) -> None:
        """Write what is certain; what Slurm has yet to say is left to whoever reads."""
        while self._ending is None and self._terminated:
            self._next_fate_check = 0.0
            self._follow_fate()
            if self._ending is None:
                self._wait()
        assert self._ending is not None
        if self._ending.state is None and self.slurm is not None:
            # While Slurm shows COMPLETING, only what slurmstepd wrote tells why.
            self._kill_reason = self._kill_reason or read_kill_reason(self._read_own_log())
            self._ending = self._ask_fate(self.slurm) or self._ending
        state = self._ending.state
        if state is None:
            return
        for number in inbox.list_waiting(str(self.pack)) or []:
            if inbox.take(str(self.pack), number) and number not in self.roster.members:
                self._adopt(number)
        for member in self.roster.members.values():
            if member.is_final:
                continue
            verdict = self._undecided.get(member.number)
            code = verdict.exit_code if verdict else None
            self._write(
                member, state, ended_at=time.time(), exit_code=code, reason=self._ending.reason
            )
            self._note_exit(code or ExitCode(0, signal.SIGTERM), state)
            remove_environment(self.pack, member.number)
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
                    self._release(member)
                    self.roster.waiting.appendleft(member.number)
                    continue
                self._finish(
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

    def _write(self, member: Member, state: MemberState, **changes: object) -> None:
        member.check_transition(state)
        fields = dict(changes)
        member.record = dataclasses.replace(
            member.record,
            state=state,
            attempt=self.attempt,
            **fields,  # type: ignore[arg-type]
        )
        write_state(self.pack, member.number, member.record)

    def _note_exit(self, code: ExitCode | None, state: MemberState) -> None:
        if code is None:
            code = ExitCode(0 if state is MemberState.COMPLETED else 1)
        if state in FINAL_STATES and state is not MemberState.COMPLETED and code == ExitCode():
            # A member that answered TERM with 0 has still not done what it was started for.
            code = ExitCode(1)
        if code.shell_status > self._worst.shell_status:
            self._worst = code

    def _wait(self) -> None:
        timeout = IDLE_WAIT_S
        now = time.monotonic()
        for member in self.roster.running():
            if member.is_starting:
                timeout = min(timeout, STARTING_WAIT_S)
            for due in (member.deadline, member.signal_at, member.end_by):
                if due is not None:
                    timeout = min(timeout, max(0.0, due - now))
        select.select([self._wake_read], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
