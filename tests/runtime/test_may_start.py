"""Which waiting member may start, and what becomes of those that are left."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.job_values import ConditionOutlook
from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState, WaitKind, WaitReason
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.may_start import PASSES_MOST, PATIENCE_S, QueueLook, StartQueue
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft
from slurm_colloc.store.member_states import is_held, remove_held, was_left, write_held
from slurm_colloc.store.pack_directory import read_ended, write_moved

from .stepped_runner import SteppedRunner


class Judge:
    """Says of every dependency what a test has set, and counts how often it was asked."""

    def __init__(self) -> None:
        self.outlook = ConditionOutlook.SATISFIED
        self.count = 0

    def __call__(self, job: Job) -> tuple[ConditionOutlook, str]:
        self.count += 1
        holds = self.outlook is ConditionOutlook.SATISFIED
        return self.outlook, "" if holds else f"{job.depends[0][1]}: {self.outlook.value}"


@pytest.fixture
def judge() -> Judge:
    return Judge()


NO_MEMORY = WaitReason(WaitKind.MEMORY)


class NoMemoryBound(GpuMemoryRoom):
    """There is GPU memory for all but some."""

    def __init__(self, *without: int) -> None:
        self.without = set(without)

    def describe(self, member: Member) -> WaitReason | None:
        return NO_MEMORY if member.number in self.without else None


def build_queue(
    bed: SteppedRunner,
    judge: Judge,
    *,
    clock: Callable[[], float] = time.monotonic,
    memory: GpuMemoryRoom | None = None,
) -> StartQueue:
    parts = bed.parts
    time_left = TimeLeft(pack=dataclasses.replace(bed.context, clock=clock), site_requeues=True)
    return StartQueue(
        pack=bed.context, time_left=time_left,
        judge=judge, slurm_decision=parts.slurm_decision, gpu_mode=parts.gpu_mode,
        measured_degree=parts.measured_degree, memory=memory or NoMemoryBound(),
        states=parts.states,
    )  # fmt: skip


def depend(job: Job) -> Job:
    """The first of them waits for another pack's member."""
    return dataclasses.replace(job, depends=(("afterok", "4/2"),)) if job.number == 1 else job


def find_number(queue: StartQueue) -> int | None:
    look = queue.look()
    queue.follow(look)
    return None if look.front is None else look.front.number


def test_the_first_that_waits_is_next(bed: SteppedRunner, judge: Judge) -> None:
    bed.adopt(2, 1)
    assert find_number(build_queue(bed, judge)) == 2


def test_held_and_moved_members_are_passed_over(bed: SteppedRunner, judge: Judge) -> None:
    bed.adopt(1, 2, 3)
    queue = build_queue(bed, judge)
    write_held(bed.pack, 1)
    write_moved(bed.pack, 2, bed.pack.name)
    assert find_number(queue) == 3
    remove_held(bed.pack, 1)
    assert find_number(queue) == 1


def test_nobody_is_next_where_there_is_no_room(bed: SteppedRunner, judge: Judge) -> None:
    bed.run_member(1)
    bed.run_member(2)
    bed.adopt(3)
    assert find_number(build_queue(bed, judge)) is None


def test_who_is_to_be_alone_lets_another_go_first(bed: SteppedRunner, judge: Judge) -> None:
    bed.run_member(1)
    large, _ = bed.adopt(2, 3)
    retries = dataclasses.replace(large.record.retries, alone=True)
    large.record = dataclasses.replace(large.record, retries=retries)
    assert find_number(build_queue(bed, judge)) == 3


