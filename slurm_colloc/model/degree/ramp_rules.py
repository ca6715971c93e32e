"""The ramp: how many members of a pack run at the same time, by what is measured of it; pure.

Members are added towards the planned degree as long as the sum of their normalised progress grows
and no slowdown bound is in danger. A pack that is slower than its members one after the other
steps back. Two thresholds with a gap between them, windows in which nobody comes or goes, and a
memory of what was tried keep it from going to and fro.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

from slurm_colloc.model.degree.growth_limit import SERIAL, find_growth_limit
from slurm_colloc.model.degree.ramp_decision import (
    Decision,
    Outlook,
    RampMemory,
    RampState,
    say_no_more,
)
from slurm_colloc.model.degree.ramp_look import Measured, Sight
from slurm_colloc.model.degree.ramp_noise import (
    LONG_WINDOW_S,
    NOISY_WINDOW_S,
    choose_window_s,
    may_be_noise,
)
from slurm_colloc.model.degree.ramp_steps import DANGER, choose_step
from slurm_colloc.model.degree.ramp_window import MIN_WINDOW_S, SINGLY_WINDOW_S, Track

LIKELY_ROOMS = 2
"""The sum of progress grows up to twice as many as there is room for by the additive rule, or a
few more: on an H200, of small trainings 12 to 16 where the rule has room for 8, of medium ones 6 to
7 of 3, of large ones 2 to 3 of 1 to 2."""

BROKEN = 1.10
"""Part of a slowdown bound from which on the ramp steps back."""

WATCH_WINDOW_S = SINGLY_WINDOW_S
WATCH_WINDOWS = 2
"""How long, and how often in a row, something must be seen before the ramp steps back."""

SETTLE_MOST_S = 120.0
"""Who does not settle for so long is not waited for: the plan is followed unmeasured."""

LOOK_MOST_S = 90.0
"""After so long without a decision what there is decides: a longer window, which noise asks for, is
not waited for until patience ends."""

START_MOST_S = 60.0
"""Who may start and has not for so long is not waited for: those that run are measured."""

AS_ALONE = 0.9
"""A member by itself that is at least so fast, against alone, counts as 1: noise is not a loss."""


class Ramp:
    """The ramp of one attempt of a pack.

    Args:
        places: How many run at the same time by the plan.
        start: How many of them start without being measured first.
    """

    def __init__(self, places: int, start: int) -> None:
        self.places = places
        self.target = max(1, min(start, places))
        self._most = places
        # What starts whole is only watched.
        self.state = RampState.RAMPING if self.target < places else RampState.SETTLED
        self._is_unconfirmed = self.state is RampState.SETTLED
        self._track = Track()
        self._base: Measured | None = None
        self._base_members: frozenset[tuple[int, int]] = frozenset()
        self._busy: deque[float] = deque(maxlen=3)
        self._rooms: deque[int] = deque(maxlen=3)
        self._marginal: float | None = None
        self._unsettled_since: float | None = None
        self._may_start_since: float | None = None
        self._memory = RampMemory()
        self._watched_until = 0.0
        self._slow = self._broken = self._sound = 0

    @property
    def likely_degree(self) -> int:
        """As many as may run at once in the end, as far as that is known."""
        return max(self.target, self._most)

    def give_up(self, at: float, running: int, reason: str) -> Decision:
        """Follow the plan unmeasured from now on."""
        self.target = self.places
        return self._decide(at, RampState.OFF, running, None, f"all may run at once: {reason}")

    def look(self, at: float, sights: Sequence[Sight], outlook: Outlook) -> Decision | None:
        """Take one look at the pack; what follows from it, if anything.

        Args:
            at: Seconds since the epoch.
            sights: The members that run.
            outlook: What could be added.
        """
        if self.state is RampState.OFF or not sights:
            return None
        since = self._track.since
        self._track.add(at, sights)
        if self._track.since != since:
            self._slow = self._broken = self._sound = 0
            self._watched_until = at
            # How long nothing has settled goes on counting: where members come and go all the
            # time, no window may ever settle.
            self._busy.clear()
            self._rooms.clear()
            if self._base is not None and not self._base_members < _list_members(sights):
                # Its figures say nothing about those that run now.
                self._base = None
        if self._is_start_overdue(at, len(sights), outlook):
            outlook = dataclasses.replace(outlook, waiting=0)
        # Not a number is no activity.
        if outlook.busy is not None and outlook.busy >= 0.0:
            self._busy.append(outlook.busy)
        if outlook.room is not None:
            self._rooms.append(outlook.room)
        decision = None
        if self.state is RampState.RAMPING:
            decision = self._ramp(at, sights, outlook)
        if decision is None and (self.state is not RampState.RAMPING or not outlook.waiting):
            decision = self._watch(at, sights, outlook)
        return decision

    def find_blindness(self) -> str:
        """Why nobody of those that run can be judged; empty where somebody can, or may soon."""
        return self._track.find_blindness()

    def _is_start_overdue(self, at: float, running: int, outlook: Outlook) -> bool:
        """Whether nobody has started for long although somebody may."""
        if running >= self.target or not outlook.waiting:
            self._may_start_since = None
            return False
        if self._may_start_since is None:
            self._may_start_since = at
        return at - max(self._may_start_since, self._track.since) >= START_MOST_S

    # -- adding -------------------------------------------------------------------------------

    def _ramp(self, at: float, sights: Sequence[Sight], outlook: Outlook) -> Decision | None:
        running = len(sights)
        if running < self.target and outlook.waiting:
            # Those that may start are starting.
            return None
        if not outlook.waiting:
            self._unsettled_since = None
        elif self._unsettled_since is None:
            self._unsettled_since = at
        now = self._measure(at)
        if now is None:
            return self._lose_patience(at, running, outlook)
        self._unsettled_since = None
        if self._base is not None and self._base.running == running:
            self._learn(now, sights)
        base = self._base
        share = 0.0 if base is None else self._get_share(base)
        limit = find_growth_limit(now, base, share, self.places)
        if limit is not None:
            if limit.refused is not None:
                self._memory.note_refusal(limit.refused, sights)
            return self._settle(at, now, limit.degree, sights, limit.reason)
        self._learn(now, sights)
        if running >= self.places:
            text = f"{running} run at once, as planned: the sum of progress is {now.stp:.2f}"
            return self._settle(at, now, running, sights, text)
        if not outlook.waiting:
            return None
        busy, room = max(self._busy, default=None), min(self._rooms, default=None)
        step = choose_step(now, self.places, self._marginal, busy, room)
        step = min(step, self.places - running, outlook.waiting)
        self.target = running + step
        if room is not None:
            self._most = min(self.places, LIKELY_ROOMS * room)
        more = "one more is" if step == 1 else f"{step} more are"
        what = "1 runs" if running == 1 else f"{running} run at once"
        text = f"{what}, and the sum of progress is {now.stp:.2f}: {more} started"
        return self._decide(at, RampState.RAMPING, running, now.stp, text)

    def _measure(self, at: float) -> Measured | None:
        """The newest window; a longer one where that could change what follows from it."""
        now = self._track.measure(MIN_WINDOW_S)
        if now is None:
            return self._track.measure(WATCH_WINDOW_S, with_pauses=True)
        if self._unsettled_since is not None and at - self._unsettled_since >= LOOK_MOST_S:
            return self._find_longest() or now
        base = self._base
        share = 0.0 if base is None else self._get_share(base)
        longer = self._track.measure(choose_window_s(now, base, share))
        if longer is not None and longer.worst[0] <= DANGER < longer.worst_singly[0]:
            # One of those that are alike seems slower than the others: noise, or not.
            longer = self._track.measure(SINGLY_WINDOW_S)
        if longer is not None and may_be_noise(longer, base, share):
            return self._track.measure(NOISY_WINDOW_S)
        return longer

    def _get_share(self, base: Measured) -> float:
        """What each of several that come at once is to bring to the sum of progress; 0 for none."""
        if self._marginal is not None:
            return max(0.0, self._marginal)
        # As many as there was room for have come at once, each to be as fast as the first.
        return base.stp if base.running == 1 else 0.0

    def _learn(self, now: Measured, sights: Sequence[Sight]) -> None:
        base = self._base
        if base is not None and now.running > base.running:
            self._marginal = (now.stp - base.stp) / (now.running - base.running)
        # What comes next is measured against it: by the longest window that there is.
        longest = self._find_longest() or now
        if longest.running == 1 and longest.stp >= AS_ALONE:
            longest = dataclasses.replace(longest, stp=max(1.0, longest.stp))
        self._base, self._base_members = longest, _list_members(sights)

    def _find_longest(self) -> Measured | None:
        """The longest window that is usual."""
        return self._track.measure(WATCH_WINDOW_S) or self._track.measure(LONG_WINDOW_S)

    def _lose_patience(self, at: float, running: int, outlook: Outlook) -> Decision | None:
        since = self._unsettled_since
        if since is None or not outlook.waiting or at - since < SETTLE_MOST_S:
            return None
        return self.give_up(
            at, running, f"no window of {running} members has settled within {SETTLE_MOST_S:g} s"
        )

    # -- watching -----------------------------------------------------------------------------

    def _watch(self, at: float, sights: Sequence[Sight], outlook: Outlook) -> Decision | None:
        if at - self._watched_until >= 0.98 * WATCH_WINDOW_S:
            now = self._track.measure(WATCH_WINDOW_S)
            if now is not None:
                self._watched_until = at
                back = self._judge_watched(at, now, sights, outlook)
                if back is not None:
                    return back
        return self._look_anew(at, sights, outlook)

    def _judge_watched(
        self, at: float, now: Measured, sights: Sequence[Sight], outlook: Outlook
    ) -> Decision | None:
        used, number = now.worst
        self._slow = self._slow + 1 if now.stp < SERIAL else 0
        self._broken = self._broken + 1 if used > BROKEN else 0
        self._sound = 0 if self._slow or self._broken else self._sound + 1
        if now.running < 2 or max(self._slow, self._broken) < WATCH_WINDOWS:
            return self._confirm(at, now)
        target = max(1, min(self.target, now.running - 1))
        if target == self.target and not outlook.can_stop:
            # Nobody is started in the place of the next that ends; that is all that can be done.
            return None
        is_slow = self._slow >= WATCH_WINDOWS
        self._slow = self._broken = 0
        self._memory.note_refusal(now.running, sights)
        span = f"over {WATCH_WINDOWS} times {WATCH_WINDOW_S:g} s"
        if is_slow:
            why = f"{now.running} were slower than one after the other"
            why += f" (sum of progress {now.stp:.2f} {span})"
        else:
            assert number is not None
            why = f"with {now.running} member {number} was {now.slowdowns[number]:.2f} times slower"
            why += f" than alone {span}, and {now.bounds[number]:g} times is accepted"
        self._memory.note_settled(at, sights)
        self.target = target
        text = f"{say_no_more(target)}: {why}"
        return self._decide(
            at, RampState.STEPPED_BACK, now.running, now.stp, text, stops_one=outlook.can_stop
        )

    def _confirm(self, at: float, now: Measured) -> Decision | None:
        """Say once what a pack shows that has started whole."""
        if not self._is_unconfirmed or now.running < self.places or self._sound < WATCH_WINDOWS:
            return None
        self._is_unconfirmed = False
        text = f"{now.running} run at once, as planned: the sum of progress is {now.stp:.2f}"
        return self._decide(at, RampState.SETTLED, now.running, now.stp, text)

    def _look_anew(self, at: float, sights: Sequence[Sight], outlook: Outlook) -> Decision | None:
        """Try one more where the pack is made of other members than those it was settled with."""
        running = len(sights)
        if not outlook.waiting or running != self.target or running >= self.places:
            return None
        if not self._memory.may_try(at, sights, outlook.next_kind):
            return None
        now = self._track.measure(LONG_WINDOW_S)
        if now is None or now.worst[0] > DANGER or (running > 1 and now.stp < 1.0):
            return None
        self._marginal = None
        self._learn(now, sights)
        self.target = running + 1
        text = f"{running} run, others than were measured before: one more is tried"
        return self._decide(at, RampState.RAMPING, running, now.stp, text)

    # -- both ---------------------------------------------------------------------------------

    def _settle(
        self, at: float, now: Measured, target: int, sights: Sequence[Sight], reason: str
    ) -> Decision:
        self.target = max(1, target)
        self._memory.note_settled(at, sights)
        self._watched_until = at
        self._base = self._marginal = None
        self._slow = self._broken = 0
        return self._decide(at, RampState.SETTLED, now.running, now.stp, reason)

    def _decide(
        self,
        at: float,
        state: RampState,
        running: int,
        stp: float | None,
        reason: str,
        *,
        stops_one: bool = False,
    ) -> Decision:
        self.state = state
        self._unsettled_since = None
        return Decision(at, state, running, self.target, stp, reason, stops_one)


def _list_members(sights: Sequence[Sight]) -> frozenset[tuple[int, int]]:
    return frozenset((sight.number, sight.start) for sight in sights)
