"""A pack whose members make steps by a clock of the test's, and are paused and measured by it.

Nothing of it runs: a member is a number that grows while it is not paused.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slurm_colloc.model.job import Job
from slurm_colloc.model.job_values import ConditionOutlook
from slurm_colloc.model.member import MemberState, WaitReason
from slurm_colloc.model.member import Stage as MemberStage
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.planning.arrange import Arrangement, arrange, find_wait
from slurm_colloc.planning.known_degree import KnownDegree
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.collect_ends import SlurmDecision
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.look import DegreeWriter, PackLook
from slurm_colloc.runtime.may_start import StartQueue
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.member_progress import ProgressReader, StepCount, WindowRates
from slurm_colloc.runtime.members import Member, PackMembers, PackPlace
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.member_states import GpuUse, StateRecord, begin_attempt
from slurm_colloc.store.pack_directory import read_spec
from slurm_colloc.store.runner_requests import DegreeRecord, read_degree

from ..packs import build_pack, write_packs
from .pack_contexts import build_context
from .stepped_runner import NOBODY

RATE = 10.0
TICK_S = 0.05

RateOf = Callable[[int, int], float]
"""Steps per second of a member, by its number and by how many run."""


def steady(number: int, running: int) -> float:  # noqa: ARG001
    """All are as fast as alone."""
    return RATE


def share(at: float) -> RateOf:
    """Each has all it wants until so many run; more share it."""
    return lambda _, running: RATE * min(1.0, at / running)


class Counters(WindowRates):
    """Counters as the stage lets them grow."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(lambda _: "", lambda: stage.now)
        self._stage = stage

    def read(self, member: Member) -> StepCount | None:
        """See WindowRates."""
        found = self._stage.steps.get(member.number)
        if not found or found < (self._stage.line_steps or 1):
            return None
        first, last = self._stage.first[member.number], self._stage.last[member.number]
        count = StepCount(self._stage.now, int(found), first, last, 1, self._stage.ranks)
        each = self._stage.line_steps
        if each is None:
            return count
        steps = int(found) // each * each
        if not steps:
            return None
        printed = dataclasses.replace(count, steps=steps, is_printed=True)
        return self._note_line(str(member.number), printed)


class StageGpu(GpuMode):
    """A GPU as the stage states it."""

    stated_mb: int | None = None
    holds = True

    @property
    def usable_mb(self) -> int | None:
        return self.stated_mb

    @property
    def enforces(self) -> bool:
        return self.holds


class StageWatch:
    """Everything is watched, and measured unless the stage has an obstacle."""

    unwatched = ""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def obstacle(self) -> str:
        return self._stage.obstacle


class StageDegree(MeasuredDegree):
    """Counts as many members elsewhere as the stage says."""

    stage: Stage

    def count_waiting(self) -> int:
        return len(self.pack.members.waiting) + self.stage.elsewhere


class StageQueue(StartQueue):
    """Judges dependencies as the stage says."""

    stage: Stage

    def judge(self, job: Job) -> tuple[ConditionOutlook, str]:  # noqa: ARG002
        return self.stage.outlook


