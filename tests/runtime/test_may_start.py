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
from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState, WaitKind
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.arrange import (
    PASSES_MOST,
    Arrangement,
    MemoryFacts,
    Start,
    arrange,
)
from slurm_colloc.runtime import may_start
from slurm_colloc.runtime.may_start import PATIENCE_S
from slurm_colloc.runtime.room import TimeLeft
from slurm_colloc.store.member_states import is_held, remove_held, was_left, write_held
from slurm_colloc.store.pack_directory import read_ended, write_moved

from .stepped_runner import SteppedRunner


class Judge:
    """Says of every dependency what a test has set, and counts how often it was asked."""

    def __init__(self) -> None:
        self.outlook = ConditionOutlook.SATISFIED
        self.count = 0

    def __call__(self, _state: object, _slurm: object, job: Job) -> tuple[ConditionOutlook, str]:
        self.count += 1
        holds = self.outlook is ConditionOutlook.SATISFIED
        return self.outlook, "" if holds else f"{job.depends[0][1]}: {self.outlook.value}"


@pytest.fixture(autouse=True)
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    found = Judge()
    monkeypatch.setattr(may_start, "judge_own_dependency", found)
    return found


TOO_MUCH_MB = 10**6


def bound_memory(bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, *without: int) -> None:
    """Let there be GPU memory for all but some."""
    memory = bed.parts.memory
    needs = dict.fromkeys(without, TOO_MUCH_MB)
    monkeypatch.setattr(memory, "find_need_mb", lambda member: needs.get(member.number, 0))
    monkeypatch.setattr(memory, "find_reserved_mb", lambda _: 0)
    monkeypatch.setattr(bed.parts.look, "_gather_memory", lambda: MemoryFacts(1000))


def set_clock(bed: SteppedRunner, clock: Callable[[], float]) -> None:
    """Let the pack's time pass by another clock."""
    pack = dataclasses.replace(bed.context, clock=clock)
    time_left = TimeLeft(pack=pack, site_requeues=True)
    bed.parts.look.time_left = bed.parts.start_queue.time_left = time_left


def take_step(bed: SteppedRunner) -> Arrangement:
    """What follows from a look, with what that has found done."""
    view = bed.parts.look.look()
    chosen = arrange(view)
    bed.parts.start_queue.follow(view, chosen, bed.parts.look.dependencies)
    return chosen


def depend(job: Job) -> Job:
    """The first of them waits for another pack's member."""
    return dataclasses.replace(job, depends=(("afterok", "4/2"),)) if job.number == 1 else job


def find_number(bed: SteppedRunner) -> int | None:
    return take_step(bed).front


def test_the_first_that_waits_is_next(bed: SteppedRunner) -> None:
    bed.adopt(2, 1)
    assert find_number(bed) == 2


def test_held_and_moved_members_are_passed_over(bed: SteppedRunner) -> None:
    bed.adopt(1, 2, 3)
    write_held(bed.pack, 1)
    write_moved(bed.pack, 2, bed.pack.name)
    assert find_number(bed) == 3
    remove_held(bed.pack, 1)
    assert find_number(bed) == 1


def test_nobody_starts_where_there_is_no_room(bed: SteppedRunner) -> None:
    bed.run_member(1)
    bed.run_member(2)
    bed.adopt(3)
    chosen = take_step(bed)
    assert (chosen.order, chosen.told) == (None, None)


def test_who_is_to_be_alone_waits_until_none_runs(bed: SteppedRunner) -> None:
    bed.run_member(1)
    large, _ = bed.adopt(2, 3)
    retries = dataclasses.replace(large.record.retries, alone=True)
    large.record = dataclasses.replace(large.record, retries=retries)
    chosen = take_step(bed)
    assert chosen.order == Start(3)


