"""Filling free places, and closing the pack once nobody waits."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.model.member import EndCause, MemberState
from slurm_colloc.runtime import guarded_steps
from slurm_colloc.runtime.members import Member, PackPlace
from slurm_colloc.runtime.place_member import AS_PLANNED, GpuShare
from slurm_colloc.runtime.stop_member import Fenced
from slurm_colloc.store.inbox import list_waiting
from slurm_colloc.store.member_states import (
    Retries,
    begin_attempt,
    remove_held,
    was_left,
    write_held,
)

from .stepped_runner import PlainProcess, SteppedRunner


@pytest.fixture
def started(bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Who was started in which place; nobody really is."""
    return follow_starts(bed, monkeypatch)


def follow_starts(
    bed: SteppedRunner,
    monkeypatch: pytest.MonkeyPatch,
    problem: Callable[[Member], None] = lambda _: None,
) -> list[tuple[int, int]]:
    """Start plain processes; `problem` may raise what a start may raise."""
    seen: list[tuple[int, int]] = []

    def start(member: Member, place: PackPlace, _likely_degree: int | None = None) -> bool:
        member.launcher = bed.parts.starter.launcher
        problem(member)
        member.process = PlainProcess()
        seen.append((member.number, place.index))
        return True

    monkeypatch.setattr(bed.parts.starter, "start", start)
    return seen


