"""The states of a pack's members on disk, and the worst of their ends.

Also: what slurmstepd writes into the output of a job that it ends, for a member of a pack.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import FINAL_STATES, EndCause, ExitCode, MemberState
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    DONE_WITH,
    StateRecord,
    put_environment_aside,
    remove_environment,
    write_state,
)

LAST_WRITE_S = 60.0
"""How long the end of a pack waits for room on a full disk."""


@dataclass(eq=False, kw_only=True)
class StateWriter:
    """Writes states; a file system that fails does not end the members, it is tried again.

    Attributes:
        pack: The attempt of the pack.
        listener: Called with a member and its record of before, with each new state.
    """

    pack: PackContext
    listener: Callable[[Member, StateRecord], None] | None = None

    def __post_init__(self) -> None:
        self._unwritten: dict[int, StateRecord] = {}
        self._secrets: set[int] = set()
        self._done: set[int] = set()
        self._problem: StateError | None = None
        self.worst = ExitCode()

    def write(self, member: Member, state: MemberState, **changes: Any) -> None:
        """Move a member to a state.

        Args:
            member: The member.
            state: Its new state, or the one that it has.
            changes: Fields of its StateRecord.
        """
        member.check_transition(state)
        before = member.record
        if state is not MemberState.PENDING:
            changes["waits"] = None
        member.record = replace(member.record, state=state, attempt=self.pack.attempt, **changes)
        self._unwritten[member.number] = member.record
        self.flush()
        if self.listener is not None:
            # It comes after the state, and what becomes of it must not undo that.
            self.pack.steps.run("the mails", partial(self.listener, member, before))

    def write_end(
        self,
        member: Member,
        state: MemberState,
        code: ExitCode | None,
        reason: str,
        *,
        ended_at: float | None = None,
        **changes: Any,
    ) -> None:
        """Move a member to a final state; its environment, which may hold secrets, goes away.

        Args:
            member: The member.
            state: Its final state.
            code: How it ended; None where that was not seen.
            reason: Why, for people.
            ended_at: When, in seconds since the epoch; None for now. A full disk delays the
                writing, and what is written stays the moment of the end.
            changes: Other fields of its StateRecord.
        """
        moment = time.time() if ended_at is None else ended_at
        self._secrets.add(member.number)
        if state in DONE_WITH:
            self._done.add(member.number)
        self.write(member, state, ended_at=moment, exit_code=code, reason=reason, **changes)
        self.note_end(code, state)

    def refuse(self, number: int, reason: str) -> None:
        """Write that a member has failed of which nothing else can be read.

        Args:
            number: Its number.
            reason: Why, for people.
        """
        self._secrets.add(number)
        self._unwritten[number] = StateRecord(
            MemberState.FAILED,
            self.pack.attempt,
            ended_at=time.time(),
            reason=reason,
            cause=EndCause.NOT_STARTED.value,
        )
        self.note_end(None, MemberState.FAILED)
        self.flush()

    def note_end(self, code: ExitCode | None, state: MemberState) -> None:
        """Count how a member ended."""
        if code is None:
            code = ExitCode(0 if state is MemberState.COMPLETED else 1)
        if state in FINAL_STATES and state is not MemberState.COMPLETED and code == ExitCode():
            # A member that answered TERM with 0 has still not done what it was started for.
            code = ExitCode(1)
        if code.shell_status > self.worst.shell_status:
            self.worst = code

    def flush(self) -> None:
        """Write what is new, as far as it can be written now."""
        self._problem = None
        for number in sorted(self._unwritten):
            try:
                write_state(self.pack.path, number, self._unwritten[number])
            except StateError as problem:
                if self._has_left(number):
                    del self._unwritten[number]
                    continue
                self._problem = problem
                self.pack.steps.note("writing states", problem)
            else:
                del self._unwritten[number]
        # A member's environment goes away once its end is known to all; where it may be tried
        # again, it is kept for that alone.
        for number in sorted(self._secrets - self._unwritten.keys()):
            try:
                put_away = remove_environment if number in self._done else put_environment_aside
                put_away(self.pack.path, number)
            except StateError as problem:
                self._problem = problem
                self.pack.steps.note("writing states", problem)
            else:
                self._secrets.discard(number)
        if self._problem is None:
            self.pack.steps.forget("writing states")

    def _has_left(self, number: int) -> bool:
        """A member's directory has gone to the pack that took it over before it began."""
        record = self._unwritten[number]
        if record.starts or record.state is not MemberState.PENDING:
            return False
        try:
            return not is_there(f"{self.pack.path}/members/{format_number(number)}")
        except StateError:
            return False

    def finish(self, wait: Callable[[], None]) -> None:
        """Write the last states, as long as that may take within reason.

        Args:
            wait: Waits for a moment.

        Raises:
            StateError: They could not be written.
        """
        deadline = time.monotonic() + LAST_WRITE_S
        self.flush()
        while self._problem is not None and time.monotonic() <= deadline:
            wait()
            self.flush()
        if self._unwritten and self._problem is not None:
            raise self._problem


# ---- What slurmstepd writes into the output of a job that it ends, for a member of a pack --------
#
# People and their scripts look for `CANCELLED AT ... DUE TO TIME LIMIT` there. slurmstepd itself
# knows the pack alone, and writes to the pack's log.

_DUE_TO: dict[StopReason | MemberState, str] = {
    StopReason.CANCEL: "",
    StopReason.TIMEOUT: " DUE TO TIME LIMIT",
    StopReason.REQUEUE: " DUE TO JOB REQUEUE",
    MemberState.CANCELLED: "",
    MemberState.TIMEOUT: " DUE TO TIME LIMIT",
    MemberState.PREEMPTED: " DUE TO PREEMPTION",
}
"""By slurmstepd's `_kill_container` and slurmd's `_rpc_*` (22.05 to 26.05)."""


@dataclass(eq=False, kw_only=True)
class CancellationLines:
    """Writes them.

    Attributes:
        pack: The attempt of the pack.
        is_written: Members are no Slurm jobs by themselves, and have files of their own.
    """

    pack: PackContext
    is_written: bool

    def write(self, member: Member, why: StopReason | MemberState | None) -> None:
        """Append the line to the file of a member's errors; nothing where that cannot be done.

        Args:
            member: The member, which is being ended or was.
            why: What ends it; others than Slurm's reasons have no line.
        """
        due_to = None if why is None else _DUE_TO.get(why)
        if due_to is None or not member.outputs or not self.is_written:
            return
        job_id = self.pack.allocation.environment.get("SLURM_JOB_ID", self.pack.allocation.job_id)
        node = self.pack.allocation.node
        at = time.strftime("%Y-%m-%dT%H:%M:%S")
        line = (
            f"slurmstepd-{node}: error: *** JOB {job_id} ON {node} CANCELLED AT {at}{due_to} ***\n"
        )
        with contextlib.suppress(OSError):
            _append(member.outputs[-1][0], line.encode())


def _append(path: str, line: bytes) -> None:
    """Append to a file that is there; a device or a pipe might keep this process waiting."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.write(descriptor, line)
    finally:
        os.close(descriptor)
