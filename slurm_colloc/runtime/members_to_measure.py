"""What a measurement is told of the members that run: who may be paused, and what they are like.

And between two measurements, whether one has changed for good.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.metrics.phases import (
    PAUSE_S,
    PAUSE_STEPS,
    Look,
    LookBuilder,
    add_look,
    has_new_batch,
    has_new_rate,
)
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.measured_curve import RateAlone, RateSource
from slurm_colloc.model.measurement import PausableMember
from slurm_colloc.model.member import tell_number
from slurm_colloc.planning.arrange import View, count_memory_room
from slurm_colloc.runtime.member_progress import ProgressReader, StepCount, WindowRates
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pause_members import MemberPauser, find_parking_obstacle
from slurm_colloc.runtime.room import GpuMemoryRoom

FIRST_STEP_S = 90.0
"""How long a member is waited for that has made no step: the others are measured without it."""

WAVE_S = 10.0
"""How long the first measurement waits for others to start, once those that run make steps."""
SETTLING_S = 90.0
"""How long one is waited for after its first step, likewise."""

SEEN_LATE_S = 2.5
"""So much later than a member begins to take GPU memory the monitor has told of it."""

Counts = Mapping[int, StepCount | None]
"""Steps by member number; None for a member that counts none."""


@dataclass(eq=False, kw_only=True)
class MembersToMeasure:
    """Looks at the members of a pack before they are measured.

    Attributes:
        pack: The attempt of the pack.
        progress: Sees what they are like.
        rates: Reads their steps.
        pauser: Knows who is never paused.
    """

    pack: PackContext
    progress: ProgressReader
    rates: WindowRates
    pauser: MemberPauser

    def __post_init__(self) -> None:
        self._seen_at: dict[tuple[int, int], float] = {}
        self._had_company: set[tuple[int, int]] = set()
        self._first: tuple[float, RateAlone] | None = None
        self._expected_until = 0.0

    def have_settled(self, running: Sequence[Member], counts: Counts) -> bool:
        """Whether all have made their first steps, but for those that will not soon."""
        settled = 0
        for member in running:
            count = counts[member.number]
            if count is not None and (count.has_settled or member.paused_at is not None):
                settled += 1
            elif member.is_starting or self._is_young(member):
                return False
        return settled > 0

    def expects_more(
        self, running: Sequence[Member], memory: GpuMemoryRoom, view: View, waiting: int
    ) -> bool:
        """Whether more members will start in a moment: they are measured with those that run.

        What is reserved for a member shrinks once it has settled, and there may be room for others.

        Args:
            running: Members that make steps.
            memory: What is reserved for them.
            view: The pack.
            waiting: How many wait for room.
        """
        now = self.pack.clock()
        until = self._expected_until = self._expected_until or now + WAVE_S
        if now >= until or len(view.present) >= view.places:
            return False
        has_room = count_memory_room(view, view.places) > 0
        return (has_room or not all(map(memory.is_settled, running))) and waiting > 0

    def describe_no_steps(self, running: Sequence[Member], counts: Counts) -> str:
        """Why none can be measured soon, by the steps that they make; empty where one can."""
        # Of each it is noted when it was seen first.
        young = [member.is_starting or self._is_young(member) for member in running]
        found = [count for member in running if (count := counts[member.number]) is not None]
        if any(young) or any(count.has_settled or self._is_settling(count) for count in found):
            return ""
        if any(member.paused_at is not None for member in running):
            return ""
        if not found:
            return "none of them has made a step that counts"
        return "their steps come too seldom"

    def _is_settling(self, count: StepCount) -> bool:
        return count.first_step_s is None or count.at - count.first_step_s < SETTLING_S

    def _is_young(self, member: Member) -> bool:
        now = self.pack.clock()
        seen_at = self._seen_at.setdefault((member.number, member.record.starts), now)
        return now - seen_at < FIRST_STEP_S

    def count_kinds(self, running: Sequence[Member]) -> dict[str, int]:
        """How many of each kind run; one of which it is not known what it is like is its own."""
        kinds: dict[str, int] = {}
        for member in running:
            kind = self.progress.find_family(member) or f"#{member.number}"
            kinds[kind] = kinds.get(kind, 0) + 1
        return kinds

    def build(
        self, member: Member, count: StepCount | None, fixed: Collection[int], *, is_stale: bool
    ) -> PausableMember:
        """What a measurement is told of a member.

        Args:
            member: The member.
            count: Its steps; None where it counts none.
            fixed: Numbers of those that may not be paused.
            is_stale: What was measured here before may not hold any more.
        """
        elapsed_s = None
        if count is not None and count.first_step_s is not None:
            elapsed_s = max(0.0, count.at - count.first_step_s - member.paused_s)
        return PausableMember(
            member.number,
            self.progress.find_family(member),
            self.progress.find_bound(member),
            self._choose_rate_alone(member, none_is_alone=bool(fixed), is_stale=is_stale),
            count.steps / elapsed_s if count is not None and elapsed_s else None,
            may_pause=member.number not in fixed,
            line_s=None if count is None else count.line_s,
        )

    def _choose_rate_alone(
        self, member: Member, *, none_is_alone: bool, is_stale: bool
    ) -> float | None:
        """Its rate alone; None where that is to be measured, or cannot be told."""
        alone = self.progress.find_rate_alone(member)
        if alone is None:
            return None
        if none_is_alone:
            # Then what was measured here before is all that there is.
            return None if alone.source is RateSource.PROFILE else alone.steps_per_s
        if alone.source in (RateSource.PAUSING, RateSource.FAMILY) and not is_stale:
            # It need not be measured again because others have come.
            return alone.steps_per_s
        return None if is_stale or self._is_measured_alone(member) else alone.steps_per_s

    def _is_measured_alone(self, member: Member) -> bool:
        """Whether the rate alone of a member's kind is measured although there may be one.

        A figure of another day is not enough: host or GPU may be another. But where only members
        are left that have a part of the GPU's threads, what one with all of them has shown before
        the others started is better.
        """
        family = self.progress.find_family(member)
        alike = [m for m in self.pack.members.running() if self.progress.find_family(m) == family]
        if any(has_all_threads(m) for m in alike):
            return True
        return not any(
            rate.source is RateSource.FIRST and self.progress.find_family_of(number) == family
            for number, rate in self.progress.rates_alone.items()
        )

    def note_first(self, running: Sequence[Member]) -> None:
        """The rate of the only member that works: no other has started, or has done more than load.

        Args:
            running: Members.
        """
        working = [m for m in running if len(running) == 1 or not self._is_loading(m)]
        if len(working) != 1:
            self._had_company.update((m.number, m.record.starts) for m in working)
            self._first = None
            return
        (member,) = working
        if not has_all_threads(member) or member.is_starting:
            return
        count = self.rates.read(member)
        if (member.number, member.record.starts) in self._had_company or count is None:
            return
        first, last = count.first_step_s, count.last_step_s
        if not count.has_settled or first is None or last is None or last <= first:
            return
        rate = (count.steps - 1) / (last - first)
        found = RateAlone(member.number, rate, None, last - first, time.time(), RateSource.FIRST)
        if len(running) == 1:
            self.progress.rates_alone[member.number] = found
            return
        # What the others take of the GPU is seen late: the last moments do not count yet.
        now = self.pack.clock()
        if self._first is None:
            self._first = now, found
        elif now >= self._first[0] + SEEN_LATE_S:
            self.progress.rates_alone[member.number] = self._first[1]
            self._first = now, found

    def _is_loading(self, member: Member) -> bool:
        """Whether a member has made no step and takes nothing of the GPU yet."""
        if member.is_starting:
            return True
        count = self.rates.read(member)
        has_steps = count is not None and count.first_step_s is not None
        return not has_steps and not self.progress.uses_gpu_memory(member)

    def order(self, running: Sequence[Member], fixed: set[int]) -> list[Member]:
        """Those that go on first: who may not be paused or is to stay fast, who may not be parked.

        Args:
            running: Members.
            fixed: Numbers of those that may not be paused.
        """

        def rank(member: Member) -> tuple[int, int]:
            if member.spec.job.stays_fast:
                return 0, 0
            if member.number in fixed:
                return 0, member.number
            may_park = not self.describe_parking_obstacle(member)
            return 1 + may_park, member.number

        return sorted(running, key=rank)

    def describe_parking_obstacle(self, member: Member) -> str:
        """Why a member is never parked; empty where it may be."""
        count = self.rates.read(member)
        return "" if count is None else find_parking_obstacle(count.trainers, count.ranks)


def has_all_threads(member: Member) -> bool:
    """Whether a member may use the whole GPU, so that its rate alone is that of one alone."""
    return member.gpu is None or member.gpu.thread_percentage in (None, 100)


def describe_fixed(members: Sequence[PausableMember]) -> str:
    """Why nothing can be measured where some may not be paused; empty where it can."""
    fixed = [member for member in members if not member.may_pause]
    if len(fixed) == len(members):
        return "none of them may be paused"
    if fixed and not any(member.rate_alone for member in members):
        number = tell_number(fixed[0].number)
        return f"no rate alone is known, and member {number} may not be paused"
    return ""


@dataclass(eq=False)
class _Course:
    """How a start of a member goes on.

    Attributes:
        before: Its steps when it had made its last one, at the newest reading; None before.
        builder: Its steps since the last look.
        looks: Its looks since who runs has changed.
        batches: Those since the measurement: a batch size does not depend on who runs.
    """

    before: StepCount | None = None
    builder: LookBuilder = field(default_factory=LookBuilder)
    looks: list[Look] = field(default_factory=list)
    batches: list[Look] = field(default_factory=list)

    def add(self, count: StepCount) -> Look | None:
        """Add what it has done since it was read before; the look, where that completes one."""
        before = self.before
        if before is None or before.last_step_s is None or count.last_step_s is None:
            self.before = count
            return None
        length_s, steps = count.last_step_s - before.last_step_s, count.steps - before.steps
        if steps <= 0 or length_s <= 0:
            return None
        self.before = count
        if self.builder.step_s is None:
            # What came before these steps is not known: it may have been at something else.
            self.builder.step_s = length_s / steps
            return None
        has_samples = count.samples is not None and before.samples is not None
        samples = count.samples - before.samples if has_samples else None  # type: ignore[operator]
        return self.builder.add(steps, length_s, samples)

    def is_active(self, count: StepCount | None) -> bool:
        """Whether it makes steps; one of which too little is known does."""
        step_s = self.builder.step_s if count is None or count.line_s is None else count.line_s
        if count is None or count.last_step_s is None or step_s is None:
            return True
        return count.at - count.last_step_s <= max(PAUSE_S, PAUSE_STEPS * step_s)


class RateDrift:
    """Watches members between measurements: whether one has changed for good."""

    def __init__(self) -> None:
        self._courses: dict[tuple[int, int], _Course] = {}
        self._read_at: float | None = None

    def forget(self) -> None:
        """Begin anew: a measurement has ended."""
        self.forget_rates()
        for course in self._courses.values():
            course.batches = []

    def forget_rates(self) -> None:
        """Who runs has changed: rates of before tell nothing of those after."""
        for key, course in self._courses.items():
            builder = LookBuilder(step_s=course.builder.step_s)
            self._courses[key] = _Course(builder=builder, batches=course.batches)
        self._read_at = None

    def find(self, running: Sequence[Member], counts: Counts) -> Member | None:
        """A member that has changed for good; None where none has.

        Args:
            running: Those that run and are not paused, the same as since `forget_rates`.
            counts: Their steps, as they were just read.
        """
        read = [(member, counts.get(member.number)) for member in running]
        at = max((count.at for _, count in read if count is not None), default=None)
        if at is None:
            return None
        courses = {
            member.number: self._courses.setdefault(
                (member.number, member.record.starts), _Course()
            )
            for member in running
        }
        active = sum(courses[member.number].is_active(count) for member, count in read)
        elapsed_s = 0.0 if self._read_at is None else max(0.0, at - self._read_at)
        self._read_at = at
        found = None
        for member, count in read:
            course = courses[member.number]
            if count is None:
                continue
            if course.is_active(count):
                course.builder.note_active(active, elapsed_s)
            if (look := course.add(count)) is None:
                continue
            course.looks = add_look(course.looks, look)
            course.batches = add_look(course.batches, look)
            if has_new_rate(course.looks) or has_new_batch(course.batches):
                found = found or member
        return found