def test_as_many_start_as_there_are_places(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    bed.parts.place_filler.work()
    assert started == [(1, 0), (2, 1)]
    assert list(bed.members.waiting) == [3]
    assert list_waiting(str(bed.pack)) == []
    bed.parts.place_filler.work()
    assert len(started) == 2


def test_a_place_that_becomes_free_is_filled(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    bed.parts.place_filler.work()
    bed.members.by_number[1].process = None
    bed.members.vacate(1)
    bed.parts.place_filler.work()
    assert started[2:] == [(3, 0)]


def test_a_held_member_lets_the_others_go_first(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    write_held(bed.pack, 1)
    bed.parts.place_filler.work()
    assert started == [(2, 0), (3, 1)]


def test_where_only_one_may_run_only_one_starts(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    bed.members.takes_one = True
    bed.parts.place_filler.work()
    assert started == [(1, 0)]


def test_a_newer_attempt_keeps_this_one_from_starting_anybody(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    begin_attempt(bed.pack, 2)
    with pytest.raises(Fenced):
        bed.parts.place_filler.work()
    assert started == []


def test_who_cannot_be_started_fails_and_the_next_gets_the_place(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(member: Member) -> None:
        if member.number == 1:
            raise PermissionError(13, "Permission denied", "/bin/x")

    started = follow_starts(bed, monkeypatch, fail)
    bed.parts.place_filler.work()
    record = bed.read(1)
    assert record.state is MemberState.FAILED
    assert record.reason.startswith("it could not be started: ")
    assert "Permission denied" in record.reason
    assert started == [(2, 0), (3, 1)]


@pytest.mark.parametrize(("launcher", "starts"), [("auto", True), ("srun", False)])
def test_without_an_srun_members_are_plain_processes_where_that_is_allowed(
    build_bed: Callable[..., SteppedRunner],
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    starts: bool,
) -> None:
    bed = build_bed(members=2, launcher=launcher)

    def fail(member: Member) -> None:
        if member.launcher == "srun":
            raise FileNotFoundError(2, "No such file or directory", "srun")

    started = follow_starts(bed, monkeypatch, fail)
    bed.parts.place_filler.work()
    assert started == ([(1, 0), (2, 1)] if starts else [])
    assert len(bed.events("fallback")) == int(starts)
    assert bed.read(1).state is (MemberState.PENDING if starts else MemberState.FAILED)


def test_who_was_held_at_the_last_moment_keeps_its_turn(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = follow_starts(bed, monkeypatch)
    start = bed.parts.starter.start

    def hold(member: Member, place: PackPlace, share: GpuShare = AS_PLANNED) -> bool:
        if member.number == 1 and not (bed.folder(1) / "held").exists():
            write_held(bed.pack, 1)
            return False
        return start(member, place, share)

    monkeypatch.setattr(bed.parts.starter, "start", hold)
    bed.parts.place_filler.work()
    assert started == [(2, 0), (3, 1)]
    assert list(bed.members.waiting) == [1]
    assert bed.read(1).state is MemberState.PENDING


def test_where_the_gpu_must_not_be_shared_so_nobody_starts(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    first, second, _ = bed.adopt(1, 2, 3)
    second.record = dataclasses.replace(second.record, starts=1)
    write_held(bed.pack, 3)
    bed.parts.gpu_mode._settled.refusal = "mps was asked for, and there is none"
    bed.parts.place_filler.work()
    assert started == []
    assert bed.states() == {
        1: MemberState.FAILED, 2: MemberState.FAILED, 3: MemberState.PENDING
    }  # fmt: skip
    assert bed.read(1).reason == bed.parts.gpu_mode.refusal
    assert [bed.read(number).cause for number in (1, 2)] == [
        EndCause.NOT_STARTED.value, EndCause.MPS_GONE.value
    ]  # fmt: skip
    assert first.is_final


def test_a_pack_closes_once_nobody_waits_any_more(bed: SteppedRunner) -> None:
    bed.adopt(1, 2, 3)
    # They have been taken, and one of them may start.
    assert not bed.parts.place_filler.close()
    assert list_waiting(str(bed.pack)) == []
    bed.members.waiting.clear()
    assert bed.parts.place_filler.close()
    assert list_waiting(str(bed.pack)) is None


def test_a_pack_into_which_somebody_has_come_does_not_close(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    assert not bed.parts.place_filler.close()
    assert list_waiting(str(bed.pack)) == [1, 2, 3]
    assert started == []


def test_a_closed_pack_leaves_its_held_members_behind_but_none_that_was_released(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    for number in (1, 2, 3):
        write_held(bed.pack, number)
    bed.parts.place_filler.work()
    assert started == []
    assert bed.parts.place_filler.close()
    assert all(was_left(bed.pack, number) for number in (1, 2, 3))
    assert not remove_held(bed.pack, 1)


def test_what_an_older_attempt_has_taken_meanwhile_is_not_forgotten(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    bed.parts.place_filler.work()
    bed.members.waiting.clear()
    taken = Path(bed.folder(3))
    del bed.members.by_number[3]
    assert (taken / "taken").exists()
    write_held(bed.pack, 3)
    assert bed.parts.place_filler.close()
    assert (3 in bed.members.by_number, was_left(bed.pack, 3)) == (True, True)
    assert len(started) == 2


def test_who_is_to_be_alone_has_no_neighbour(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    large, _, _ = bed.adopt(1, 2, 3)
    large.record = dataclasses.replace(large.record, starts=1, retries=Retries(alone=True))
    bed.parts.place_filler.work()
    assert started == [(1, 0)]
    large.process = None
    bed.members.vacate(1)
    bed.members.waiting.clear()
    bed.members.waiting.extend([2, 3])
    bed.parts.place_filler.work()
    assert started == [(1, 0), (2, 0), (3, 1)]


def test_nobody_waits_for_ever_where_nothing_runs_and_nothing_may_start(
    bed: SteppedRunner, started: list[tuple[int, int]]
) -> None:
    bed.adopt(1, 2, 3)
    write_held(bed.pack, 3)
    bed.members.places = []
    bed.parts.place_filler.work()
    assert started == []
    with pytest.raises(NodeError, match="member 1 cannot be started: waits"):
        bed.parts.place_filler.close()
    bed.parts.place_filler.refuse_waiting("nothing could be started")
    assert bed.states() == {
        1: MemberState.FAILED, 2: MemberState.FAILED, 3: MemberState.PENDING
    }  # fmt: skip
    assert bed.read(1).reason == "nothing could be started"
    assert was_left(bed.pack, 3)
    assert list_waiting(str(bed.pack)) is None


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EAGAIN])
def test_who_cannot_be_started_for_a_moment_starts_later_and_the_others_meanwhile(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failures = [1]

    def fail(member: Member) -> None:
        if member.number in failures:
            failures.remove(member.number)
            raise OSError(number, os.strerror(number))

    started = follow_starts(bed, monkeypatch, fail)
    for _ in range(3):
        bed.parts.steps.run("starting members", bed.parts.place_filler.work)
    assert started == [(2, 0), (3, 1)]
    bed.members.by_number[2].process = None
    bed.members.vacate(2)
    bed.parts.place_filler.work()
    assert started == [(2, 0), (3, 1), (1, 0)]
    assert bed.read(1).state is MemberState.PENDING


def test_who_cannot_be_started_for_minutes_fails(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_steps, "GIVE_UP_AFTER_S", 0.0)

    def fail(member: Member) -> None:
        if member.number == 1:
            raise OSError(errno.EIO, "Input/output error")

    started = follow_starts(bed, monkeypatch, fail)
    bed.parts.place_filler.work()
    assert bed.read(1).state is MemberState.FAILED
    assert "Input/output error" in bed.read(1).reason
    assert started == [(2, 0), (3, 1)]


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 77"), ValueError("x")])
def test_what_no_one_foresaw_at_a_start_fails_that_member_alone(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(member: Member) -> None:
        if member.number == 1:
            raise error

    started = follow_starts(bed, monkeypatch, fail)
    bed.parts.place_filler.work()
    assert bed.read(1).state is MemberState.FAILED
    assert started == [(2, 0), (3, 1)]


def test_a_held_member_does_not_start_where_that_cannot_be_seen(
    bed: SteppedRunner, started: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.adopt(1, 2, 3)
    write_held(bed.pack, 1)
    look = os.lstat

    def fail(path: str) -> os.stat_result:
        if str(path).endswith("/held"):
            raise OSError(errno.EIO, "Input/output error")
        return look(path)

    with monkeypatch.context() as failing:
        failing.setattr(os, "lstat", fail)
        with pytest.raises(StateError):
            bed.parts.place_filler.work()
        with pytest.raises(StateError):
            bed.parts.place_filler.close()
    assert started == []
    bed.parts.place_filler.work()
    assert started == [(2, 0), (3, 1)]
