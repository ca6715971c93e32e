"""What a sweep makes of members that one pack has taken over from another, and what is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import NotFound
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.report.member_survey import (
    MOVING,
    survey_packs,
)
from slurm_colloc.report.member_views import find_stale, show_once
from slurm_colloc.settings import Settings
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State, build_takers_path, remove_pack, remove_remains
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    HomeRecord,
    StateRecord,
    begin_attempt,
    choose_guest_number,
    write_held,
    write_home,
    write_state,
)
from slurm_colloc.store.pack_directory import list_members
from slurm_colloc.store.runner_requests import Action, Request, write_request
from slurm_colloc.submission.packs.call_batches import Batch
from slurm_colloc.submission.packs.submit_batch import Submitted
from slurm_colloc.submission.upkeep import resubmit_members
from slurm_colloc.submission.upkeep.ended_packs import Ending, list_never_started

from .stepped_submission import Submission


@pytest.fixture
def submission(tmp_path: Path) -> Iterator[Submission]:
    found = Submission(tmp_path)
    yield found
    found.close()


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """What was submitted again: from which pack, and whom."""
    seen: list[tuple[str, list[int]]] = []

    def resubmit(
        _state: State, _slurm: object, _settings: Settings, pack_id: str, numbers: list[int]
    ) -> str:
        seen.append((pack_id, list(numbers)))
        return "9"

    monkeypatch.setattr(resubmit_members, "resubmit", resubmit)
    return seen


def settle(submission: Submission, index: int, last: SlurmJobState) -> list[str]:
    record = submission.state.read_pack(f"s.{index}")
    assert record is not None
    ending = Ending(
        submission.state, submission.slurm, Settings(), record=record, job_id=f"7_{index}",
        last=last,
    )  # fmt: skip
    return ending.settle()


def decide(submission: Submission, source: int, taker: int, *numbers: int) -> None:
    for number in numbers:
        path = str(submission.path(source))
        assert inbox.decide(path, str(submission.path(taker)), number)


def test_whom_a_pack_took_over_and_never_started_is_submitted_again_once(
    submission: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(0, 2)
    begin_attempt(submission.path(101), 1)
    decide(submission, 102, 101, 1)
    settle(submission, 101, SlurmJobState.NODE_FAIL)
    assert again == [("s.101", [1])]
    assert submission.where() == {1: 101, 2: 102}
    assert submission.state.list_open() == ["s.102"]
    assert list_never_started(submission.path(102)) == [2]


def test_what_comes_after_a_pack_has_completed_is_submitted_again_all_the_same(
    submission: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(0, 1)
    begin_attempt(submission.path(101), 1)
    decide(submission, 102, 101, 1)
    submission.state.forget_open("s.101")
    settle(submission, 102, SlurmJobState.FAILED)
    # It went on to the taker, which is looked at again.
    assert again == []
    assert submission.where() == {1: 101}
    assert submission.state.list_open() == ["s.101"]
    settle(submission, 101, SlurmJobState.COMPLETED)
    assert again == [("s.101", [1])]
    assert submission.state.list_open() == []


def test_a_pack_that_is_over_leaves_to_a_living_one_what_that_has_taken(
    submission: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(1, 2)
    decide(submission, 102, 101, 2)
    with hold_lock(submission.path(101) / "lock", 0):
        settle(submission, 102, SlurmJobState.FAILED)
    assert submission.where() == {1: 101, 2: 102, 3: 102}
    # The books stay open until it has gone.
    assert submission.state.list_open() == ["s.101", "s.102"]
    assert (submission.path(102) / "members" / "0002" / "env").exists()
    parts = submission.begin(101)
    parts.take_over.work()
    assert 2 in parts.members.by_number
    settle(submission, 102, SlurmJobState.FAILED)
    assert submission.state.list_open() == ["s.101"]
    assert [number for _, numbers in again for number in numbers if number == 2] == []


def test_whose_taker_was_removed_goes_back(
    submission: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(0, 1)
    begin_attempt(submission.path(102), 1)
    decide(submission, 102, 101, 1)
    shutil.rmtree(submission.path(101))
    settle(submission, 102, SlurmJobState.NODE_FAIL)
    assert again == [("s.102", [1])]


def test_who_was_to_be_cancelled_is_not_submitted_again(
    submission: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(0, 2)
    begin_attempt(submission.path(101), 1)
    decide(submission, 102, 101, 1, 2)
    # Left where the member was, by a csub that was killed before it could look again.
    write_request(submission.path(102), Request(Action.CANCEL, 1))
    settle(submission, 101, SlurmJobState.NODE_FAIL)
    assert again == [("s.101", [2])]
    assert (submission.path(101) / "members" / "0001" / "cancelled").exists()


def see(submission: Submission) -> dict[int, tuple[str, MemberState, str]]:
    state = submission.state
    found = survey_packs(state, state.list_all(), submission.slurm.jobs)
    return {
        member.member.number: (view.record.pack_id, member.state, member.reason)
        for view in found
        for member in view.members
    }


@pytest.mark.parametrize("source", list(SlurmJobState))
def test_a_member_on_its_way_waits_whatever_becomes_of_its_old_pack(
    submission: Submission, source: SlurmJobState
) -> None:
    submission.submit(0, 1)
    decide(submission, 102, 101, 1)
    submission.slurm.show("7_102", source)
    submission.slurm.show("7_101", SlurmJobState.RUNNING)
    assert see(submission) == {1: ("s.102", MemberState.PENDING, MOVING)}
    assert inbox.withdraw_moving(str(submission.path(102)), 1)
    assert see(submission)[1][1] is MemberState.CANCELLED


def test_what_has_come_is_shown_as_its_new_pack_is(submission: Submission) -> None:
    submission.submit(0, 1)
    decide(submission, 102, 101, 1)
    taker = submission.path(101)
    assert inbox.move(str(submission.path(102)), str(taker), 1)
    submission.slurm.show("7_101", SlurmJobState.NODE_FAIL)
    begin_attempt(taker, 1)
    assert see(submission)[1][:2] == ("s.101", MemberState.NODE_FAIL)
    assert inbox.list_taken(str(taker)) == []
    assert inbox.accept(str(taker), 1)
    write_state(taker, 1, StateRecord(MemberState.COMPLETED, 1, starts=1, ended_at=1.0))
    assert see(submission)[1][:2] == ("s.101", MemberState.COMPLETED)


@pytest.mark.parametrize("order", [("s.101", "s.102"), ("s.102", "s.101")])
def test_a_member_that_moves_between_two_looks_is_seen_once(
    submission: Submission, order: tuple[str, str]
) -> None:
    submission.submit(1, 2)
    state, jobs = submission.state, submission.slurm.jobs
    source, taker = submission.path(102), submission.path(101)
    first = survey_packs(state, [order[0]], jobs)
    decide(submission, 102, 101, 2)
    assert inbox.move(str(source), str(taker), 2)
    assert inbox.accept(str(taker), 2)
    views = [*first, *survey_packs(state, [order[1]], jobs)]
    seen = [member.member.number for view in show_once(views) for member in view.members]
    assert sorted(seen) == ([1, 3] if order[0] == "s.101" else [1, 2, 3])
    # Where it is missed both are looked at again.
    assert find_stale(views) == ([0, 1] if order[0] == "s.101" else [])
    assert sorted(see(submission)) == [1, 2, 3]
    assert not (source / "members" / format_number(2)).exists()


# -- members of another submission ----------------------------------------------------------------


@pytest.fixture
def other(submission: Submission, tmp_path: Path) -> Iterator[Submission]:
    """A second submission, whose members have the same numbers."""
    found = Submission(tmp_path, "t", "9", submission.slurm)
    yield found
    found.close()


def decide_guests(taker: Submission, other: Submission, *numbers: int) -> list[int]:
    """Let the first submission's first pack take members of the other's over; their numbers."""
    places = []
    for count, number in enumerate(numbers):
        there = choose_guest_number(1, count)
        assert there is not None
        taker.state.note_taker("t.101", "9", "s.101")
        home = HomeRecord("9", number, "t.101", 1.5, "/home/other", "there")
        write_home(other.path(101), number, home)
        source, target = str(other.path(101)), str(taker.path(101))
        assert inbox.decide(source, target, number, there)
        places.append(there)
    return places


def test_members_of_each_submission_are_submitted_again_by_themselves(
    submission: Submission, other: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(2)
    other.submit(2)
    begin_attempt(submission.path(101), 1)
    places = decide_guests(submission, other, 1, 2)
    notes = settle(submission, 101, SlurmJobState.NODE_FAIL)
    assert again == [("s.101", [1, 2]), ("s.101", places)]
    assert ["(7/1-2;" in notes[0], "(9/1-2;" in notes[1]] == [True, True]
    assert list_members(other.path(101)) == []
    assert submission.state.list_open() == ["t.101"]


def test_one_of_another_submission_is_submitted_again_with_its_own_script_and_number(
    submission: Submission, other: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.submit(2)
    other.submit(2)
    begin_attempt(submission.path(101), 1)
    (place,) = decide_guests(submission, other, 2)
    assert inbox.move(str(other.path(101)), str(submission.path(101)), 2, place)
    script = submission.path(101) / "members" / format_number(place) / "script"
    script.unlink()
    script.write_bytes(b"its own")
    seen: list[tuple[Batch, str]] = []

    def submit_batch(batch: Batch, _submission: str, *, directory: str, **_rest: object) -> object:
        seen.append((batch, directory))
        return Submitted("20", ())

    monkeypatch.setattr(resubmit_members, "submit_batch", submit_batch)
    resubmit_members.resubmit(submission.state, submission.slurm, Settings(), "s.101", [place])
    ((batch, directory),) = seen
    (candidate,) = batch.packs[0].candidates
    assert (candidate.job.number, candidate.script, directory) == (2, b"its own", "/home/other")


def test_one_that_was_to_be_cancelled_at_home_is_not_submitted_again(
    submission: Submission, other: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(1)
    other.submit(1)
    begin_attempt(submission.path(101), 1)
    decide_guests(submission, other, 1)
    write_request(other.path(101), Request(Action.CANCEL, 1, reason="csub cancel"))
    settle(submission, 101, SlurmJobState.NODE_FAIL)
    assert again == [("s.101", [1])]


def test_one_of_another_submission_is_shown_once_under_its_own_name(
    submission: Submission, other: Submission
) -> None:
    submission.submit(1)
    other.submit(2)
    (place,) = decide_guests(submission, other, 1)
    state = submission.state
    before = survey_packs(state, ["s.101"], submission.slurm.jobs)
    assert inbox.move(str(other.path(101)), str(submission.path(101)), 1, place)
    after = survey_packs(state, ["t.101"], submission.slurm.jobs)
    # Each was looked at when the member was in the other one.
    assert [str(m.member) for view in (*before, *after) for m in view.members] == ["7/1", "9/2"]
    views = survey_packs(state, ["t.101", "s.101"], submission.slurm.jobs)
    assert sorted(str(m.member) for v in views for m in v.members) == ["7/1", "9/1", "9/2"]
    # Seen in both, in its old pack first.
    both = [*survey_packs(state, ["s.101"], submission.slurm.jobs), *views]
    assert sorted(str(m.member) for v in show_once(both) for m in v.members) == [
        "7/1",
        "9/1",
        "9/2",
    ]


def test_who_cancels_a_slurm_job_does_not_mean_members_of_another_submission(
    submission: Submission, other: Submission, again: list[tuple[str, list[int]]]
) -> None:
    submission.submit(2)
    other.submit(3)
    begin_attempt(submission.path(101), 1)
    places = decide_guests(submission, other, 1, 2, 3)
    write_held(other.path(101), 3)
    settle(submission, 101, SlurmJobState.CANCELLED)
    assert again == [("s.101", places[:2])]
    assert submission.state.list_open() == ["t.101"]


def test_what_tells_where_members_are_goes_with_the_packs(
    submission: Submission, other: Submission
) -> None:
    submission.submit(1)
    other.submit(1)
    decide_guests(submission, other, 1)
    state = submission.state
    takers = build_takers_path(state.root, "9", state.cluster)
    for pack_id, is_there in (("t.101", True), ("s.101", False)):
        assert state.list_takers("9") == ["s.101"]
        remove_pack(state, pack_id)
        remove_remains(state)
        assert takers.exists() is is_there
    with pytest.raises(NotFound):
        state.find_packs("9")
