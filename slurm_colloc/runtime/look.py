"""Gathers what a runner goes by: a pack at one moment, as `planning.arrange` is given it.

Looking changes nothing. A member's files are read, and its dependency is judged, only where all
else lets it start; who waits behind the first is looked at only where one of them might pass it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import WaitKind, WaitReason
from slurm_colloc.planning.arrange import (
    AHEAD,
    BEFORE_FILES,
    LETS_PASS,
    MemberFacts,
    MemoryFacts,
    View,
    count_room,
    find_wait,
    wants_others,
)
from slurm_colloc.runtime.collect_ends import SlurmDecision
from slurm_colloc.runtime.core_loans import CoreLender
from slurm_colloc.runtime.door import Doors
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.may_start import DependencyLook, StartQueue
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.memory_turns import MemoryTurns
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft, Watch
from slurm_colloc.store.member_states import is_held
from slurm_colloc.store.pack_directory import read_moved
from slurm_colloc.store.runner_requests import DegreeRecord, write_degree


@dataclass(eq=False, kw_only=True)
class PackLook:
    """Looks at an attempt of a pack.

    Attributes:
        pack: The attempt of the pack.
        time_left: Knows who would be ended half-way.
        queue: Knows what has become of dependencies.
        slurm_decision: Whether Slurm lets the pack go on.
        gpu_mode: Whether its GPU is ready.
        measured_degree: How many run at once.
        memory: What members take of the GPU's memory.
        doors: Who waits at the door.
    """

    pack: PackContext
    time_left: TimeLeft
    queue: StartQueue
    slurm_decision: SlurmDecision
    gpu_mode: GpuMode
    measured_degree: MeasuredDegree
    memory: GpuMemoryRoom
    doors: Doors

    def __post_init__(self) -> None:
        self.dependencies: dict[int, DependencyLook] = {}
        """What the last look has found of dependencies, by member number."""

    def look(self) -> View:
        """The pack as it is now."""
        self.dependencies = {}
        view = self._look_at_present()
        members = [self.pack.members.by_number[n] for n in self.pack.members.waiting]
        candidates = self.gather_waiting(view, members)
        found: list[MemberFacts] = []
        for facts in candidates:
            found.append(facts)
            if find_wait(view, facts, LETS_PASS) is None:
                break
        view = replace(view, waiting=tuple(found))
        if wants_others(view):
            view = replace(view, waiting=(*found, *candidates))
        return view

    def look_at(self, member: Member) -> MemberFacts:
        """What counts of a member that may come from another pack."""
        return self._add_room(member, self._gather(member))

    # -- the members that have a place --------------------------------------------------------

    def _look_at_present(self) -> View:
        members = self.pack.members
        numbers = sorted({p.occupant for p in members.places if p.occupant is not None})
        present = [members.by_number[n] for n in numbers if n in members.by_number]
        queue = {member.number: at for at, member in enumerate(self.doors.list_waiting())}
        running = [member for member in present if not member.is_at_door]
        return View(
            places=len(members.places),
            takes_one=members.takes_one,
            has_instances=self.gpu_mode.instances is not None,
            pack_waits=self.describe_pack_wait(),
            present=tuple(self._gather_present(member, queue) for member in present),
            passed=dict(self.queue.passed),
            degree=self.measured_degree.gather(running),
            memory=self._gather_memory(),
        )

    def _gather_present(self, member: Member, queue: dict[int, int]) -> MemberFacts:
        facts = replace(
            self._gather(member),
            is_ending=member.asked is not None,
            queue=queue.get(member.number, 0),
            left_s=(None if member.deadline is None else int(member.deadline - self.pack.clock())),
            on_gpus=() if member.gpu is None else member.gpu.uuids,
            kind=self.memory.progress.find_family(member),
            need_mb=self.memory.find_need_mb(member),
        )
        if member.is_at_door:
            # What it was started with, where it is held to that.
            is_held = self.gpu_mode.enforces
            return replace(facts, need_mb=member.reserved_mb if is_held else facts.need_mb)
        return replace(facts, reserved_mb=self.memory.find_reserved_mb(member))

    def _gather_memory(self) -> MemoryFacts | None:
        usable_mb = self.gpu_mode.usable_mb
        if usable_mb is None:
            return None
        gpus = self.gpu_mode.setup.gpus or ("",)
        return MemoryFacts(usable_mb, gpus, self.gpu_mode.enforces, self.memory.counts)

    def describe_pack_wait(self) -> WaitReason | None:
        """Why no member of the pack starts at present; None where that is not so."""
        ending = self.slurm_decision.ending
        if ending is not None:
            # Slurm may show it running after all.
            return WaitReason(WaitKind.ENDING, told=ending.reason) if ending.reason else None
        if self.slurm_decision.is_undecided:
            return WaitReason(WaitKind.SIGNALLED)
        return None if self.gpu_mode.is_settled else WaitReason(WaitKind.PREPARING)

    # -- those that wait ----------------------------------------------------------------------

    def _gather(self, member: Member) -> MemberFacts:
        """What is known of it without looking anywhere."""
        return MemberFacts(
            number=member.number,
            name=str(member.name(self.pack.shown_id)),
            stage=member.stage,
            gpus=member.spec.plan.gpus,
            alone=member.record.retries.alone,
            has_run=member.record.starts > 0,
        )

    def gather_waiting(self, view: View, members: Iterable[Member]) -> Iterator[MemberFacts]:
        """What is known of members that wait, of each up to the first thing in its way.

        Args:
            view: Those that have a place.
            members: Members that wait.
        """
        for member in members:
            facts = replace(self._gather(member), too_late=self.time_left.describe(member))
            if find_wait(view, facts, BEFORE_FILES) is None:
                facts = self._add_own(member, facts)
            if find_wait(view, facts, AHEAD) is None:
                facts = self._add_room(member, facts)
            yield facts

    def _add_own(self, member: Member, facts: MemberFacts) -> MemberFacts:
        """What its files say, and what has become of its dependency."""
        held = is_held(self.pack.path, member.number)
        instances = self.gpu_mode.instances
        facts = replace(
            facts,
            is_held=held,
            dependency=member.record.dependency if held else "",
            is_moved=read_moved(self.pack.path, member.number) is not None,
        )
        if facts.is_held or facts.is_moved:
            return facts
        found = self.queue.judge_dependency(member)
        if found is not None:
            self.dependencies[member.number] = found
            facts = replace(facts, dependency=found.told)
        if facts.dependency or instances is None:
            return facts
        return replace(facts, misfit=instances.seats.find_misfit(member))

    def _add_room(self, member: Member, facts: MemberFacts) -> MemberFacts:
        """What room it needs, and what there is for it."""
        cpus, instances = member.spec.plan.cpus, self.gpu_mode.instances
        if not self.pack.members.find_places(cpus):
            return replace(facts, no_place=WaitReason(WaitKind.PLACE, facts.name, count=cpus))
        if instances is not None:
            return replace(
                facts,
                instance=instances.seats.describe(member),
                waits_for_taken=instances.seats.waits_for_taken(member),
            )
        return replace(
            facts,
            kind=self.memory.progress.find_family(member),
            need_mb=self.memory.find_need_mb(member),
            known=self.measured_degree.find_known_with(member),
            must_go_on=self.measured_degree.is_last_moment(member),
            may_load=self.doors.may_load(member),
        )


# ---- What csub is told of the pack: who would join it, or whose members might come ---------------

LOOK_S = 0.25
ROUNDED_MB = 256
"""Figures of every moment would be written at every moment."""


@dataclass(eq=False, kw_only=True)
class DegreeWriter:
    """Writes down how many run at once, and what room there is.

    Attributes:
        pack: The attempt of the pack.
        look: Looks at the pack.
        measured_degree: What was measured and decided.
        memory: What members take of the GPU's memory.
        watch: Whether members are watched.
        core_lender: Cores that members have besides their own.
        memory_turns: Members whose GPU memory is in host memory.
    """

    pack: PackContext
    look: PackLook
    measured_degree: MeasuredDegree
    memory: GpuMemoryRoom
    watch: Watch
    core_lender: CoreLender
    memory_turns: MemoryTurns

    def __post_init__(self) -> None:
        self._written: DegreeRecord | None = None
        self._decided: DegreeRecord | None = None
        self._looked_at = 0.0

    def work(self) -> None:
        """Write it down where it has changed; what was decided at once, figures now and then."""
        decided, now = self.measured_degree.record, self.pack.clock()
        is_due = now >= self._looked_at + LOOK_S and not self.measured_degree.is_measuring
        is_told = len(self.pack.members.places) > 1 and not self.watch.unwatched
        is_new = decided is not self._decided
        if not (is_new or (is_due and is_told)):
            return
        self._looked_at = now
        record = self._describe(decided)
        if record == self._written or (self._decided is None and not is_told):
            self._decided = decided
            return
        self._decided, self._written = decided, record
        with contextlib.suppress(StateError):
            write_degree(self.pack.path, record)

    def _describe(self, decided: DegreeRecord) -> DegreeRecord:
        running, view = self.pack.members.running(), self.look.look()
        free = view.compute_free()
        free_mb = None if free is None else max(0, *free.free_mb.values(), 0)
        return replace(
            decided,
            places=view.places,
            parked=tuple(m.number for m in running if m.is_parked or m.is_moved),
            moved=self.memory_turns.list_moved(),
            # Beyond those that wait here.
            room=max(0, count_room(view) - len(self.pack.members.waiting)),
            free_gpu_memory_mb=None if free_mb is None else free_mb - free_mb % ROUNDED_MB,
            memory_has_settled=bool(running) and all(map(self.memory.is_settled, running)),
            cores=self.core_lender.list_loans(),
            workers=self.core_lender.list_advice(),
        )
