"""Which waiting member may start, and what becomes of those that are left."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.model.dependency import Outlook
from slurm_colloc.model.job import Job
from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.model.ramp_decision import is_time_reason
from slurm_colloc.runtime.gate import PATIENCE_S, Gate
from slurm_colloc.runtime.time_left import TimeLeft
from slurm_colloc.store.directory import read_ended, write_moved
from slurm_colloc.store.holds import is_held, remove_held, was_left, write_held

from .runner_bed import Bed


class Judge:
    """Says of every dependency what a test has set, and counts how often it was asked."""

    def __init__(self) -> None:
        self.outlook = Outlook.SATISFIED
        self.count = 0

    def __call__(self, job: Job) -> tuple[Outlook, str]:
        self.count += 1
        return self.outlook, f"{job.depends[0][1]}: {self.outlook.value}"


@pytest.fixture
def judge() -> Judge:
    return Judge()


def build_gate(bed: Bed, judge: Judge, *, clock: Callable[[], float] = time.monotonic) -> Gate:
    time_left = TimeLeft(
        bed.pack, bed.record, bed.roster, bed.crew.ledger, bed.journal,
        site_requeues=True, clock=clock,
    )  # fmt: skip
    return Gate(bed.pack, bed.roster, bed.crew.ledger, bed.journal, judge, time_left=time_left)


def depend(job: Job) -> Job:
    """The first of them waits for another pack's member."""
    return dataclasses.replace(job, depends=(("afterok", "4/2"),)) if job.number == 1 else job


def find_number(gate: Gate) -> int | None:
    member = gate.find_next()
    return None if member is None else member.number


def test_the_first_that_waits_is_next(bed: Bed, judge: Judge) -> None:
    bed.adopt(2, 1)
    assert find_number(build_gate(bed, judge)) == 2


def test_held_and_moved_members_are_passed_over(bed: Bed, judge: Judge) -> None:
    bed.adopt(1, 2, 3)
    gate = build_gate(bed, judge)
    write_held(bed.pack, 1)
    write_moved(bed.pack, 2, bed.pack.name)
    assert find_number(gate) == 3
    remove_held(bed.pack, 1)
    assert find_number(gate) == 1


def test_nobody_is_next_where_there_is_no_room(bed: Bed, judge: Judge) -> None:
    bed.run_member(1)
    bed.run_member(2)
    bed.adopt(3)
    assert find_number(build_gate(bed, judge)) is None


def test_who_takes_more_places_than_are_free_lets_a_smaller_one_go_first(
    bed: Bed, judge: Judge
) -> None:
    bed.run_member(1)
    large, _ = bed.adopt(2, 3)
    retries = dataclasses.replace(large.record.retries, places=2)
    large.record = dataclasses.replace(large.record, retries=retries)
    assert find_number(build_gate(bed, judge)) == 3


def test_a_satisfied_dependency_is_judged_once(build_bed: Callable[..., Bed], judge: Judge) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1)
    gate = build_gate(bed, judge)
    assert [find_number(gate), find_number(gate)] == [1, 1]
    assert judge.count == 1


def test_who_has_run_before_is_not_judged_again(
    build_bed: Callable[..., Bed], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    (member,) = bed.adopt(1)
    member.record = dataclasses.replace(member.record, starts=1)
    judge.outlook = Outlook.NEVER
    assert find_number(build_gate(bed, judge)) == 1


def test_a_dependency_that_never_holds_cancels_the_member(
    build_bed: Callable[..., Bed], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1, 2)
    judge.outlook = Outlook.NEVER
    gate = build_gate(bed, judge)
    assert find_number(gate) == 2
    record = bed.read(1)
    assert (record.state, record.reason) == (MemberState.CANCELLED, "4/2: never")
    assert record.exit_code == ExitCode(0, signal.SIGTERM)
    assert list(bed.roster.waiting) == [2]


def test_an_open_dependency_is_looked_at_for_a_while_and_then_held(
    build_bed: Callable[..., Bed], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bed = build_bed(change=depend)
    bed.adopt(1)
    judge.outlook = Outlook.OPEN
    gate = build_gate(bed, judge)
    assert find_number(gate) is None
    now[0] += PATIENCE_S - 0.1
    assert find_number(gate) is None
    assert (gate.is_undecided, is_held(bed.pack, 1)) == (True, False)
    now[0] += 0.2
    assert find_number(gate) is None
    assert (gate.is_undecided, is_held(bed.pack, 1)) == (False, True)
    record = bed.read(1)
    assert (record.state, record.reason) == (MemberState.PENDING, "4/2: open")


def test_a_dependency_that_becomes_satisfied_in_time_starts_the_member(
    build_bed: Callable[..., Bed], judge: Judge
) -> None:
    bed = build_bed(change=depend)
    bed.adopt(1)
    gate = build_gate(bed, judge)
    judge.outlook = Outlook.OPEN
    assert find_number(gate) is None
    judge.outlook = Outlook.SATISFIED
    assert find_number(gate) == 1
    assert not gate.is_undecided


def test_held_members_are_left_behind_where_nobody_releases_them(bed: Bed, judge: Judge) -> None:
    bed.adopt(1, 2)
    write_held(bed.pack, 1)
    write_moved(bed.pack, 2, bed.pack.name)
    gate = build_gate(bed, judge)
    assert gate.leave_behind()
    assert (was_left(bed.pack, 1), was_left(bed.pack, 2)) == (True, False)
    assert (gate.has_handed_back, read_ended(bed.pack)) == (False, None)


def test_a_pack_does_not_end_over_a_member_that_was_just_released(bed: Bed, judge: Judge) -> None:
    bed.adopt(1)
    write_held(bed.pack, 1)
    gate = build_gate(bed, judge)
    assert find_number(gate) is None
    remove_held(bed.pack, 1)
    assert not gate.leave_behind()
    assert find_number(gate) == 1


def test_for_whom_too_little_time_is_left_waits_for_the_next_pack(
    build_bed: Callable[..., Bed], judge: Judge
) -> None:
    def limit(job: Job) -> Job:
        return dataclasses.replace(job, time_limit_s=60, requeue=True)

    now = [0.0]
    bed = build_bed(change=limit, time_limit_s=100)
    bed.run_member(1)
    bed.adopt(2)
    gate = build_gate(bed, judge, clock=lambda: now[0])
    assert find_number(gate) == 2
    now[0] = 50.0
    assert find_number(gate) is None
    assert is_time_reason(bed.read(2).reason)
    assert gate.leave_behind()
    assert gate.has_handed_back
    assert read_ended(bed.pack) is SlurmJobState.TIMEOUT
    assert not was_left(bed.pack, 2)
    assert not Path(bed.folder(2) / "held").exists()
