"""What a runner knows of its waiting members, as far as it decides which is next."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from slurm_colloc.model.why_not_now import (
    RunningMember,
    StartFacts,
    read_dependency,
    why_not_now,
)
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.time_left import TimeLeft
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.pack_directory import read_moved


class WaitingFacts:
    """Gathers the facts of `model.why_not_now`.

    Args:
        pack: The pack's directory.
        shown_id: The pack's job id as users know it.
        members: Its members.
        time_left: What is left of the pack's time.
    """

    def __init__(
        self, pack: Path, shown_id: str, members: PackMembers, time_left: TimeLeft
    ) -> None:
        self._pack = pack
        self._shown_id = shown_id
        self._members = members
        self._time_left = time_left

    def name(self, member: Member) -> str:
        """`4711/3`."""
        return str(member.name(self._shown_id))

    def gather_pack(self) -> StartFacts:
        """What holds for each of them."""
        now = time.monotonic()
        occupants = [place.occupant for place in self._members.places if place.occupant is not None]
        running = [
            self._members.by_number[number]
            for number in sorted(occupants)
            if number in self._members.by_number
        ]
        return StartFacts(
            degree=len(self._members.places),
            takes_one=self._members.takes_one,
            running=tuple(
                RunningMember(
                    self.name(member),
                    member.record.retries.alone,
                    None if member.deadline is None else int(member.deadline - now),
                )
                for member in running
            ),
        )

    def gather(self, member: Member, pack: StartFacts) -> StartFacts:
        """What is a member's own; its files are looked at only where all else lets it start.

        Args:
            member: The member.
            pack: From `gather_pack`.
        """
        facts = dataclasses.replace(
            pack,
            too_late=self._time_left.describe(member),
            alone=member.record.retries.alone,
            has_run=member.record.starts > 0,
        )
        if why_not_now(facts) is not None:
            return facts
        held = is_held(self._pack, member.number)
        return dataclasses.replace(
            facts,
            is_held=held,
            dependency=read_dependency(member.record.reason) if held else "",
            is_moved=read_moved(self._pack, member.number) is not None,
        )

    def list_next(self) -> list[Member]:
        """The waiting members that have no reason of their own to wait, dependencies apart."""
        pack = self.gather_pack()
        members = [self._members.by_number[number] for number in self._members.waiting]
        return [member for member in members if why_not_now(self.gather(member, pack)) is None]
