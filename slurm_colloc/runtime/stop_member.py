"""Ending and signalling members: time limits, `--signal`, and what requests call for.

Also: a member's processes: signals to them, and what its wrapper and its srun have written; the
steps that members' own scripts have started: signals to them, and their end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from slurm_colloc.errors import SlurmError, StateError
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.guarded_steps import RETRY_S, DeliberateEnd
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.path_shims import PathWatch
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.runtime.write_states import CancellationLines, StateWriter
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.atomic_files import is_there, read_json
from slurm_colloc.store.member_states import read_attempt

# ---- A member's processes: signals to them, and what its wrapper and its srun have written -------

LOG_LIMIT = 65536
"""So many bytes of a log's end are looked at."""


def terminate(member: Member) -> None:
    """Ask the member's wrapper to end it: TERM now, KILL after KillWait."""
    if member.wrapper_pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.wrapper_pid, signal.SIGTERM)  # noqa: TID251 - its own
    elif member.process is not None:
        member.process.kill()


def kill(member: Member) -> None:
    """End a member at once, wrapper and all."""
    # The wrapper first: it must not write this down as an end of the script's own.
    for pid in (member.wrapper_pid, member.pid):
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # noqa: TID251 - its own
    if member.process is not None:
        member.process.kill()


def outlives_its_srun(member: Member) -> bool:
    """True where only the srun of a step was killed: its wrapper still runs on this node."""
    if member.launcher != "srun" or member.wrapper_pid is None:
        return False
    if os.path.exists(f"{member.prefix}.exit"):
        return False
    try:
        with open(f"/proc/{member.wrapper_pid}/cmdline", "rb") as file:
            return os.fsencode(f"{member.prefix}.launch") in file.read().split(b"\0")
    except OSError:
        return False


def ends_before_its_srun(member: Member) -> bool:
    """True where the wrapper of a step has written how it ended, whatever its srun does."""
    return member.launcher == "srun" and os.path.exists(f"{member.prefix}.exit")


def read_started(member: Member) -> dict[str, Any] | None:
    """What the wrapper wrote when it was up; None before that."""
    return read_json(f"{member.prefix}.started")


def read_exit(member: Member) -> dict[str, Any] | None:
    """What the wrapper wrote at the end; None if it could not."""
    return read_json(f"{member.prefix}.exit")


