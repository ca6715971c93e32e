"""How many members of a pack run at once: measured by pausing them, as soon as they have settled.

All that surely fit start together. Then windows are measured in which a part of them runs; the best
degree (model.measurement) goes on, and the others are parked: paused, until a place is free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.measured_curve import DegreeDecision, DegreeState, describe_curve
from slurm_colloc.model.measurement import (
    AGAIN_S,
    DegreeMeasurement,
    choose_for_the_end,
    describe_seldom_lines,
    find_measuring_reason,
    may_cost,
    measure_degree,
)
from slurm_colloc.model.member import Stage, tell_number
from slurm_colloc.model.why_not_now import say_at_once, say_no_more
from slurm_colloc.planning.arrange import DegreeFacts, count_memory_room
from slurm_colloc.planning.known_degree import KnownDegree
from slurm_colloc.runtime.member_progress import (
    KnownCurves,
    ProgressReader,
    StepCount,
    WindowRates,
)
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.members_to_measure import (
    Counts,
    MembersToMeasure,
    RateDrift,
    describe_fixed,
)
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.pause_windows import PauseWindows
from slurm_colloc.runtime.room import END_MARGIN_S, GpuMemoryRoom, TimeLeft, Watch
from slurm_colloc.runtime.sister_packs import count_waiting_in_sisters
from slurm_colloc.store.member_states import PARKED
from slurm_colloc.store.runner_requests import KEPT, DegreeRecord

if TYPE_CHECKING:
    from slurm_colloc.runtime.look import PackLook

AFTER_SIGNAL_S = 60.0
"""What was sent to a parked member may have been its end: it has its time for that (KillWait)."""
AFTER_ABORT_S = 5.0
"""After a measurement that was ended by a member that came or went."""
LOOK_S = 0.25


@dataclass(eq=False, kw_only=True)
class MeasuredDegree:
    """Measures a pack, and parks who is too many.

    Attributes:
        pack: The attempt of the pack.
        time_left: Knows what is left of the pack's time.
        progress: Sees what its members are like.
        rates: Reads their steps.
        pauser: Pauses them.
        memory: What is reserved of the GPUs' memory.
        curves: How many of such members run at once by what earlier packs measured.
        watch: Whether members are watched, and may be measured.
        planned_degree: How many run at once where nothing can be measured.
    """

    pack: PackContext
    time_left: TimeLeft
    progress: ProgressReader
    rates: WindowRates
    pauser: MemberPauser
    memory: GpuMemoryRoom
    curves: KnownCurves
    watch: Watch
    planned_degree: int = 1

    def __post_init__(self) -> None:
        self._to_measure = MembersToMeasure(
            pack=self.pack, progress=self.progress, rates=self.rates, pauser=self.pauser
        )
        self._has_let_go = False
        """A parked member has gone on although there was no place for it: it was sent a signal."""
        self._windows = PauseWindows(self.pauser, self.rates)
        self._drift = RateDrift()
        self._record = DegreeRecord(self.pack.attempt, places=1)
        self._measured: dict[str, int] = {}
        """Of how many of each kind the last measurement was; empty before."""
        self._measured_at = 0.0
        self._begun_at: float | None = None
        self._looked_at = 0.0
        self._wants = ""
        self._is_stale = False
        self._is_off = False
        self._off_kinds: set[str] = set()
        self._not_before = 0.0
        self._going: set[int] = set()

    # -- what others ask ----------------------------------------------------------------------

    @property
    def record(self) -> DegreeRecord:
        """What was measured and decided."""
        return self._record

    @property
    def is_measuring(self) -> bool:
        """Members are paused for a measurement."""
        return self._windows.is_open

    def list_due(self) -> list[float]:
        """When something is to be done (monotonic clock)."""
        return self._windows.list_due()

    def gather(self, running: Sequence[Member]) -> DegreeFacts:
        """What was measured and decided of how many run at once.

        Args:
            running: Members that use the GPU, or are paused on it.
        """
        is_open = not (self._is_decided or self._is_off or self.watch.obstacle)
        return DegreeFacts(
            degree=self._record.degree,
            reason=self._record.reason,
            is_decided=self._is_decided,
            is_measuring=self._windows.is_open,
            kinds=frozenset(self._measured),
            is_old=self.pack.clock() >= self._measured_at + AGAIN_S,
            planned=None if is_open or self._is_decided else self.planned_degree,
            known=self.curves.find_degree(running) if is_open else None,
            bounds=self._has_places and not self.pack.members.take_turns,
        )

    def find_known_with(self, member: Member) -> KnownDegree | None:
        """How many run at once by what earlier packs measured, with a member among them."""
        if self._measured:
            return None
        return self.curves.find_degree([*self.pack.members.running(), member])

    def count_waiting(self) -> int:
        """How many wait that may start here, in other packs, too."""
        members, pack = self.pack.members, self.pack
        at_door = sum(member.is_at_door for member in members.with_process())
        elsewhere = count_waiting_in_sisters(pack.state, pack.record, pack.attempt)
        return len(members.waiting) + at_door + elsewhere

    # -- the runner's turn --------------------------------------------------------------------

    def work(self, look: PackLook) -> None:
        """Do what is due: a window, a place that is free, a new measurement.

        Args:
            look: Looks at the pack.
        """
        running = self.pack.members.running()
        if self._begun_at is None and running:
            self._begun_at = self.pack.clock()
        self.pauser.check(running)
        if self._windows.is_open:
            self._not_before = self.pack.clock() + AFTER_ABORT_S
            measured = self._windows.work(running)
            if measured is None:
                self._note_abort()
            else:
                self._apply(measured, running, look)
            return
        self._refill(self._record.degree)
        if self._has_let_go:
            self._has_let_go = False
            self._not_before = self.pack.clock() + AFTER_SIGNAL_S
            self._wants, self._is_stale = "a parked member has gone on", False
        now = self.pack.clock()
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self.progress.work()
            self._to_measure.note_first(running)
            self._note_company(running)
            self._look(running, look)

    def stop(self) -> None:
        """Let all go on: the pack ends, or Slurm has not decided whether it does."""
        self._windows.stop()
        self._let_go()

    def _note_abort(self) -> None:
        """Where a measurement has ended without a result half of the pack stood still meanwhile."""
        if self._windows.is_open:
            return
        self._drift.forget_rates()
        cost_s = self._record.cost_s + self._windows.lasted_s / 2
        self._record = replace(self._record, cost_s=cost_s)

    # -- measuring ----------------------------------------------------------------------------

    def _note_company(self, running: Sequence[Member]) -> None:
        """Who runs together: rates of before tell nothing of those after a change."""
        going = {member.number for member in running if member.paused_at is None}
        if going != self._going:
            self._going = going
            self._drift.forget_rates()
        kinds = set(self._to_measure.count_kinds(running)) if self._is_off else set()
        if kinds - self._off_kinds and not self.watch.obstacle:
            # Of those that have come something may be measured.
            self._is_off = False

    @property
    def _has_places(self) -> bool:
        """Several members may run at once."""
        return len(self.pack.members.places) > 1 and not self.pack.members.takes_one

    def _look(self, running: Sequence[Member], look: PackLook) -> None:
        if self._is_off or self.pack.members.take_turns or not self._has_places:
            return
        if self.watch.unwatched:
            # That nothing is watched has been said.
            self._is_off = True
            return
        if running and self._record.state is DegreeState.OFF and not self.watch.obstacle:
            self._record = replace(self._record, state=DegreeState.MEASURING)
        if len(running) < 2 or self.pack.clock() < self._not_before:
            return
        if any(member.asked is not None or member.end_by is not None for member in running):
            # They have their time to save what they have.
            return
        obstacle = self.watch.obstacle
        if not obstacle and not any(self.progress.counts_steps(member) for member in running):
            obstacle = "nothing counts their steps"
        if obstacle:
            self._give_up(f"nothing is measured: {obstacle}", running)
            return
        counts = {member.number: self.rates.read(member) for member in running}
        if seldom := self._to_measure.describe_no_steps(running, counts):
            self._give_up(f"nothing is measured: {seldom}", running)
            return
        if not self._to_measure.have_settled(running, counts):
            return
        is_first = not self._measured
        if is_first and self._to_measure.expects_more(
            running, self.memory, look.look(), self.count_waiting()
        ):
            return
        self._find_reason(running, counts)
        if self._wants:
            self._settle(running, counts, is_first=is_first)

    def _settle(
        self, running: Sequence[Member], counts: dict[int, StepCount | None], *, is_first: bool
    ) -> None:
        """Find out how many run at once: by what is known of them, or by measuring."""
        known = None if self._is_stale else self.curves.find_degree(running)
        elapsed_s = self.pack.clock() - (self._begun_at or self.pack.clock())
        if known is not None and (not known.is_open or len(running) <= known.degree):
            self._take_known(known, running)
        elif may_cost(self._record.cost_s, elapsed_s, is_first=is_first):
            self.pack.journal.write("measures", members=len(running), reason=self._wants)
            self._wants = ""
            self._begin(running, counts)

    def _find_reason(self, running: Sequence[Member], counts: Counts) -> None:
        """Find out why the pack is to be measured now, if it is; and whether rates are stale."""
        going = [member for member in running if member.paused_at is None]
        one = self._drift.find(going, counts)
        if self._wants:
            return
        elapsed_s = self.pack.clock() - self._measured_at
        reason = find_measuring_reason(
            self._to_measure.count_kinds(running),
            self._measured,
            elapsed_s=elapsed_s,
            has_parked=bool(self._list_parked()),
        )
        self._wants = reason
        self._is_stale = bool(self._measured) and elapsed_s >= AGAIN_S
        if one is not None and not reason:
            self._wants = f"member {tell_number(one.number)} has changed"
            self._is_stale = True

    def _begin(self, running: Sequence[Member], counts: dict[int, StepCount | None]) -> None:
        fixed = set(self.pauser.find_obstacles(running))
        ordered = self._to_measure.order(running, fixed)
        pausable = [
            self._to_measure.build(m, counts[m.number], fixed, is_stale=self._is_stale)
            for m in ordered
        ]
        if obstacle := describe_fixed(pausable) or describe_seldom_lines(pausable):
            self._give_up(f"nothing is measured: {obstacle}", running)
            return
        self._windows.begin(measure_degree(pausable), ordered)

    def _take_known(self, known: KnownDegree, running: Sequence[Member]) -> None:
        """What earlier packs of the same scripts measured need not be measured again."""
        self._wants = ""
        self._measured = self._to_measure.count_kinds(running)
        self._measured_at = self.pack.clock()
        self._park_beyond(known.degree, running)
        degree = len(self.pack.members.places) if known.is_open else known.degree
        stp = None if known.point is None else known.point.stp
        self._decide(DegreeState.SETTLED, degree, stp, _tell_known(known), None)

    # -- deciding -----------------------------------------------------------------------------

    @property
    def _is_decided(self) -> bool:
        return self._record.state is DegreeState.SETTLED

    def _apply(
        self, measured: DegreeMeasurement, running: Sequence[Member], look: PackLook
    ) -> None:
        for rate in measured.rates_alone:
            self.progress.note_alone(rate)
        self._drift.forget()
        self._measured = self._to_measure.count_kinds(running)
        self._measured_at = self.pack.clock()
        self._record = replace(
            self._record,
            cost_s=self._record.cost_s + measured.cost_s,
            curve=measured.curve or self._record.curve,
            rates_alone=tuple(
                self.progress.rates_alone[n] for n in sorted(self.progress.rates_alone)
            ),
        )
        if measured.problem:
            self._give_up(f"nothing is measured: {measured.problem}", running)
            return
        left = len(running) + self.count_waiting()
        places = len(self.pack.members.places)
        at_once = min(places, len(running) + count_memory_room(look.look(), places))
        chosen = choose_for_the_end(measured.curve, measured.degree, left, at_once)
        stp = next((p.stp for p in measured.curve if p.degree == measured.degree), None)
        self._park_beyond(chosen, running)
        # Where all go on, it is not known yet that one more would be too many.
        degree = len(self.pack.members.places) if chosen >= len(running) else chosen
        best = measured.degree if chosen > measured.degree else None
        reason = describe_curve(measured.curve, degree, best) or say_no_more(degree)
        self._decide(DegreeState.SETTLED, degree, stp, reason, best)

    def _decide(
        self, state: DegreeState, degree: int, stp: float | None, reason: str, best: int | None
    ) -> None:
        running = len(self.pack.members.running())
        decision = DegreeDecision(time.time(), state, running, degree, stp, reason, best)
        decisions = (*self._record.decisions, decision)[-KEPT:]
        self._record = replace(self._record, state=state, degree=degree, decisions=decisions)
        self.pack.journal.write(
            "degree", state=state.value, running=running, degree=degree,
            stp=None if stp is None else round(stp, 3), reason=reason,
        )  # fmt: skip

    def _give_up(self, reason: str, running: Sequence[Member]) -> None:
        """As many run as were planned."""
        self._is_off = True
        self._off_kinds = set(self._to_measure.count_kinds(running))
        self.stop()
        self._decide(DegreeState.OFF, len(self.pack.members.places), None, reason, None)

    # -- parking ------------------------------------------------------------------------------

    def _list_parked(self) -> list[Member]:
        """Those that are."""
        return [member for member in self.pack.members.running() if member.is_parked]

    def _park_beyond(self, degree: int, running: Sequence[Member]) -> None:
        """Let so many go on, and park the others as far as that may be."""
        fixed = {m.number for m in running if self.pauser.get_obstacle(m.number)}
        too_many = self._to_measure.order(running, fixed)[degree:]
        parked = [
            member
            for member in too_many
            if not self._to_measure.describe_parking_obstacle(member)
            and not self.is_last_moment(member)
        ]
        for member in running:
            (member.keep_at if member in parked else member.let_go)(Stage.PARKED)
        self.pauser.resume([member for member in running if not member.is_parked])
        self.pauser.pause(parked, PARKED)

    def _let_go(self) -> None:
        """All go on."""
        running = self.pack.members.running()
        for member in running:
            member.let_go(Stage.PARKED)
        self.pauser.resume(running)

    def _refill(self, degree: int) -> None:
        """Let those go on for which there is a place, or too little time.

        Args:
            degree: As many may run.
        """
        parked = self._list_parked()
        if not parked:
            return
        going = len(self.pack.members.running()) - len(parked)
        ordered = self._to_measure.order(parked, set())
        to_resume = ordered[: max(0, degree - going)]
        for member in ordered[len(to_resume) :]:
            if member.paused_at is None:
                # A signal, or an end, has let it go on.
                member.let_go(Stage.PARKED)
                self._has_let_go = True
            elif self.is_last_moment(member):
                self.pack.journal.write(
                    "not_parked", member=member.number, reason="too little time"
                )
                to_resume.append(member)
        for member in to_resume:
            member.let_go(Stage.PARKED)
        self.pauser.resume(to_resume)

    def is_last_moment(self, member: Member) -> bool:
        """Whether a member would have too little of the pack's time left if it waited longer.

        It is judged by its `--time`, of which the wall limit is more than it needs where it does
        not share.
        """
        left_s, wall_s = self.time_left.left_s, member.spec.plan.wall_limit_s
        if left_s is None or wall_s is None:
            return False
        alone_s = min(wall_s, member.spec.job.time_limit_s or wall_s)
        has_run_s = 0.0
        if member.deadline is not None:
            now = self.pack.clock()
            paused_s = 0.0 if member.paused_at is None else now - member.paused_at
            has_run_s = max(0.0, wall_s - (member.deadline + paused_s - now))
        return left_s < alone_s - has_run_s + END_MARGIN_S


def _tell_known(known: KnownDegree) -> str:
    said = say_at_once(known.degree) if known.is_open else say_no_more(known.degree)
    return f"{said}: {known.describe()}"