def test_who_finds_no_gpu_memory_is_passed_so_often_and_no_more(
    build_bed: Callable[..., SteppedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = build_bed(members=PASSES_MOST + 3, places=PASSES_MOST + 3)
    bed.parts.gpu_mode._settled.settle(SharingMode.MPS, "as planned")
    bed.run_member(1)
    bed.adopt(*range(2, PASSES_MOST + 4))
    bound_memory(bed, monkeypatch, 2)
    started = []
    while (order := take_step(bed).order) is not None:
        assert order == Start(order.number, passes=2)
        started.append(order.number)
        bed.members.waiting.remove(order.number)
    assert started == list(range(3, PASSES_MOST + 3))
    assert list(bed.members.waiting) == [2, PASSES_MOST + 3]
    waits = bed.read(2).waits
    assert waits is not None
    assert (waits.kind, waits.need_mb) == (WaitKind.MEMORY, TOO_MUCH_MB)


def test_a_satisfied_dependency_is_judged_once(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1)
    assert [find_number(bed), find_number(bed)] == [1, 1]
    assert judge.count == 1


def test_who_has_run_before_is_not_judged_again(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    (member,) = bed.adopt(1)
    member.record = dataclasses.replace(member.record, starts=1)
    judge.outlook = ConditionOutlook.NEVER
    assert find_number(bed) == 1


def test_a_dependency_that_never_holds_cancels_the_member(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1, 2)
    judge.outlook = ConditionOutlook.NEVER
    assert find_number(bed) == 2
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
    queue = bed.parts.start_queue
    assert find_number(bed) is None
    now[0] += PATIENCE_S - 0.1
    assert find_number(bed) is None
    assert (queue.is_undecided, is_held(bed.pack, 1)) == (True, False)
    now[0] += 0.2
    assert find_number(bed) is None
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
    bed.run_member(3)
    bound_memory(bed, monkeypatch, 1, 2)
    take_step(bed)
    if outlook is ConditionOutlook.OPEN:
        now[0] += PATIENCE_S

    def show() -> tuple[object, ...]:
        files = {path: path.read_bytes() for path in bed.pack.rglob("*") if path.is_file()}
        undecided = bed.parts.start_queue.is_undecided
        return files, list(bed.members.waiting), first.record, undecided

    before = show()
    views = [bed.parts.look.look() for _ in range(2)]
    assert show() == before
    assert views[0] == views[1]
    assert arrange(views[0]) == arrange(views[1])


def test_a_dependency_that_becomes_satisfied_in_time_starts_the_member(
    build_bed: Callable[..., SteppedRunner], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1)
    queue = bed.parts.start_queue
    judge.outlook = ConditionOutlook.OPEN
    assert find_number(bed) is None
    judge.outlook = ConditionOutlook.SATISFIED
    assert find_number(bed) == 1
    assert not queue.is_undecided


def test_held_members_are_left_behind_where_nobody_releases_them(bed: SteppedRunner) -> None:
    bed.adopt(1, 2)
    write_held(bed.pack, 1)
    write_moved(bed.pack, 2, bed.pack.name)
    queue = bed.parts.start_queue
    assert queue.leave_behind()
    assert (was_left(bed.pack, 1), was_left(bed.pack, 2)) == (True, False)
    assert (queue.has_handed_back, read_ended(bed.pack)) == (False, None)


def test_a_pack_does_not_end_over_a_member_that_was_just_released(bed: SteppedRunner) -> None:
    bed.adopt(1)
    write_held(bed.pack, 1)
    queue = bed.parts.start_queue
    assert find_number(bed) is None
    remove_held(bed.pack, 1)
    assert not queue.leave_behind()
    assert find_number(bed) == 1


def test_for_whom_too_little_time_is_left_waits_for_the_next_pack(
    build_bed: Callable[..., SteppedRunner],
) -> None:
    def limit(job: Job) -> Job:
        return dataclasses.replace(job, time_limit_s=60, requeue=True)

    now = [0.0]
    bed = build_bed(change=limit, time_limit_s=100)
    bed.run_member(1)
    bed.adopt(2)
    queue = bed.parts.start_queue
    set_clock(bed, lambda: now[0])
    assert find_number(bed) == 2
    now[0] = 50.0
    assert find_number(bed) is None
    waits = bed.read(2).waits
    assert waits is not None
    assert waits.kind is WaitKind.TIME
    assert queue.leave_behind()
    assert queue.has_handed_back
    assert read_ended(bed.pack) is SlurmJobState.TIMEOUT
    assert not was_left(bed.pack, 2)
    assert not Path(bed.folder(2) / "held").exists()
