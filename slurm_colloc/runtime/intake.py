"""Taking members from the pack's directory into the roster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.probing import ALONE_FIRST
from slurm_colloc.model.ramp_decision import is_ramp_reason, is_time_reason
from slurm_colloc.runtime.ledger import Ledger
from slurm_colloc.runtime.restarts import tell_of_restart
from slurm_colloc.runtime.roster import Member, Roster
from slurm_colloc.store import inbox
from slurm_colloc.store.directory import read_spec
from slurm_colloc.store.kills import RunnerKill
from slurm_colloc.store.states import StateRecord, read_state


class Intake:
    """Takes in members, new ones and those of earlier attempts.

    Args:
        pack: The pack's directory.
        attempt: The attempt that runs.
        killed_before: The killed runner after which it runs; None where there was none.
        roster: Takes the members.
        ledger: Writes their states.
        note_requeue: Told of a member that starts again.
    """

    def __init__(
        self,
        *,
        pack: Path,
        attempt: int,
        killed_before: RunnerKill | None,
        roster: Roster,
        ledger: Ledger,
        note_requeue: Callable[[Member], None],
    ) -> None:
        self._pack = pack
        self._attempt = attempt
        self._killed_before = killed_before
        self._roster = roster
        self._ledger = ledger
        self._note_requeue = note_requeue

    def adopt_taken(self) -> None:
        """Take in all that an earlier attempt has taken from the inbox."""
        for number in inbox.list_taken(str(self._pack)):
            if number not in self._roster.members:
                self.adopt(number)

    def adopt(self, number: int) -> None:
        """Take in a member; unless it has ended it waits for its start, again where it has run.

        Raises:
            StateError: What it runs, or its state, is missing or damaged.
        """
        spec = read_spec(self._pack, number)
        record = read_state(self._pack, number, self._attempt - 1)
        if record is None:
            record = StateRecord(MemberState.PENDING, self._attempt)
        member = Member(number, spec, record)
        self._roster.members[number] = member
        if member.is_final:
            self._ledger.note_end(record.exit_code, record.state)
            return
        if record.state is not MemberState.PENDING:
            self._note_requeue(member)
            member.record = dataclasses.replace(record, state=MemberState.PENDING)
            if self._killed_before is not None:
                member.record = tell_of_restart(member.record, self._killed_before)
        # What an earlier attempt was waiting for is over.
        waited = member.record.reason
        is_over = ALONE_FIRST in waited or is_ramp_reason(waited) or is_time_reason(waited)
        stale = {"reason": ""} if is_over else {}
        self._ledger.write(member, MemberState.PENDING, **stale)
        self._roster.waiting.append(number)