def test_who_finds_no_gpu_memory_is_passed_so_often_and_no_more(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(members=PASSES_MOST + 2, places=PASSES_MOST + 2)
    bed.parts.gpu_mode._settled.settle(SharingMode.MPS, "as planned")
    bed.adopt(*range(1, PASSES_MOST + 3))
    queue = build_queue(bed, judge, memory=NoMemoryBound(1))
    started = []
    while (member := queue.take_next()) is not None:
        started.append(member.number)
        bed.members.waiting.remove(member.number)
    assert started == list(range(2, PASSES_MOST + 2))
    assert list(bed.members.waiting) == [1, PASSES_MOST + 2]
    assert bed.read(1).waits == NO_MEMORY


def test_a_satisfied_dependency_is_judged_once(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1)
    queue = build_queue(bed, judge)
    assert [find_number(queue), find_number(queue)] == [1, 1]
    assert judge.count == 1


def test_who_has_run_before_is_not_judged_again(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    (member,) = bed.adopt(1)
    member.record = dataclasses.replace(member.record, starts=1)
    judge.outlook = ConditionOutlook.NEVER
    assert find_number(build_queue(bed, judge)) == 1


def test_a_dependency_that_never_holds_cancels_the_member(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1, 2)
    judge.outlook = ConditionOutlook.NEVER
    queue = build_queue(bed, judge)
    assert find_number(queue) == 2
    record = bed.read(1)
    assert (record.state, record.reason) == (MemberState.CANCELLED, "4/2: never")
    assert record.exit_code == ExitCode(0, signal.SIGTERM)
    assert list(bed.members.waiting) == [2]


def test_an_open_dependency_is_looked_at_for_a_while_and_then_held(
    build_bed: Callable[..., SteppedRunner], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bed = build_bed(change=depend)
    bed.adopt(1)
    judge.outlook = ConditionOutlook.OPEN
    queue = build_queue(bed, judge)
    assert find_number(queue) is None
    now[0] += PATIENCE_S - 0.1
    assert find_number(queue) is None
    assert (queue.is_undecided, is_held(bed.pack, 1)) == (True, False)
    now[0] += 0.2
    assert find_number(queue) is None
    assert (queue.is_undecided, is_held(bed.pack, 1)) == (False, True)
    record = bed.read(1)
    assert (record.state, record.dependency) == (MemberState.PENDING, "4/2: open")


@pytest.mark.parametrize("outlook", list(ConditionOutlook))
def test_asking_who_starts_changes_nothing(
    build_bed: Callable[..., SteppedRunner],
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    outlook: ConditionOutlook,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bed = build_bed(change=depend)
    first, _ = bed.adopt(1, 2)
    judge.outlook = outlook
    queue = build_queue(bed, judge, memory=NoMemoryBound(1, 2))
    queue.follow(queue.look())
    if outlook is ConditionOutlook.OPEN:
        now[0] += PATIENCE_S

    def show() -> tuple[object, ...]:
        files = {path: path.read_bytes() for path in bed.pack.rglob("*") if path.is_file()}
        return files, list(bed.members.waiting), first.record, queue.is_undecided

    before = show()
    looks = [queue.choose_start() for _ in range(2)]
    queue.gather(first, QueueLook())
    queue.find_for_door()
    assert show() == before
    assert looks[0] == looks[1]


def test_a_dependency_that_becomes_satisfied_in_time_starts_the_member(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1)
    queue = build_queue(bed, judge)
    judge.outlook = ConditionOutlook.OPEN
    assert find_number(queue) is None
    judge.outlook = ConditionOutlook.SATISFIED
    assert find_number(queue) == 1
    assert not queue.is_undecided


def test_held_members_are_left_behind_where_nobody_releases_them(
    bed: SteppedRunner, judge: Judge
) -> None:
    bed.adopt(1, 2)
    write_held(bed.pack, 1)
    write_moved(bed.pack, 2, bed.pack.name)
    queue = build_queue(bed, judge)
    assert queue.leave_behind()
    assert (was_left(bed.pack, 1), was_left(bed.pack, 2)) == (True, False)
    assert (queue.has_handed_back, read_ended(bed.pack)) == (False, None)


def test_a_pack_does_not_end_over_a_member_that_was_just_released(
    bed: SteppedRunner, judge: Judge
) -> None:
    bed.adopt(1)
    write_held(bed.pack, 1)
    queue = build_queue(bed, judge)
    assert find_number(queue) is None
    remove_held(bed.pack, 1)
    assert not queue.leave_behind()
    assert find_number(queue) == 1


def test_for_whom_too_little_time_is_left_waits_for_the_next_pack(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    def limit(job: Job) -> Job:
        return dataclasses.replace(job, time_limit_s=60, requeue=True)

    now = [0.0]
    bed = build_bed(change=limit, time_limit_s=100)
    bed.run_member(1)
    bed.adopt(2)
    queue = build_queue(bed, judge, clock=lambda: now[0])
    assert find_number(queue) == 2
    now[0] = 50.0
    assert find_number(queue) is None
    waits = bed.read(2).waits
    assert waits is not None
    assert waits.kind is WaitKind.TIME
    assert queue.leave_behind()
    assert queue.has_handed_back
    assert read_ended(bed.pack) is SlurmJobState.TIMEOUT
    assert not was_left(bed.pack, 2)
    assert not Path(bed.folder(2) / "held").exists()
