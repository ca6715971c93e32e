"""Members that wait in another pack of the submission start where there is room for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.model.measured_curve import DegreeState
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.plan import Goal, Policy
from slurm_colloc.runtime.attempt import close_pack, end_emptied, leave_out_absent
from slurm_colloc.runtime.members import PackPlace
from slurm_colloc.runtime.sister_packs import needs_its_end
from slurm_colloc.runtime.stop_member import Fenced
from slurm_colloc.store import inbox
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    begin_attempt,
    being_cancelled,
    read_emptied,
    read_state,
    write_held,
)
from slurm_colloc.store.pack_directory import (
    read_pack,
    write_ended,
)
from slurm_colloc.store.runner_requests import (
    Action,
    DegreeRecord,
    Dependent,
    Request,
    list_requests,
    write_degree,
    write_dependent,
    write_request,
)

from ..wait_until import wait_until
from .stepped_submission import Submission, run_plainly


@pytest.fixture
def submission(tmp_path: Path) -> Iterator[Submission]:
    found = Submission(tmp_path)
    yield found
    found.close()


def test_who_waits_in_a_pack_that_has_not_begun_starts_where_room_was_measured(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.submit(2, 2)
    parts = submission.begin(101)
    started = run_plainly(monkeypatch, parts)
    submission.room[101] = 6
    parts.place_filler.work()
    submission.look(101)
    parts.place_filler.work()
    assert started == [1, 2, 3, 4]
    assert submission.where() == dict.fromkeys((1, 2, 3, 4), 101)
    assert inbox.list_taken(str(submission.path(101))) == [1, 2, 3, 4]


def test_without_measured_room_nothing_is_taken_over(submission: Submission) -> None:
    submission.submit(0, 2)
    submission.begin(101)
    submission.look(101)
    assert submission.where() == {1: 102, 2: 102}


def test_own_members_go_first(submission: Submission) -> None:
    submission.submit(3, 1)
    submission.begin(101)
    submission.room[101] = 8
    submission.parts[101].intake.work()
    submission.look(101)
    assert submission.where()[4] == 102


def test_no_more_come_than_there_are_free_places(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.submit(1, 5)
    parts = submission.begin(101, places=3)
    run_plainly(monkeypatch, parts)
    submission.room[101] = 8
    parts.place_filler.work()
    submission.look(101)
    assert sorted(submission.where().values()) == [101] * 3 + [102] * 3


def test_two_packs_that_have_room_share_the_members_of_a_third(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.submit(0, 0, 5)
    for index in (101, 102):
        run_plainly(monkeypatch, submission.begin(index))
        submission.room[index] = 8
        submission.settle(index, degree=1, room=8)

    def look(index: int) -> None:
        submission.look(index)
        submission.parts[index].place_filler.work()

    look(101)
    assert sorted(submission.where().values()) == [101] * 3 + [103] * 2
    look(101)
    assert sorted(submission.where().values()) == [101] * 3 + [103] * 2
    look(102)
    look(102)
    # Of the two that were left half would be the first one's, which has had it.
    assert sorted(submission.where().values()) == [101] * 3 + [102, 103]
    submission.settle(101, degree=1, room=0)
    look(102)
    assert sorted(submission.where().values()) == [101] * 3 + [102] * 2


@pytest.mark.parametrize(
    ("degree", "state", "comes"),
    [
        (2, DegreeState.SETTLED, True),
        (3, DegreeState.SETTLED, False),
        (2, DegreeState.MEASURING, False),
        (2, DegreeState.OFF, False),
    ],
)
def test_a_pack_that_runs_gives_once_it_knows_that_it_is_full(
    submission: Submission,
    monkeypatch: pytest.MonkeyPatch,
    degree: int,
    state: DegreeState,
    comes: bool,
) -> None:
    submission.submit(4, 0)
    full = submission.begin(101, places=2)
    run_plainly(monkeypatch, full)
    full.place_filler.work()
    assert list(full.members.waiting) == [3, 4]
    write_degree(submission.path(101), DegreeRecord(1, state, degree=degree))
    submission.begin(102)
    submission.room[102] = 8
    submission.look(102)
    assert submission.where() == {
        1: 101,
        2: 101,
        3: 102 if comes else 101,
        4: 102 if comes else 101,
    }
    full.members.vacate(1)
    full.members.by_number[1].process = None
    started = run_plainly(monkeypatch, full)
    full.place_filler.work()
    assert started == ([] if comes else [3])
    assert list(full.members.waiting) == ([] if comes else [4])
    assert read_state(submission.path(102), 3, 1) is None or comes


def test_who_has_begun_stays(submission: Submission) -> None:
    submission.submit(2, 0)
    first = submission.begin(101)
    first.intake.work()
    assert inbox.begin(str(submission.path(101)), 1)
    submission.settle(101, degree=1)
    submission.begin(102)
    submission.room[102] = 8
    submission.look(102)
    assert submission.where() == {1: 101, 2: 102}


def test_of_a_pack_with_more_attempts_only_the_inbox_is_taken_from(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.submit(3, 0)
    full = submission.begin(101, places=1, attempt=2)
    run_plainly(monkeypatch, full)
    full.place_filler.work()
    write_degree(submission.path(101), DegreeRecord(2, DegreeState.SETTLED, degree=1))
    submission.begin(102)
    submission.room[102] = 8
    submission.look(102)
    assert set(submission.where().values()) == {101}
    submission.begin(102, attempt=2)
    submission.look(102)
    assert submission.where() == {1: 101, 2: 102, 3: 102}


def hold(path: Path) -> None:
    write_held(path, 2)


def wait_for_it(path: Path) -> None:
    write_dependent(path, Dependent("9", (("afterok", 2),)))


def ask_to_cancel(path: Path) -> None:
    write_request(path, Request(Action.CANCEL, 2))


def end(path: Path) -> None:
    write_ended(path, SlurmJobState.FAILED)


def close_books(path: Path) -> None:
    (path.parent.parent / "open" / path.name).unlink()


@pytest.mark.parametrize("obstacle", [hold, wait_for_it, ask_to_cancel, end, close_books])
def test_what_is_held_awaited_cancelled_or_over_is_not_taken_over(
    submission: Submission, obstacle: Callable[[Path], None]
) -> None:
    submission.submit(0, 2)
    submission.begin(101)
    submission.room[101] = 8
    obstacle(submission.path(102))
    submission.look(101)
    assert submission.where()[2] == 102


def test_who_is_being_cancelled_with_the_whole_pack_is_not_taken_over(
    submission: Submission,
) -> None:
    submission.submit(0, 1)
    submission.begin(101)
    submission.room[101] = 8
    with being_cancelled(submission.path(102)):
        submission.look(101)
    submission.look(101)
    assert submission.where() == {1: 102}


def test_while_another_process_settles_the_pack_nothing_is_taken_over(
    submission: Submission,
) -> None:
    submission.submit(0, 1)
    submission.begin(101)
    submission.room[101] = 8
    for index in (101, 102):
        with hold_lock(submission.path(index) / "lock", 0):
            submission.look(101)
        assert submission.where() == {1: 102}
    submission.look(101)
    assert submission.where() == {1: 101}


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"time_limit_s": 3600}, False),
        ({"time_limit_s": None}, False),
        ({"depends": (("afterok", "9/1"),)}, False),
        ({"time_limit_s": 500}, True),
    ],
)
def test_only_who_could_start_now_and_has_time_enough_comes(
    submission: Submission, change: dict[str, object], fits: bool
) -> None:
    submission.submit(0, 1, change=lambda job: dataclasses.replace(job, **change))  # type: ignore[arg-type]
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    assert submission.where() == {1: 101 if fits else 102}


def test_only_as_many_come_as_host_memory_is_left_for(submission: Submission) -> None:
    # Each member's plan says 100 MB.
    submission.submit(0, 4, host_memory_mb=250)
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    assert sorted(submission.where().values()) == [101, 101, 102, 102]


def test_who_needs_a_larger_place_stays(submission: Submission) -> None:
    submission.submit(0, 1)
    submission.begin(101)
    submission.room[101] = 8
    submission.parts[101].members.places = [PackPlace(0, 1, ())]
    submission.look(101)
    assert submission.where() == {1: 102}


@pytest.mark.parametrize("policy", [Policy(goal=Goal.LATENCY), Policy(pack_size=2, degree=2), None])
def test_who_asked_for_packs_of_his_own_gets_them(submission: Submission, policy: Policy) -> None:
    submission.submit(0, 1, policy=policy)
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    assert submission.where() == {1: 102}


@pytest.mark.parametrize(
    ("state", "reason", "comes"),
    [
        (SlurmJobState.PENDING, "Priority", True),
        (SlurmJobState.PENDING, "JobHeldUser", False),
        (SlurmJobState.PENDING, "Dependency", False),
        (SlurmJobState.PENDING, "BeginTime", False),
        (SlurmJobState.CANCELLED, "", False),
        (SlurmJobState.RUNNING, "", False),
    ],
)
def test_from_a_pack_that_has_not_begun_only_if_its_job_waits_for_its_turn(
    submission: Submission, state: SlurmJobState, reason: str, comes: bool
) -> None:
    submission.submit(0, 1)
    submission.slurm.show("7_102", state, reason)
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    assert submission.where() == {1: 101 if comes else 102}


def test_where_slurm_does_not_answer_nothing_is_taken_over(submission: Submission) -> None:
    submission.submit(0, 1)
    submission.slurm.is_silent = True
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    assert submission.where() == {1: 102}


def test_a_pack_that_was_emptied_is_cancelled_and_would_end_at_once(
    submission: Submission,
) -> None:
    submission.submit(0, 2)
    assert inbox.withdraw(str(submission.path(102)), 2)
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    empty = submission.path(102)
    assert read_emptied(empty) == "s.101"
    assert inbox.list_waiting(str(empty)) is None
    wait_until(lambda: bool(submission.slurm.done), "Slurm was told")
    assert submission.slurm.done == [("cancel", "7_102")]
    assert end_emptied(empty, submission.state) == 0
    assert submission.state.list_open() == ["s.101"]


def test_a_pack_whose_good_end_another_job_needs_is_left_to_complete(
    submission: Submission,
) -> None:
    submission.submit(0, 1)
    submission.slurm.dependencies = ["afterok:7_*(unfulfilled)"]
    submission.begin(101)
    submission.room[101] = 8
    submission.look(101)
    assert read_emptied(submission.path(102)) == "s.101"
    assert submission.slurm.done == []


@pytest.mark.parametrize(
    ("dependency", "needs"),
    [
        ("afterok:7_*(unfulfilled)", True),
        ("afterok:7(unfulfilled)", True),
        ("aftercorr:7_*(unfulfilled)", True),
        ("afterany:7_*(unfulfilled)", False),
        ("afterany:8(unfulfilled),afternotok:7_102(unfulfilled)", True),
        ("afterok:8:7_102+30(unfulfilled)", True),
        ("afterok:7_103(unfulfilled)", False),
        ("afterok:77_*(unfulfilled)?afterok:17(unfulfilled)", False),
        ("singleton(unfulfilled)", False),
    ],
)
def test_which_dependencies_tell_how_a_job_must_end(dependency: str, needs: bool) -> None:
    assert needs_its_end(dependency, "7_102") == needs


def test_a_request_follows_its_member(submission: Submission) -> None:
    submission.submit(0, 1)
    first, second = submission.path(101), submission.path(102)
    parts = submission.begin(101)
    submission.begin(102)
    parts.take_over.work(at_once=True)
    assert inbox.decide(str(second), str(first), 1)
    write_request(second, Request(Action.CANCEL, 1, reason="csub cancel"))
    submission.parts[102].requests.work()
    assert len(list_requests(second)) == 1
    again = submission.begin(101, attempt=2)
    again.take_over.work(at_once=True)
    assert (list_requests(second), len(list_requests(first))) == ([], 1)
    again.requests.work()
    assert again.members.by_number[1].record.state is MemberState.CANCELLED
    assert list_requests(first) == []
    # What comes later is sent after it.
    write_request(second, Request(Action.CANCEL, 1, reason="csub cancel"))
    submission.parts[102].requests.work()
    assert (list_requests(second), len(list_requests(first))) == ([], 1)


def test_a_runner_cancels_no_member_that_was_taken_over(submission: Submission) -> None:
    submission.submit(1, 0)
    source, taker = submission.path(101), submission.path(102)
    parts = submission.begin(101)
    parts.intake.work()
    assert inbox.decide(str(source), str(taker), 1)
    write_request(source, Request(Action.CANCEL, 1))
    parts.requests.work()
    assert parts.members.by_number == {}
    assert len(list_requests(source)) == 1
    assert inbox.find_taker(str(source), 1) == "s.102"


def test_a_later_attempt_finishes_what_an_earlier_one_decided(submission: Submission) -> None:
    submission.submit(0, 3)
    taker, source = submission.path(101), submission.path(102)
    submission.begin(101)
    for number in (1, 2, 3):
        assert inbox.decide(str(source), str(taker), number)
    assert inbox.move(str(source), str(taker), 2)
    assert inbox.withdraw_moving(str(source), 3)
    parts = submission.begin(101, attempt=2)
    parts.take_over.work()
    assert sorted(parts.members.by_number) == [1, 2]
    assert submission.where() == {1: 101, 2: 101, 3: 102}
    assert not parts.take_over.is_busy


def test_an_attempt_that_a_newer_one_has_fenced_off_takes_nothing_over(
    submission: Submission,
) -> None:
    submission.submit(0, 1)
    parts = submission.begin(101)
    submission.room[101] = 8
    parts.take_over.work(at_once=True)
    wait_until(lambda: not parts.take_over.is_busy, "Slurm has answered")
    begin_attempt(submission.path(101), 2)
    with pytest.raises(Fenced):
        parts.take_over.work(at_once=True)
    assert submission.where() == {1: 102}


def test_a_state_that_is_written_late_is_not_missed(submission: Submission) -> None:
    submission.submit(1, 0)
    source, taker = submission.path(101), submission.path(102)
    parts = submission.begin(101)
    parts.intake.work()
    member = parts.members.by_number[1]
    assert inbox.decide(str(source), str(taker), 1)
    assert inbox.move(str(source), str(taker), 1)
    parts.states.write(member, MemberState.PENDING, reason="late")
    assert not parts.steps.has_trouble
    parts.take_over.work()
    assert parts.members.by_number == {}


def test_a_pack_that_others_take_from_keeps_its_books_open_until_they_have(
    submission: Submission,
) -> None:
    submission.submit(1, 0)
    source, taker = submission.path(101), submission.path(102)
    assert inbox.decide(str(source), str(taker), 1)
    begin_attempt(source, 1)
    close_pack(source, submission.state, 1)
    assert "s.101" in submission.state.list_open()
    assert (source / "members" / format_number(1) / "env").exists()
    assert inbox.move(str(source), str(taker), 1)
    close_pack(source, submission.state, 0)
    assert "s.101" in submission.state.list_open()
    close_pack(source, submission.state, 1)
    assert submission.state.list_open() == ["s.102"]


def test_a_pack_with_more_places_than_members_keeps_them(submission: Submission) -> None:
    submission.submit(2, 1)
    record = read_pack(submission.path(101))
    assert record is not None
    assert leave_out_absent(submission.path(101), record).degree == 8
    joined = dataclasses.replace(record, closed="")
    assert leave_out_absent(submission.path(101), joined).degree == 2
