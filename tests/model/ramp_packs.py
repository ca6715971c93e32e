"""Packs whose sum of progress is known, in simulated time, for tests of the ramp."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from slurm_colloc.model.degree.ramp_decision import Decision, RampOutlook
from slurm_colloc.model.degree.ramp_look import Sight
from slurm_colloc.model.degree.ramp_rules import Ramp

LOOK_S = 2.0


@dataclasses.dataclass
class Member:
    """A member: alone it makes `solo` steps per second, and `work` of them in all.

    In company it makes `lame` times as many as the others.
    """

    number: int
    solo: float = 20.0
    work: float = float("inf")
    kind: str = "a"
    bound: float | None = None
    predicted: float | None = None
    counts: bool = True
    lame: float = 1.0
    is_wide: bool = False
    done: float = 0.0
    begun: float | None = None
    start: int = 0
    last_step_at: float | None = None
    pauses: tuple[tuple[float, float], ...] = ()


class SimulatedPack:
    """A pack that does as its ramp says.

    Args:
        stp: The sum of progress of so many members.
        members: In their order.
        places: Members at the same time by the plan.
        start: Members that start without being measured.
        start_s: From a member's start to its first step.
        noise: Relative error of the steps between two looks.
        activity: The GPU's activity with so many members; None for unknown.
        room: How many there is room for by the additive rule; None for unknown.
        beside_wide: What is left of the progress of those that run beside one with all threads.
    """

    def __init__(
        self,
        stp: Callable[[int], float],
        members: list[Member],
        places: int,
        *,
        start: int = 1,
        start_s: float = 8.0,
        noise: float = 0.05,
        seed: int = 0,
        activity: Callable[[int], float] | None = None,
        room: int | None = None,
        can_stop: bool = False,
        beside_wide: float = 1.0,
    ) -> None:
        self.beside_wide = beside_wide
        self.stp = stp
        self.waiting = list(members)
        self.running: list[Member] = []
        self.ramp = Ramp(places, start)
        self.start_s = start_s
        self.noise = noise
        self.random = random.Random(seed)
        self.activity = activity
        self.room = room
        self.can_stop = can_stop
        self.at = 1000.0
        self.decisions: list[Decision] = []
        self.progress = 0.0
        self.ended: list[tuple[float, int]] = []
        self.most = 0

    @property
    def targets(self) -> list[int]:
        """All targets in turn."""
        return [decision.target for decision in self.decisions]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.at + seconds
        while self.at < until and (self.running or self.waiting):
            self.tick()

    def tick(self) -> None:
        """Start who may, work for two seconds, look."""
        while (
            self.waiting
            and len(self.running) < self.ramp.places
            and (not self.running or len(self.running) < self.ramp.target)
        ):
            member = self.waiting.pop(0)
            member.begun, member.start = self.at, member.start + 1
            member.done = 0.0
            member.last_step_at = None
            self.running.append(member)
        self.most = max(self.most, len(self.running))
        self._work()
        self.at += LOOK_S
        for member in [m for m in self.running if m.done >= m.work]:
            self.running.remove(member)
            self.ended.append((self.at, member.number))
        decision = self.ramp.look(self.at, [self._show(m) for m in self.running], self._outlook())
        if decision is not None:
            self.decisions.append(decision)
            if decision.stops_one:
                newest = max(self.running, key=lambda member: member.begun or 0.0)
                self.running.remove(newest)
                self.waiting.insert(0, newest)

    def _work(self) -> None:
        active = [
            m for m in self.running if m.begun is not None and self.at >= m.begun + self.start_s
        ]
        if not active:
            return
        share = self.stp(len(active)) / len(active)
        has_wide = any(member.is_wide for member in active)
        for member in active:
            if any(begin <= self.at < end for begin, end in member.pauses):
                continue
            warm = 0.5 if member.done < 0.5 * member.solo else 1.0
            rate = member.solo * share * warm * (1 + self.random.gauss(0, self.noise))
            rate *= member.lame if len(active) > 1 else 1.0
            rate *= self.beside_wide if has_wide and not member.is_wide else 1.0
            member.done += max(0.0, rate) * LOOK_S
            member.last_step_at = self.at + LOOK_S
            self.progress += max(0.0, rate) * LOOK_S / member.solo

    def _show(self, member: Member) -> Sight:
        counts = member.counts and member.done >= 1
        return Sight(
            member.number,
            member.start,
            steps=int(member.done) if counts else None,
            last_step_at=member.last_step_at if counts else None,
            solo_steps_per_s=member.solo,
            bound=member.bound,
            predicted=member.predicted,
            kind=member.kind,
            is_wide=member.is_wide,
        )

    def _outlook(self) -> RampOutlook:
        free = self.ramp.places - len(self.running)
        active = len([m for m in self.running if m.last_step_at is not None])
        return RampOutlook(
            waiting=min(free, len(self.waiting)),
            next_kind=self.waiting[0].kind if self.waiting else "",
            busy=self.activity(active) if self.activity else None,
            room=self.room if active == 1 else None,
            can_stop=self.can_stop and len(self.running) > 1,
        )
