"""Members that are parked: paused, with their GPU memory, until a place is free for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.pausing.pause_members import MemberPauser
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.members_to_measure import MembersToMeasure
from slurm_colloc.runtime.queue.time_left import END_MARGIN_S, TimeLeft
from slurm_colloc.store.pack.member_pauses import PARKED


class ParkedMembers:
    """Parks members, and lets them go on.

    Args:
        members: All of the pack.
        to_measure: Knows their order.
        pauser: Pauses them.
        time_left: Knows what is left of the pack's time.
        journal: The pack's log.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        *,
        members: PackMembers,
        to_measure: MembersToMeasure,
        pauser: MemberPauser,
        time_left: TimeLeft,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = members
        self._to_measure = to_measure
        self._pauser = pauser
        self._time_left = time_left
        self._journal = journal
        self._clock = clock
        self.has_let_go = False
        """A parked member has gone on although there was no place for it: it was sent a signal."""

    def list_parked(self) -> list[Member]:
        """Those that are."""
        return [member for member in self._members.running() if member.is_parked]

    def park(self, running: Sequence[Member], too_many: Sequence[Member]) -> None:
        """Let all go on but those that are too many.

        Args:
            running: All that run.
            too_many: Those that are to be parked, as far as that may be.
        """
        parked = [
            member
            for member in too_many
            if not self._to_measure.describe_parking_obstacle(member)
            and not self.is_last_moment(member)
        ]
        for member in running:
            member.is_parked = member in parked
        self._pauser.resume([member for member in running if not member.is_parked])
        self._pauser.pause(parked, PARKED)

    def let_go(self) -> None:
        """All go on."""
        running = self._members.running()
        for member in running:
            member.is_parked = False
        self._pauser.resume(running)

    def refill(self, degree: int) -> bool:
        """Let those go on for which there is a place, or too little time; True where some did.

        Args:
            degree: As many may run.
        """
        parked = self.list_parked()
        if not parked:
            return False
        going = len(self._members.running()) - len(parked)
        ordered = self._to_measure.order(parked, set())
        to_resume = ordered[: max(0, degree - going)]
        for member in ordered[len(to_resume) :]:
            if member.paused_at is None:
                # A signal, or an end, has let it go on.
                member.is_parked = False
                self.has_let_go = True
            elif self.is_last_moment(member):
                self._journal.write("not_parked", member=member.number, reason="too little time")
                to_resume.append(member)
        for member in to_resume:
            member.is_parked = False
        self._pauser.resume(to_resume)
        return len(self.list_parked()) != len(parked)

    def is_last_moment(self, member: Member) -> bool:
        """Whether a member would have too little of the pack's time left if it waited longer.

        It is judged by its `--time`, of which the wall limit is more than it needs where it does
        not share.
        """
        left_s, wall_s = self._time_left.left_s, member.spec.plan.wall_limit_s
        if left_s is None or wall_s is None:
            return False
        alone_s = min(wall_s, member.spec.job.time_limit_s or wall_s)
        has_run_s = 0.0
        if member.deadline is not None:
            now = self._clock()
            paused_s = 0.0 if member.paused_at is None else now - member.paused_at
            has_run_s = max(0.0, wall_s - (member.deadline + paused_s - now))
        return left_s < alone_s - has_run_s + END_MARGIN_S
