"""The states of a pack's members on disk, and the worst of their ends."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import FINAL_STATES, ExitCode, MemberState
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_states import StateRecord, remove_environment, write_state

LAST_WRITE_S = 60.0
"""How long the end of a pack waits for room on a full disk."""


class StateWriter:
    """Writes states; a full disk does not end the members, it is tried again.

    Args:
        pack: The pack's directory.
        attempt: The attempt that writes.
    """

    def __init__(self, pack: Path, attempt: int) -> None:
        self._pack = pack
        self._attempt = attempt
        self._unwritten: dict[int, Member] = {}
        self._problem: StateError | None = None
        self.worst = ExitCode()
        self.listeners: list[Callable[[Member, StateRecord], None]] = []
        """Called with a member and its record of before, once its state was written."""

    def write(self, member: Member, state: MemberState, **changes: Any) -> None:
        """Move a member to a state.

        Args:
            member: The member.
            state: Its new state, or the one that it has.
            changes: Fields of its StateRecord.
        """
        member.check_transition(state)
        before = member.record
        member.record = dataclasses.replace(
            member.record, state=state, attempt=self._attempt, **changes
        )
        self._unwritten[member.number] = member
        self.flush()
        for listener in self.listeners:
            listener(member, before)

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
            code: How it ended; None where nobody saw it.
            reason: Why, for people.
            ended_at: When, in seconds since the epoch; None for now. A full disk delays the
                writing, and what is written stays the moment of the end.
            changes: Other fields of its StateRecord.
        """
        moment = time.time() if ended_at is None else ended_at
        self.write(member, state, ended_at=moment, exit_code=code, reason=reason, **changes)
        self.note_end(code, state)
        remove_environment(self._pack, member.number)

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
        for number in sorted(self._unwritten):
            try:
                write_state(self._pack, number, self._unwritten[number].record)
            except StateError as problem:
                if self._problem is None:
                    sys.stderr.write(f"csub: error: {problem}\n")
                self._problem = problem
                return
            del self._unwritten[number]
        self._problem = None

    def finish(self, wait: Callable[[], None]) -> None:
        """Write the last states, as long as that may take within reason.

        Args:
            wait: Waits for a moment.

        Raises:
            StateError: They could not be written.
        """
        deadline = time.monotonic() + LAST_WRITE_S
        while self._unwritten:
            self.flush()
            if self._problem is not None:
                if time.monotonic() > deadline:
                    raise self._problem
                wait()
