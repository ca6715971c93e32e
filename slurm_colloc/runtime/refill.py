"""Starting waiting members in places that are free, until none is left and the pack is closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.ends import EndCause
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.gate import Gate
from slurm_colloc.runtime.intake import Intake
from slurm_colloc.runtime.ledger import Ledger
from slurm_colloc.runtime.probing import Probing
from slurm_colloc.runtime.ramp import Ramping
from slurm_colloc.runtime.roster import Member, Place, Roster
from slurm_colloc.runtime.sharing import Sharing
from slurm_colloc.runtime.starter import Starter
from slurm_colloc.runtime.tender import Tender
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.store import inbox
from slurm_colloc.store.holds import is_held


class Refill:
    """Starts whoever may start.

    Args:
        pack: The pack's directory.
        roster: Its members and places.
        gate: Which member is next.
        probing: Whether somebody is to be alone first.
        ramping: Whether as many run as may.
        sharing: Whether anybody may start here at all.
        starter: Starts members.
        tender: Told of those that could not be started.
        ledger: Writes their states.
        intake: Takes new members into the roster.
        check_fence: Called before a start; raises where a newer attempt has begun.
    """

    def __init__(
        self,
        *,
        pack: Path,
        roster: Roster,
        gate: Gate,
        probing: Probing,
        ramping: Ramping,
        sharing: Sharing,
        starter: Starter,
        tender: Tender,
        ledger: Ledger,
        intake: Intake,
        check_fence: Callable[[], None],
    ) -> None:
        self._pack = pack
        self._roster = roster
        self._gate = gate
        self._probing = probing
        self._ramping = ramping
        self._sharing = sharing
        self._starter = starter
        self._tender = tender
        self._ledger = ledger
        self._intake = intake
        self._check_fence = check_fence

    def work(self) -> None:
        """Take what has entered, and start as many as may run."""
        for number in inbox.list_waiting(str(self._pack)) or []:
            if number not in self._roster.members and inbox.take(str(self._pack), number):
                self._intake.adopt(number)
        if self._sharing.refusal:
            self._refuse_all()
            return
        while (member := self._gate.find_next()) is not None:
            place = self._roster.find_place(member.spec.plan.cpus)
            if place is None:
                return
            if self._probing.holds(member):
                self._probing.tell_waiting()
                return
            if self._ramping.holds(member):
                self._ramping.tell_waiting()
                return
            self._check_fence()
            self._start(member, place)

    def close(self) -> bool:
        """Close the pack if nothing waits; False if something has entered meanwhile."""
        if self._gate.find_next() is not None or not inbox.close(str(self._pack)):
            return False
        # A fenced attempt may have taken an entry before it noticed.
        self._intake.adopt_taken()
        return self._gate.leave_behind()

    def _start(self, member: Member, place: Place) -> None:
        self._roster.waiting.remove(member.number)
        place.occupant = member.number
        try:
            if not self._starter.start(member, place):
                self._tender.release(member)
                self._roster.waiting.appendleft(member.number)
        except (OSError, StateError) as error:
            if isinstance(error, FileNotFoundError) and self._starter.fall_back(
                member, f"{error.filename} is not installed or not in PATH"
            ):
                self._tender.release(member)
                self._roster.waiting.appendleft(member.number)
                return
            self._tender.finish(
                member, Verdict(MemberState.FAILED, None, f"it could not be started: {error}")
            )

    def _refuse_all(self) -> None:
        """Nobody may start here: the GPU cannot be shared in the only way that was allowed."""
        for number in list(self._roster.waiting):
            member = self._roster.members[number]
            if not is_held(self._pack, number):
                self._roster.waiting.remove(number)
                # Who has run before had a daemon, and lost it.
                cause = EndCause.MPS_GONE if member.record.starts else EndCause.NOT_STARTED
                reason = self._sharing.refusal
                self._ledger.write_end(member, MemberState.FAILED, None, reason, cause=cause.value)
