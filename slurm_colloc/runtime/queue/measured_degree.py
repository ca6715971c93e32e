"""The ramp of a pack as it runs: what its decisions rest on, and what is done about them.

Nothing is held back where nothing can be measured. The decisions themselves are made by
model.degree.ramp_rules.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.degree.ramp_decision import STAGE_S, Decision, Outlook, RampState
from slurm_colloc.model.degree.ramp_rules import Ramp
from slurm_colloc.model.degree.ramp_window import FIRST_STEP_S
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.probe_members import ProbeWindow
from slurm_colloc.runtime.queue.time_left import END_MARGIN_S, TimeLeft
from slurm_colloc.runtime.watch.member_progress import ProgressReader
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.ramp_record import KEPT, RampRecord, write_ramp


class MeasuredDegree:
    """Adds members one after the other as far as what is measured allows it.

    Args:
        pack: The pack's directory.
        attempt: The attempt's number.
        start_degree: Members that start without being measured first; None for all.
        time_left: Knows what is left of the pack's time.
        roster: Its members.
        ledger: Writes why they wait.
        journal: The pack's log.
        probing: Knows whether somebody is to be alone, and what that has shown.
        site_requeues: Slurm's JobRequeue.
        why_unwatched: Why nothing is measured in this pack; empty where it is.
        lookout: Sees their progress.
        step_back: Stops a member that goes on later.
    """

    def __init__(
        self,
        *,
        pack: Path,
        attempt: int,
        start_degree: int | None,
        time_left: TimeLeft,
        roster: PackMembers,
        ledger: StateWriter,
        journal: Journal,
        probing: ProbeWindow,
        site_requeues: bool,
        why_unwatched: Callable[[], str],
        lookout: ProgressReader,
        step_back: Callable[[Member], None],
    ) -> None:
        self._pack = pack
        self._attempt = attempt
        self._start_degree = start_degree
        self._time_left = time_left
        self._roster = roster
        self._ledger = ledger
        self._journal = journal
        self._probing = probing
        self._site_requeues = site_requeues
        self._why_unwatched = why_unwatched
        self._lookout = lookout
        self._step_back = step_back
        self._ramp: Ramp | None = None
        self._decisions: tuple[Decision, ...] = ()
        self._held_since: float | None = None
        self._let_go_left_s = math.inf
        """What was left of the pack's time when somebody last started unmeasured."""
        self._is_written = False
        self._told: dict[int, str] = {}

    @property
    def likely_degree(self) -> int | None:
        """As many as may run at once in the end, as far as it is known; None where all start."""
        return None if self._ramp is None else self._ramp.likely_degree

    def holds(self, member: Member) -> bool:
        """Whether as many run as may; this one, the next, waits although it has a place."""
        ramp = self._find_ramp()
        running = len(self._roster.running())
        if ramp is None or not running or running < ramp.target or self._roster.takes_one:
            return False
        if self._held_since is None:
            self._held_since = time.time()
        self._check_sight(ramp)
        if running < ramp.target or self._is_last_moment(ramp, member):
            return False
        if not self._is_written:
            self._write()
        return True

    def tell_waiting(self) -> None:
        """Write down why members wait that have a place."""
        running = len(self._roster.running())
        text = self._build_record().explain_waiting(running)
        free = sum(place.occupant is None for place in self._roster.places)
        for number in list(self._roster.waiting)[:free]:
            member = self._roster.members[number]
            is_ours = self._told.get(number) == member.record.reason
            is_free = is_ours or not member.record.reason
            if is_free and member.record.reason != text and not is_held(self._pack, number):
                self._told[number] = text
                self._ledger.write(member, MemberState.PENDING, reason=text)

    def work(self) -> None:
        """Look at the newest figures, and do what follows from them."""
        ramp = self._find_ramp()
        if ramp is None:
            return
        self._untell()
        # What a probe window shows counts once its rate is known, at its end.
        may_know = self._probing.is_open or self._lookout.knows_rates()
        is_measured = ramp.state is not RampState.OFF and may_know
        latest = self._lookout.read() if is_measured else None
        if latest is None:
            return
        running = self._roster.running()
        try:
            sights = [self._lookout.see(member, latest) for member in running]
            decision = ramp.look(latest["at"], sights, self._find_outlook(latest))
        except Exception as error:  # noqa: BLE001 - figures of other hands never end a pack
            reason = f"what they show cannot be judged: {error!r}"
            decision = ramp.give_up(time.time(), len(running), reason)
        self._note(decision)

    def _find_ramp(self) -> Ramp | None:
        places = len(self._roster.places)
        if self._ramp is None and places > 1:
            self._ramp = Ramp(places, self._start_degree or places)
        return self._ramp

    # -- deciding -----------------------------------------------------------------------------

    def _check_sight(self, ramp: Ramp) -> None:
        """Hold nobody back for what will never be measured."""
        if ramp.state is not RampState.RAMPING or self._probing.is_open:
            return
        reason = self._find_blindness(ramp)
        if reason:
            self._note(ramp.give_up(time.time(), len(self._roster.running()), reason))

    def _is_last_moment(self, ramp: Ramp, member: Member) -> bool:
        """Whether a member that waits for a measurement would have too little time afterwards.

        Even then one starts after the other, so that those before it can be measured; all at once
        only where nothing would be left of what the member's time was stretched by.
        """
        wall_s, left_s = member.spec.plan.wall_limit_s, self._time_left.left_s
        if left_s is None or wall_s is None or ramp.state is not RampState.RAMPING:
            return False
        if left_s >= wall_s + END_MARGIN_S:
            return False
        alone_s = min(wall_s, member.spec.job.time_limit_s or wall_s)
        has_slack = left_s >= alone_s + END_MARGIN_S + STAGE_S
        if has_slack and left_s > self._let_go_left_s - STAGE_S:
            return False
        self._let_go_left_s = left_s
        self._journal.write("not_measured", member=member.number, left_s=round(left_s))
        return True

    def _find_blindness(self, ramp: Ramp) -> str:
        unwatched = self._why_unwatched()
        if unwatched:
            return f"nothing is measured: {unwatched}"
        running = self._roster.running()
        if not any(self._lookout.counts_steps(member) for member in running):
            return "nothing counts their steps"
        if not any(self._lookout.find_solo_rate(member) for member in running):
            return "the rate alone of none of them is known"
        assert self._held_since is not None
        if time.time() - max(self._lookout.looked_at, self._held_since) > FIRST_STEP_S:
            return f"the monitor has shown nothing for {FIRST_STEP_S:g} s"
        return ramp.find_blindness() if self._lookout.looked_at > self._held_since else ""

    def _note(self, decision: Decision | None) -> None:
        if decision is None:
            return
        self._decisions = (*self._decisions, decision)[-KEPT:]
        self._journal.write(
            "ramp",
            state=decision.state.value,
            running=decision.running,
            target=decision.target,
            stp=None if decision.stp is None else round(decision.stp, 3),
            reason=decision.reason,
        )
        if decision.state is not RampState.OFF or self._is_written:
            self._write()
        member = self._find_stoppable() if decision.stops_one else None
        if member is not None:
            self._journal.write("step_back", member=member.number)
            self._step_back(member)

    def _build_record(self) -> RampRecord:
        assert self._ramp is not None
        ramp = self._ramp
        return RampRecord(self._attempt, ramp.state, ramp.target, ramp.places, self._decisions)

    def _write(self) -> None:
        self._is_written = True
        with contextlib.suppress(StateError):
            write_ramp(self._pack, self._build_record())

    def _untell(self) -> None:
        """Take back what is not why somebody waits any more."""
        running = len(self._roster.running())
        text = self._build_record().explain_waiting(running)
        for number, told in list(self._told.items()):
            member = self._roster.members[number]
            if told == text and number in self._roster.waiting:
                continue
            del self._told[number]
            if number in self._roster.waiting and member.record.reason == told:
                self._ledger.write(member, MemberState.PENDING, reason="")

    # -- what decisions rest on ---------------------------------------------------------------

    def _find_outlook(self, latest: Mapping[str, Any]) -> Outlook:
        free = sum(place.occupant is None for place in self._roster.places)
        waiting = [
            self._roster.members[number]
            for number in self._roster.waiting
            if not is_held(self._pack, number)
        ]
        waiting = [
            member
            for member in waiting
            if self._roster.has_room_for(member) and not self._time_left.is_too_short_for(member)
        ]
        if waiting and self._roster.find_place(waiting[0].spec.plan.cpus) is None:
            # The places that are large enough for the next are taken, and nobody overtakes it.
            waiting = []
        running = self._roster.running()
        room = None
        if len(running) == 1 and waiting and free:
            room = self._lookout.find_room(latest, running[0], waiting[:free])
        if self._probing.is_open:
            waiting = []
        return Outlook(
            waiting=min(free, len(waiting)),
            next_kind=self._lookout.find_family(waiting[0]) if waiting else "",
            busy=self._lookout.find_activity(latest),
            room=room,
            can_stop=self._find_stoppable() is not None,
        )

    def _find_stoppable(self) -> Member | None:
        """The newest member that can be stopped and go on later."""
        running = self._roster.running()
        if any(member.asked is not None for member in running):
            # What becomes of the pack without that one is to be seen first.
            return None
        found = [member for member in running if self._can_go_on_later(member)]
        newest = max(found, key=lambda m: (m.record.started_at or 0.0, m.number), default=None)
        return newest if len(running) > 1 else None

    def _can_go_on_later(self, member: Member) -> bool:
        job = member.spec.job
        may_restart = self._site_requeues if job.requeue is None else job.requeue
        # Near its time limit it has had its signal.
        was_signalled = member.deadline is not None and member.signal_at is None
        if member.is_starting or not may_restart or was_signalled:
            return False
        wall_s, left_s = member.spec.plan.wall_limit_s, self._time_left.left_s
        if wall_s is not None and left_s is not None and left_s < 2 * wall_s:
            # It would wait for another's end first, and then have too little time.
            return False
        # Without `B:` only the steps get it that its script has started.
        has_steps = os.path.exists(f"{member.prefix}.steps")
        return job.signal is not None and (job.signal.batch_shell or has_steps)