def read_log(member: Member) -> str:
    """The end of what srun wrote."""
    try:
        with open(f"{member.prefix}.log", "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_LIMIT))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def clean(member: Member) -> None:
    """Remove what the wrapper could not remove itself."""
    with contextlib.suppress(OSError):
        os.unlink(f"{member.prefix}.launch")
    for path in (member.tmpdir, *(member.places or ())):
        if path:
            shutil.rmtree(path, ignore_errors=True)


# ---- The steps that members' own scripts have started: signals to them, and their end ------------

ASK_AGAIN_S = 10.0
"""How long Slurm is not asked for steps again after it has not answered."""


@dataclass(eq=False, kw_only=True)
class InnerSteps:
    """Signals and ends them.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def __post_init__(self) -> None:
        self._failure: SlurmError | None = None
        self._ask_again_at = 0.0

    def signal(self, member: Member, number: int) -> None:
        """Signal the tasks of the steps that the member's own script has started, once each.

        The runner does it itself: a task may get the signal of `scancel JOB.STEP` twice (seen on
        22.05, while another job waits). Slurm is asked where the tasks cannot be found.

        Raises:
            SlurmError: Slurm does not tell the steps, or does not signal them; none was signalled.
            StateError: It cannot be told whether there are any.
        """
        if self.pack.slurm is None:
            return
        if self._failure is not None and time.monotonic() < self._ask_again_at:
            raise self._failure
        try:
            steps = self._list(member, self.pack.slurm)
            tasks = {step: find_tasks(self._name_process(step)) for step in steps}
            if unseen := [step for step, pids in tasks.items() if not pids]:
                self.pack.slurm.signal_steps(unseen, number)
        except SlurmError as error:
            self._failure, self._ask_again_at = error, time.monotonic() + ASK_AGAIN_S
            raise
        self._failure = None
        for pid in (pid for pids in tasks.values() for pid in pids):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)  # noqa: TID251 - its own

    def _name_process(self, step: str) -> str:
        """What slurmstepd calls itself: it has the job's own id, also for an array's element."""
        job_id = self.pack.allocation.environment.get("SLURM_JOB_ID", "")
        return f"slurmstepd: [{job_id}.{step.rpartition('.')[2]}]"

    def end(self, member: Member) -> None:
        """End the steps that the member's own script has left running."""
        if self.pack.slurm is not None:
            with contextlib.suppress(SlurmError):
                if steps := self._list(member, self.pack.slurm):
                    self.pack.slurm.end_steps(steps)

    def _list(self, member: Member, slurm: SlurmAccess) -> list[str]:
        if not is_there(f"{member.prefix}.steps"):
            return []
        prefix = f"{member.name(self.pack.shown_id)}:"
        named = slurm.list_steps(self.pack.allocation.job_id)
        return [step for step, name in named if name.startswith(prefix)]


def find_tasks(manager: str) -> list[int]:
    """The processes that a step's slurmstepd has started on this node, by what it calls itself.

    Empty where it is not here, or the node hides the processes of others (proc(5), hidepid).
    """
    parents: dict[int, int] = {}
    managers = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name, in parentheses, may hold anything.
                text = file.read()
                parents[int(entry)] = int(text.rpartition(b")")[2].split()[1])
            if b"(slurmstepd)" in text:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if os.fsdecode(file.read()).rstrip("\0 ") == manager:
                        managers.add(int(entry))
        except (OSError, ValueError, IndexError):
            continue
    uid = os.geteuid()
    return [
        pid
        for pid, parent in parents.items()
        if parent in managers and pid not in managers and _is_of(pid, uid)
    ]


def _is_of(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False


# ---- Ending and signalling members: time limits, `--signal`, and what requests call for ----------

KILL_MARGIN_S = 5.0
"""Beyond KillWait, after which the runner ends a wrapper that did not do it."""


@dataclass(eq=False, kw_only=True)
class MemberControl:
    """What may happen to a member besides running to its end.

    Attributes:
        pack: The attempt of the pack.
        inner_steps: The steps that their own scripts have started.
        states: Writes their states.
        pauser: Lets paused members go on before anything is sent to them.
        kill_wait_s: From TERM to KILL.
        lines: Says in their output that they are ended, as slurmstepd does.
    """

    pack: PackContext
    inner_steps: InnerSteps
    states: StateWriter
    pauser: MemberPauser
    kill_wait_s: float
    lines: CancellationLines

    def __post_init__(self) -> None:
        self._path_watch = PathWatch(self.pack.journal)

    def cancel(self, member: Member, reason: str) -> None:
        """Have a member end for good, whatever it is at: this may be called again and again.

        Args:
            member: The member.
            reason: By whom or why, for its state.
        """
        if member.process is not None:
            self.end(member, StopReason.CANCEL)
        elif member.number in self.pack.members.waiting:
            self.pack.members.waiting.remove(member.number)
            code = ExitCode(0, signal.SIGTERM)
            self.states.write_end(member, MemberState.CANCELLED, code, reason)
        else:
            # Its processes have ended, and what that means is not decided.
            member.asked = StopReason.CANCEL

    def requeue(self, member: Member) -> None:
        """Have a member end, and start again; one that waits does so anyway."""
        if member.process is not None:
            self.end(member, StopReason.REQUEUE)
        elif member.number not in self.pack.members.waiting and member.asked is None:
            member.asked = StopReason.REQUEUE

    def signal(self, member: Member, number: int, *, steps_only: bool) -> None:
        """Send a signal to a member's script, or to the job steps that it has started.

        Raises:
            SlurmError: The steps were not signalled, for Slurm did not answer.
            StateError: It cannot be told whether there are steps.
        """
        # A stopped process would get it only later.
        self.pauser.resume([member])
        if steps_only:
            self.inner_steps.signal(member, number)
        elif member.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)  # noqa: TID251 - its own

    def end(self, member: Member, why: StopReason) -> None:
        """TERM to the member now, KILL after KillWait (the wrapper does both).

        What ends a member for good takes the place of what would have it run again.
        """
        overridden: set[StopReason | None] = {None}
        if why is StopReason.CANCEL:
            overridden |= {StopReason.REQUEUE, StopReason.FAULT}
        if member.asked in overridden:
            member.asked = why
            if member.end_by is None:
                self._terminate(member)

    def end_stuck(self, numbers: Iterable[int]) -> None:
        """End those that keep a broken MPS server from mending, unless they are being ended."""
        for number in numbers:
            member = self.pack.members.by_number[number]
            if member.process is not None and member.asked is None:
                self.end(member, StopReason.FAULT)

    def _terminate(self, member: Member) -> None:
        member.end_by = time.monotonic() + self.kill_wait_s + KILL_MARGIN_S
        self.pauser.resume([member])
        self.lines.write(member, member.asked)
        terminate(member)
        # What its wrapper does does not depend on it.
        with contextlib.suppress(SlurmError, StateError):
            self.inner_steps.signal(member, signal.SIGTERM)
        why = "" if member.asked is None else member.asked.value
        self.pack.journal.write("terminate", member=member.number, reason=why)

    def enforce_limits(self) -> None:
        """Send what is due: `--signal`, the end of a wall limit, the last KILL."""
        look = partial(self._path_watch.look, self.pack.members.with_process())
        self.pack.steps.run("the PATH of members", look)
        for member in self.pack.members.with_process():
            name = f"the limits of member {member.number}"
            self.pack.steps.run(name, partial(self._enforce, member, time.monotonic()))

    def _enforce(self, member: Member, now: float) -> None:
        # The harshest first: what fails below must not stand in its way.
        if member.end_by is not None and now >= member.end_by:
            member.end_by = now + KILL_MARGIN_S
            kill(member)
        if member.paused_at is not None:
            # Its time stands still.
            return
        if member.deadline is not None and now >= member.deadline and member.asked is None:
            self.end(member, StopReason.TIMEOUT)
        if member.signal_at is not None and now >= member.signal_at:
            request = member.spec.job.signal
            assert request is not None
            # Where it fails another turn tries again: it may be all that makes it save its work.
            member.signal_at = now + RETRY_S
            self.signal(member, request.number, steps_only=not request.batch_shell)
            member.signal_at = None


# ----
# An attempt of a pack ends as soon as a newer one has started elsewhere, or it counts as gone.


class Fenced(DeliberateEnd):
    """A newer attempt of this pack has started elsewhere."""

    exit_code = 1


@dataclass(eq=False, kw_only=True)
class AttemptFence:
    """Between an attempt and the ones after it.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def check(self) -> None:
        """End the members at once where this attempt is not to go on.

        Raises:
            Fenced: A newer one has started.
        """
        newest = read_attempt(self.pack.path)
        if newest > self.pack.attempt:
            for member in self.pack.members.with_process():
                kill(member)
            raise Fenced(
                f"attempt {newest} of this pack has started; attempt {self.pack.attempt} ends"
            )
