"""A pack on a named MIG layout that is still being filled: who may come on top; pure.

What a pack is judged by is kept as members come, so that a thousand that wait in one take no
longer each than the first.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from slurm_colloc.model.plan import Policy
from slurm_colloc.planning.job_needs import Need, Question
from slurm_colloc.planning.mig.instance_packs import find_smallest_seat, slow_down
from slurm_colloc.planning.mig.seat_members import fits
from slurm_colloc.planning.mig.seats import Seat
from slurm_colloc.planning.mig.shared_seats import share_seats
from slurm_colloc.planning.pack_request import compute_overload, describe_count
from slurm_colloc.planning.priced_packs import Subject
from slurm_colloc.planning.time_limits import compute_wall_limit_s

Entry = tuple[Need, Subject]
"""A job: what it needs of its node, and how planning looks at it."""


def count_places(policy: Policy, seats: Sequence[Seat]) -> int:
    """How many members run at once on a layout: one on each seat, unless the user asks for more."""
    return policy.degree if policy.mps_inside else min(policy.degree, len(seats))


class OpenLayout:
    """Members that would have a GPU with a layout together, some of them in turn.

    Args:
        question: What planning is asked.
        seats: The layout's.
        first: The first member.

    Attributes:
        members: In the user's order.
    """

    def __init__(self, question: Question, seats: Sequence[Seat], first: Entry) -> None:
        self._question = question
        self._seats = seats
        self._places = count_places(question.policy, seats)
        self._has_seated = False
        self._largest: list[Need] = []
        self._ends: list[int] | None = [0] * self._places
        self.members: list[Entry] = []
        self.add(first)

    def add(self, one: Entry) -> None:
        """Put a member into it that it does not refuse."""
        self.members.append(one)
        self._has_seated = self._has_seated or self._is_seated(one)
        self._largest = self._keep_largest(one)
        wall_s = self._compute_wall_s(one)
        if wall_s is None:
            self._ends = None
        elif self._ends is not None:
            heapq.heapreplace(self._ends, self._ends[0] + wall_s)

    def find_refusal(self, one: Entry) -> str:
        """Why a job does not come on top; empty where it does."""
        policy, count = self._question.policy, len(self.members) + 1
        if policy.pack_size is not None and count > policy.pack_size:
            return f"it is full with {describe_count(policy.pack_size, 'member')}"
        if not (self._has_seated or self._is_seated(one)):
            return "all of them need larger instances than the layout has"
        largest = self._keep_largest(one)
        overload = compute_overload(largest, min(count, self._places), self._question.capacity)
        if overload:
            return overload
        limit_s, wall_s = self._question.capacity.time_limit_max_s, self._compute_wall_s(one)
        if limit_s is None or self._ends is None or wall_s is None or count <= self._places:
            return ""
        span_s = max(*self._ends, self._ends[0] + wall_s)
        if span_s + policy.start_margin_s + policy.measure_s <= limit_s:
            return ""
        return f"{count} members need {span_s} s in turn, MaxTime is {limit_s} s"

    def order(self) -> tuple[list[Entry], int]:
        """Its members in start order, and how many run at once.

        The longest begin, as far as they have seats at once; who needs a larger one comes last.
        """
        by_length = sorted(self.members, key=lambda one: (-one[1].run_s, one[1].index))
        running: list[Entry] = []
        waiting: list[Entry] = []
        for one in by_length:
            chosen = [subject for _, subject in (*running, one)]
            has_room = len(running) < self._places
            if has_room and share_seats(chosen, self._seats) is not None:
                running.append(one)
            else:
                waiting.append(one)
        waiting.sort(key=lambda one: not self._is_seated(one))
        return running + waiting, len(running)

    def _is_seated(self, one: Entry) -> bool:
        return any(fits(one[1], seat) for seat in self._seats)

    def _keep_largest(self, one: Entry) -> list[Need]:
        """The members with most CPUs and those with most host memory: all that run at once."""
        needs = [*self._largest, dataclasses.replace(one[0], gpu_memory_mb=None)]
        if len(needs) <= self._places:
            return needs
        by_cpus = heapq.nlargest(self._places, range(len(needs)), key=lambda at: needs[at].cpus)
        by_memory = heapq.nlargest(
            self._places, range(len(needs)), key=lambda at: needs[at].host_memory_mb or 0
        )
        return [needs[at] for at in sorted({*by_cpus, *by_memory})]

    def _compute_wall_s(self, one: Entry) -> int | None:
        """How long a member may take on the smallest instance that holds it; None for no limit."""
        need, subject = one
        policy = self._question.policy
        seat = find_smallest_seat(subject, self._seats)
        slowed = need if seat is None else slow_down(need, subject, seat, policy)
        return compute_wall_limit_s(slowed, self._places, policy)
