"""The GPU sets of one Slurm job have one queue: a member starts where a place is free first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import Goal, Policy
from slurm_colloc.runtime import sister_packs as job_sets_module
from slurm_colloc.runtime.sister_packs import JobSets, SisterPack
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import is_idle
from slurm_colloc.store.member_states import read_emptied, read_state, write_held
from slurm_colloc.store.pack_directory import (
    GpuDivision,
    GpuSetShare,
    list_members,
    read_pack,
    write_division,
)
from slurm_colloc.store.written_ends import RunnerProcess, write_runner

from ..wait_until import wait_until
from .gpu_set_job import GpuSetJob, begin_sets
from .stepped_runner import NOBODY
from .stepped_submission import Submission, run_plainly


@pytest.fixture
def job(tmp_path: Path) -> Iterator[GpuSetJob]:
    found = GpuSetJob(tmp_path)
    yield found
    found.close()


class Begin(Protocol):
    """Lets sets begin; whom each has started, as it goes on."""

    def __call__(self, *numbers: int, places: int = 2) -> list[list[int]]: ...


@pytest.fixture
def begin(job: GpuSetJob, monkeypatch: pytest.MonkeyPatch) -> Begin:
    def begin(*numbers: int, places: int = 2) -> list[list[int]]:
        return begin_sets(job, monkeypatch, *numbers, places=places)

    return begin


def may_close(sets: JobSets) -> bool:
    """Whether a set that has nothing to do may end, as its runner asks it."""
    sets.note_idle()
    return sets.may_close()


def test_a_set_without_members_takes_as_many_as_it_has_places_and_leaves_the_other_its_own(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(6, 0)
    first, second = begin(0, 1)
    for _ in range(4):
        job.turn(1)
        job.turn(0)
    assert len(first) == len(second) == 2
    # Nothing was measured, and nothing is asked of Slurm: it is one job.
    assert job.slurm.done == []
    assert sorted(job.where().values()) == [0] * 4 + [1] * 2
    job.end_member(1, second[0])
    job.turn(1)
    assert len(second) == 3


def test_own_members_go_first_and_what_the_other_starts_itself_stays(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(2, 2)
    first, second = begin(0, 1, places=4)
    # It is ready before the other is, and has places for all.
    for _ in range(3):
        job.turn(0)
    job.turn(1)
    assert (first, second) == ([1, 2], [3, 4])


def test_all_ends_are_refilled_from_whichever_set_has_members_left(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(2, 8, 2)
    started = begin(0, 1, 2)
    ended: list[int] = []
    while len(ended) < 12:
        for number in (0, 1, 2):
            job.turn(number)
        running = [len(job.parts[n].members.running()) for n in (0, 1, 2)]
        left = 12 - len(ended)
        # None has a free place while a member waits.
        assert sum(running) == min(6, left)
        number = max((0, 1, 2), key=lambda n: (bool(running[n]), -len(started[n])))
        one = job.parts[number].members.running()[0].number
        job.end_member(number, one)
        ended.append(one)
    assert sorted(ended) == list(range(1, 13))
    assert sorted(each for one in started for each in one) == list(range(1, 13))


@pytest.mark.parametrize("policy", [Policy(goal=Goal.LATENCY), Policy(pack_size=2, degree=2)])
def test_places_that_were_planned_count_whatever_was_asked_for(
    job: GpuSetJob, begin: Begin, policy: Policy
) -> None:
    job.submit_sets(6, 0, policy=policy)
    _, second = begin(0, 1)
    job.turn(0)
    job.turn(1)
    job.turn(1)
    assert len(second) == 2


def test_no_more_start_than_an_own_member_would(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(6, 0)
    _, second = begin(0, 1)
    job.turn(0)
    job.turn(1)
    job.parts[1].take_over.would_wait = lambda *_: True  # type: ignore[method-assign]
    job.turn(1)
    assert len(second) == 1


def test_who_is_held_or_needs_more_gpus_than_a_set_has_stays(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(5, 0, gpus=(2, 1), wide=(3, 4))
    _, second = begin(0, 1)
    write_held(job.path(0), 5)
    job.turn(0)
    for _ in range(3):
        job.turn(1)
    assert second == []
    assert set(job.where().values()) == {0}


def test_a_set_whose_runner_is_gone_loses_its_waiting_members_to_the_others(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(1, 1)
    _, second = begin(0, 1)
    write_runner(job.path(0), RunnerProcess("here", NOBODY, 1))
    for _ in range(2):
        job.turn(1)
    # It has one already, and its fellow would have been no worse off there.
    assert second == [2, 1]


# -- a GPU that is lost -----------------------------------------------------------------------


def lose_gpu(job: GpuSetJob, number: int) -> None:
    job.parts[number].gpu_mode.refuse("GPU-1 is lost")


def test_members_of_a_set_that_has_lost_its_gpu_start_again_in_the_others(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(3, 0)
    first, second = begin(0, 1)
    job.turn(0)
    assert first == [1, 2]
    lose_gpu(job, 0)
    again = Verdict(MemberState.PENDING, None, "GPU-1 is lost; it runs again")
    job.end_member(0, 1, again)
    job.turn(0)
    job.turn(1)
    job.turn(1)
    assert sorted(second) == [1, 3]
    job.end_member(0, 2, again)
    job.turn(0)
    job.end_member(1, 1)
    job.turn(1)
    assert sorted(second) == [1, 2, 3]
    # What was learned of them goes with them, so that no file of an earlier start is overwritten.
    record = job.parts[1].members.by_number[2].record
    assert (record.reason, record.starts) == ("GPU-1 is lost; it runs again", 1)
    assert job.where() == dict.fromkeys((1, 2, 3), 1)
    job.turn(0)
    assert not job.parts[0].members.by_number
    assert job.parts[0].job_sets.others == [job.path(1)]


def test_who_had_come_to_a_set_that_is_out_goes_on_to_a_third(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(3, 0, 0)
    _, second, third = begin(0, 1, 2)
    job.turn(0)
    job.turn(1)
    assert second == [3]
    lose_gpu(job, 1)
    job.end_member(1, 3, Verdict(MemberState.PENDING, None, "lost; it runs again"))
    job.turn(1)
    job.turn(2)
    assert third == [3]
    assert job.where()[3] == 2


def test_where_no_other_set_is_left_they_fail_and_say_why(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(0)
    inbox.close(str(job.path(1)))
    lose_gpu(job, 0)
    job.turn(0)
    record = read_state(job.path(0), 1, 1)
    assert record is not None
    assert (record.state, record.reason) == (MemberState.FAILED, "GPU-1 is lost")


def test_who_is_held_in_a_set_that_is_out_is_neither_moved_nor_failed(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(1, 0)
    begin(0, 1)
    write_held(job.path(0), 1)
    lose_gpu(job, 0)
    job.turn(0)
    job.turn(1)
    assert job.where() == {1: 0}
    record = read_state(job.path(0), 1, 1)
    assert record is None or record.state is MemberState.PENDING


# -- the end ----------------------------------------------------------------------------------


def test_a_set_without_work_stays_until_all_others_have_none(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(0, 1)
    job.turn(0)
    idle, busy = job.parts[1].job_sets, job.parts[0].job_sets
    assert not may_close(idle)
    assert is_idle(job.path(1))
    # One that has not begun will.
    job.end_member(0, 1)
    assert may_close(busy)
    assert may_close(idle)


def test_a_set_that_works_again_is_not_idle(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(0, 1)
    assert not may_close(job.parts[1].job_sets)
    job.parts[1].job_sets.note_busy()
    assert not is_idle(job.path(1))


def test_a_killed_set_is_not_waited_for(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(0, 1)
    job.turn(0)
    write_runner(job.path(0), RunnerProcess("here", NOBODY, 1))
    assert may_close(job.parts[1].job_sets)


def test_asking_whether_a_set_may_end_does_not_make_it_idle(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(0, 1)
    sets = job.parts[1].job_sets
    assert not sets.may_close()
    assert not is_idle(job.path(1))
    sets.note_idle()
    assert is_idle(job.path(1))


def test_a_set_that_never_begins_is_not_waited_for_for_ever(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(1)
    sets = job.parts[1].job_sets
    assert not may_close(sets)
    begun_at = sets._begun_at
    sets.pack = dataclasses.replace(sets.pack, clock=lambda: begun_at + job_sets_module.BEGIN_S)
    assert may_close(sets)


def test_the_others_have_time_to_take_what_is_left_to_them(job: GpuSetJob, begin: Begin) -> None:
    job.submit_sets(1, 0)
    begin(0, 1)
    now = 1000.0
    sets = job.parts[0].job_sets
    sets.pack = dataclasses.replace(sets.pack, clock=lambda: now)
    lose_gpu(job, 0)
    job.turn(0)
    may_close(job.parts[1].job_sets)
    assert not may_close(sets)
    assert not is_idle(job.path(0))
    now += job_sets_module.LEAVE_S
    assert may_close(sets)


# -- from and to another Slurm job ---------------------------------------------------------------


def test_a_job_is_closed_once_none_of_its_sets_has_a_member_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = Submission(tmp_path, "t")
    taker.submit(1)
    other = GpuSetJob(tmp_path, "s", "9", taker.slurm)
    other.submit_sets(1, 1, first=11)
    run_plainly(monkeypatch, taker.begin(101))
    take_over = taker.parts[101].take_over

    def read(number: int) -> SisterPack:
        record = read_pack(other.path(number))
        assert record is not None
        return SisterPack(other.path(number), record, 0, "9")

    assert take_over._take_from(read(1), [12], 1) == 1
    assert not read_emptied(other.path(1))
    assert taker.slurm.done == []
    assert take_over._take_from(read(0), [11], 1) == 1
    wait_until(lambda: taker.slurm.done == [("cancel", "9")], "its job is cancelled")
    assert read_emptied(other.path(0))
    assert read_emptied(other.path(1))
    other.close()
    taker.close()


def test_a_set_that_others_keep_waiting_takes_members_of_the_next_job_as_many_as_were_planned(
    tmp_path: Path, job: GpuSetJob, begin: Begin
) -> None:
    policy = Policy(degree=2)
    job.submit_sets(1, 0, degree=8, policy=policy, parts=(("u", (101,)),))
    later = GpuSetJob(tmp_path, "u", "8", job.slurm)
    Submission.submit(later, 13, policy=policy)
    first, second = begin(0, 1, places=8)
    job.turn(0)
    for _ in range(3):
        job.look(1)
        job.turn(1)
    assert len(second) == 2
    assert first == [1]
    later.close()


def test_sets_of_two_jobs_that_run_have_about_as_many_members_to_the_end(
    tmp_path: Path, job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(degree=4)
    job.submit_sets(1, 1, degree=4, policy=policy, parts=(("u", (0,)), ("u~1", (0,))))
    later = GpuSetJob(tmp_path, "u", "8", job.slurm)
    later.submit_sets(8, 7, degree=4, policy=policy, first=3)
    first, second = begin_sets(job, monkeypatch, 0, 1, places=4)
    others = begin_sets(later, monkeypatch, 0, 1, places=4)
    for number in (0, 1, 0, 1):
        later.turn(number)
        job.turn(number)
    # Nothing was measured of either, and all places of both are filled.
    assert [len(each) for each in (first, second, *others)] == [4, 4, 4, 4]

    def list_left() -> list[int]:
        here = (*list_members(later.path(0)), *list_members(later.path(1)))
        return [number for number in here if number not in (*others[0], *others[1])]

    (left,) = list_left()
    # Where as few run as are here it starts as soon.
    for number in (*others[0], *others[1]):
        later.end_member(int(number in others[1]), number)
    for number in (0, 1):
        job.end_member(number, (first, second)[number][0])
        job.look(number)
    assert list_left() == [left]
    later.close()


def test_a_set_whose_gpu_cannot_be_used_leaves_its_members_to_the_others(
    job: GpuSetJob, begin: Begin
) -> None:
    job.submit_sets(1, 2)
    why = "GPU-1 is divided by MIG"
    write_division(job.path(0), GpuDivision(shares=(GpuSetShare(), GpuSetShare(problem=why))))
    first, second = begin(0, 1)
    assert job.parts[1].gpu_mode.refusal == why
    job.turn(1)
    job.turn(0)
    job.turn(0)
    assert (sorted(first), second) == ([1, 2], [])
    # Of another start of the job it says nothing.
    write_division(
        job.path(0), GpuDivision(restarts=7, shares=(GpuSetShare(), GpuSetShare(problem=why)))
    )
    assert not job.begin(1).gpu_mode.refusal
