"""Which waiting member may start: not a held one, and none whose dependency does not hold.

Nor one for which too little of the pack's time is left.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.model.sbatch.dependency import Outlook
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.member_dependencies import Judge
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.time_left import TimeLeft
from slurm_colloc.store.pack.member_holds import is_held, leave_behind, write_held
from slurm_colloc.store.pack.pack_directory import read_moved, write_ended

PATIENCE_S = 5.0
"""How long an open dependency may just be a state that this node, or Slurm, is late to show."""


class StartQueue:
    """Looks at waiting members before they start.

    Args:
        pack: The pack's directory.
        roster: Its members.
        ledger: Writes their states.
        journal: The pack's log.
        judge: Judges a job's dependency on members of other packs.
        time_left: Knows who would be ended half-way.
    """

    def __init__(
        self,
        pack: Path,
        roster: PackMembers,
        ledger: StateWriter,
        journal: Journal,
        judge: Judge,
        *,
        time_left: TimeLeft,
    ) -> None:
        self._pack = pack
        self._roster = roster
        self._ledger = ledger
        self._journal = journal
        self._judge = judge
        self._time_left = time_left
        self._judged: set[int] = set()
        self.has_handed_back = False
        """Some who wait are left to the next call of csub: too little time was left for them."""
        self._open_since: dict[int, float] = {}
        self.is_undecided = False
        """A waiting member's dependency is looked at again in a moment; as of the last look."""

    def find_next(self) -> Member | None:
        """The first waiting member that may start."""
        self.is_undecided = False
        for number in list(self._roster.waiting):
            member = self._roster.members[number]
            if self._time_left.holds(member):
                continue
            has_room = self._roster.has_room_for(member)
            if has_room and not self._is_barred(number) and self._may_go(member):
                return member
        return None

    def _is_barred(self, number: int) -> bool:
        return is_held(self._pack, number) or read_moved(self._pack, number) is not None

    def leave_behind(self) -> bool:
        """Leave what is held to whoever releases it; False if that has just happened.

        Called once the pack is closed and nothing else is left: the GPU is not kept for them. Who
        has too little time here is left to the next call of csub, which submits it again.
        """
        released = False
        short = [n for n in self._roster.waiting if self._is_short(n)]
        for number in list(self._roster.waiting):
            if read_moved(self._pack, number) is not None or number in short:
                continue
            if leave_behind(self._pack, number):
                self._journal.write("left_behind", member=number)
            else:
                released = True
        if short and not released:
            self._journal.write("handed_back", members=short)
            # Its Slurm job completes; that they had no turn is not to be taken for all right.
            write_ended(self._pack, SlurmJobState.TIMEOUT)
            self.has_handed_back = True
        return not released

    def _is_short(self, number: int) -> bool:
        member = self._roster.members[number]
        return self._time_left.is_too_short_for(member)

    def _may_go(self, member: Member) -> bool:
        job = member.spec.job
        if not job.depends or member.record.starts or member.number in self._judged:
            return True
        outlook, reason = self._judge(job)
        if outlook is Outlook.SATISFIED:
            self._judged.add(member.number)
            self._open_since.pop(member.number, None)
            return True
        since = self._open_since.setdefault(member.number, time.monotonic())
        if outlook is Outlook.OPEN and time.monotonic() - since < PATIENCE_S:
            self.is_undecided = True
            return False
        del self._open_since[member.number]
        self._journal.write("dependency", member=member.number, reason=reason)
        if outlook is Outlook.NEVER:
            self._roster.waiting.remove(member.number)
            code = ExitCode(0, signal.SIGTERM)
            self._ledger.write_end(member, MemberState.CANCELLED, code, reason)
        else:
            # Too early, and only a later pack can wait for it: nothing runs that must not.
            self._ledger.write(member, MemberState.PENDING, reason=reason)
            write_held(self._pack, member.number)
        return False
