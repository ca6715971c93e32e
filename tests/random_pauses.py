"""Runners that pause and park members at random, in the place of measuring: for campaigns."""

from __future__ import annotations

import random

from slurm_colloc.model.member import Stage
from slurm_colloc.planning.arrange import DegreeFacts, View
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.take_over_members import MemberTakeOver
from slurm_colloc.store.member_states import MEASURED, PARKED


def pause_at_random(seed: int, room: int = 0) -> None:
    """Let each runner of this process do so.

    Args:
        seed: What is drawn.
        room: As many members are to run at once, by what was measured.
    """
    chance = random.Random(seed)
    due = 0.0

    def work(self: MeasuredDegree, _look: object) -> None:
        nonlocal due
        running = self.pack.members.running()
        self.pauser.check(running)
        if self.pack.clock() < due:
            return
        due = self.pack.clock() + chance.uniform(0.2, 2.0)
        some = [m for m in running if not m.is_starting and m.end_by is None]
        chosen = chance.sample(some, chance.randint(0, max(0, len(some) - 1)))
        reason = chance.choice((MEASURED, PARKED))
        for member in some:
            is_parked = reason == PARKED and member in chosen
            (member.keep_at if is_parked else member.let_go)(Stage.PARKED)
        self.pauser.resume([m for m in some if m not in chosen])
        self.pauser.pause(chosen, reason)

    def gather(_: MeasuredDegree, _running: object) -> DegreeFacts:
        return DegreeFacts(bounds=False)

    def find_room(_: MemberTakeOver, view: View) -> int:
        return max(0, room - len(view.running))

    MeasuredDegree.work = work  # type: ignore[method-assign, assignment]
    MeasuredDegree.gather = gather  # type: ignore[method-assign, assignment]
    MemberTakeOver.find_room = find_room  # type: ignore[method-assign, assignment]