class Stage:
    """A pack with its files, without Slurm and without processes.

    Args:
        folder: Where its state is.
        process: What every member that runs is given as its process.
        members: How many there are.
        places: How many may be there at once.
        known_mb: What is known of their GPU memory; None for nothing.
        usable_mb: GPU memory that they may take together; None where it is unknown.
        solo: The rate alone by their plans.
        obstacle: Why nothing is measured.
        time_limit_s: The pack's.
        known: What earlier packs of the same scripts measured; None for nothing.
        planned_degree: How many run at once where nothing is measured; None for all places.
        enforces: Members are held to their limits, as under MPS.
    """

    def __init__(
        self,
        folder: Path,
        process: StartedProcess,
        *,
        members: int = 4,
        places: int = 4,
        known_mb: int | None = 1000,
        usable_mb: int | None = 80_000,
        solo: float | None = None,
        obstacle: str = "",
        time_limit_s: int | None = None,
        enforces: bool = True,
        planned_degree: int | None = None,
        known: KnownDegree | None = None,
    ) -> None:
        state = State(folder / "state", "here")
        self.pack = write_packs(state, build_pack("s", members=members))
        (self.pack / "report").mkdir(exist_ok=True)
        self.attempt = begin_attempt(self.pack, 1)
        self.process = process
        self.now = 1000.0
        self.begun_at = time.time() + 0.5
        self.steps: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.paused_s: dict[int, float] = {}
        self.memory_mb: dict[int, float] = {}
        self.ranks: int | None = None
        self.line_steps: int | None = None
        """Steps for which a member prints one line; None where each step is counted."""
        self.elsewhere = 0
        """Members that wait in other packs."""
        self.loading: set[int] = set()
        """Who runs and makes no steps yet."""
        self.obstacle = obstacle
        self.members = PackMembers([PackPlace(index, 2, ()) for index in range(places)])
        planned = state.read_pack("s.0")
        assert planned is not None
        request = PackRequest(1, None, 2, None, time_limit_s)
        self.context = build_context(
            self.pack,
            record=dataclasses.replace(planned, request=request),
            state=state,
            attempt=self.attempt,
            allocation=Allocation("1", "1", "n", 0, 1, (), (), {}),
            members=self.members,
            clock=lambda: self.now,
        )
        self.states = StateWriter(pack=self.context)
        for number in range(1, members + 1):
            spec = read_spec(self.pack, number)
            spec = dataclasses.replace(
                spec,
                job=dataclasses.replace(spec.job, time_limit_s=60),
                plan=dataclasses.replace(
                    spec.plan, solo_steps_per_s=solo, gpu_memory_limit_mb=known_mb
                ),
            )
            record = StateRecord(MemberState.PENDING, self.attempt)
            self.members.by_number[number] = Member(number, spec, record)
            self.members.waiting.append(number)
        self.time_left = TimeLeft(pack=self.context, site_requeues=True)
        rates = Counters(self)
        self.progress = progress = ProgressReader(pack=self.context, rates=rates, bound=1.5)
        self.pauser = MemberPauser(pack=self.context)
        self.gpu_mode = StageGpu(pack=self.context, lone=True)
        self.gpu_mode.stated_mb, self.gpu_mode.holds = usable_mb, enforces
        watch: Any = StageWatch(self)
        self.memory = GpuMemoryRoom(
            pack=self.context, progress=progress, gpu_mode=self.gpu_mode, watch=watch,
            states=self.states,
        )  # fmt: skip
        curves: Any = SimpleNamespace(find_degree=lambda all_: known if len(all_) > 1 else None)
        self.measured_degree = StageDegree(
            pack=self.context, time_left=self.time_left, progress=progress, rates=rates,
            pauser=self.pauser, memory=self.memory, watch=watch, curves=curves,
            planned_degree=planned_degree or places,
        )  # fmt: skip
        self.measured_degree.stage = self
        self.slurm_decision = SlurmDecision(pack=self.context)
        self.outlook = (ConditionOutlook.SATISFIED, "")
        self.start_queue = StageQueue(
            pack=self.context, time_left=self.time_left, states=self.states
        )
        self.start_queue.stage = self
        no_doors: Any = SimpleNamespace(list_waiting=list, may_load=lambda _: False)
        self.look = PackLook(
            pack=self.context, time_left=self.time_left, queue=self.start_queue,
            slurm_decision=self.slurm_decision, gpu_mode=self.gpu_mode,
            measured_degree=self.measured_degree, memory=self.memory, doors=no_doors,
        )  # fmt: skip
        nothing: Any = SimpleNamespace(list_loans=tuple, list_advice=tuple, list_moved=tuple)
        self.writer = DegreeWriter(
            pack=self.context, look=self.look, measured_degree=self.measured_degree,
            memory=self.memory, watch=watch, core_lender=nothing, memory_turns=nothing,
        )  # fmt: skip

    def arrange(self) -> Arrangement:
        """What is done next, as `start` would."""
        return arrange(self.look.look())

    def explain(self, number: int) -> WaitReason | None:
        """Why a waiting member does not start, whoever waits before it."""
        view = self.look.look()
        member = self.members.by_number[number]
        facts = next(self.look.gather_waiting(view, [member]))
        return find_wait(view, facts)

    def work(self) -> None:
        """The runner's turn."""
        self.measured_degree.work(self.look)
        self.memory.work()
        self.writer.work()

    def start(self) -> int | None:
        """Start the next member, if it may start; in the first place that is free."""
        view = self.look.look()
        chosen = arrange(view)
        self.start_queue.follow(view, chosen, self.look.dependencies)
        if chosen.order is None:
            return None
        number = chosen.order.number
        member = self.members.by_number[number]
        limit_mb, _ = self.memory.reserve(member, view.compute_free())
        member.gpu = GpuUse("mps", gpu_memory_limit_mb=limit_mb)
        self.members.waiting.remove(number)
        next(place for place in self.members.places if place.occupant is None).occupant = number
        member.process, member.pid = self.process, self.process.pid
        member.wrapper_pid = NOBODY
        started_at = self.begun_at + self.now + number / 1000
        self.states.write(member, MemberState.RUNNING, starts=1, started_at=started_at, reason="")
        return number

    def start_all(self) -> list[int]:
        """Start as many as may start."""
        started = []
        while (number := self.start()) is not None:
            started.append(number)
        return started

    def end(self, number: int) -> None:
        """A member ends."""
        member = self.members.by_number[number]
        member.process = member.pid = member.wrapper_pid = None
        member.let_go(MemberStage.PARKED)
        self.pauser.forget(member)
        self.members.vacate(number)
        self.states.write(member, MemberState.COMPLETED)

    def pass_time(self, seconds: float, rate: RateOf = steady, *, refills: bool = False) -> None:
        """Let time pass: those that are not paused make steps, and the runner takes its turns."""
        end = self.now + seconds
        told_at = 0.0
        while self.now < end - 1e-9:
            self.now += TICK_S
            running = [m for m in self.members.running() if m.paused_at is None]
            for member in self.members.running():
                number = member.number
                if member.paused_at is not None:
                    self.paused_s[number] = self.paused_s.get(number, 0.0) + TICK_S
                    continue
                if number in self.loading:
                    continue
                before = self.steps.get(number, 0.0)
                self.steps[number] = before + rate(number, len(running)) * TICK_S
                each = self.line_steps or 1
                if int(self.steps[number]) // each > int(before) // each:
                    self.first.setdefault(number, self.now)
                    self.last[number] = self.now
            if self.now >= told_at + 2.0:
                told_at = self.now
                self._tell()
            self.work()
            if refills:
                self.start_all()

    def _tell(self) -> None:
        """As the monitor does every two seconds."""
        rows = {
            str(member.number): {
                "start": 1,
                "steps": int(self.steps.get(member.number, 0)),
                "gpu_memory_mb": self.memory_mb.get(member.number),
            }
            for member in self.members.running()
        }
        # The real clock stands nearly still meanwhile.
        at = self.begun_at + (self.now - 1000.0) / 1e3
        value: dict[str, Any] = {"at": at, "gpus": {}, "problems": {}, "members": rows}
        write_json(f"{self.pack}/latest.json", value)

    @property
    def record(self) -> DegreeRecord | None:
        """What is written down."""
        return read_degree(self.pack, self.attempt)

    def list_parked(self) -> list[int]:
        """Who is parked, and really paused."""
        found = [m for m in self.members.running() if m.is_parked]
        assert all(member.paused_at is not None for member in found)
        return [member.number for member in found]

    def list_events(self, *names: str) -> list[dict[str, Any]]:
        """What the pack's log has of some kinds."""
        path = self.pack / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] in names]
