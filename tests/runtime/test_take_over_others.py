"""Members of another submission of the kind start where there is room, and stay who they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from slurm_colloc.cli.why_and_explain import Inquiry
from slurm_colloc.model.job import ArrayTask
from slurm_colloc.model.job_values import MailRequest
from slurm_colloc.model.member import ExitCode, MemberId, MemberState, SlurmJobState, is_guest
from slurm_colloc.model.plan import Goal, Policy, SharingMode
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.why_line import explain_why
from slurm_colloc.runtime.attempt import leave_out_absent
from slurm_colloc.runtime.member_dependencies import find_member_place
from slurm_colloc.runtime.member_mails import Mail
from slurm_colloc.runtime.sister_packs import explain_difference
from slurm_colloc.session import cancel_and_requeue
from slurm_colloc.session.cancel_and_requeue import Problems
from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import find_guest, group_by_home, read_emptied, read_home
from slurm_colloc.store.pack_directory import list_members
from slurm_colloc.store.runner_requests import (
    Action,
    DegreeRecord,
    Request,
    list_requests,
    write_degree,
    write_request,
)

from .stepped_submission import GROUP, Submission, run_plainly

if TYPE_CHECKING:
    from slurm_colloc.session.session import Session

OPEN = Policy(join="auto")


class Two:
    """An array that runs and has room, and one that was submitted later."""

    def __init__(self, folder: Path) -> None:
        self.first = Submission(folder)
        self.second = Submission(folder, "t", "9", self.first.slurm)
        self.first.submit(2, policy=OPEN)
        self.taker = self.first.path(101)
        self.home = self.second.path(101)

    def submit(self, *counts: int, policy: Policy = OPEN, **record: Any) -> None:
        values = {"submit_directory": "/home/other", **record}
        self.second.submit(*counts, policy=policy, **values)

    def begin(self, monkeypatch: pytest.MonkeyPatch, room: int = 6) -> list[int]:
        parts = self.first.begin(101)
        started = run_plainly(monkeypatch, parts)
        self.first.room[101] = room
        parts.place_filler.work()
        return started

    def look(self) -> None:
        self.first.look(101)
        self.first.parts[101].place_filler.work()

    def list_guests(self) -> list[MemberId]:
        homes = [read_home(self.taker, number) for number in list_members(self.taker)]
        return [MemberId(home.job, home.number) for home in homes if home is not None]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    found = Two(tmp_path)
    yield found
    found.first.close()
    found.second.close()


def test_members_of_a_later_array_start_in_the_pack_that_has_room_and_stay_who_they_are(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(3)
    started = two.begin(monkeypatch)
    two.look()
    assert started[:2] == [1, 2]
    assert len(started) == 5
    assert all(is_guest(number) for number in started[2:])
    assert two.list_guests() == [MemberId("9", number) for number in (1, 2, 3)]
    members = two.first.parts[101].members.by_number
    assert [str(members[n].name("7")) for n in started] == ["7/1", "7/2", "9/1", "9/2", "9/3"]
    home = members[started[2]].home
    assert home is not None
    assert (home.submit_directory, home.pack_id) == ("/home/other", "t.101")
    # What it leaves is closed and cancelled, and its members are found by their own names.
    assert read_emptied(two.home) == "s.101"
    two.first.parts[101].take_over.jobs.work()
    state = two.second.state
    assert state.find_packs("9") == ["t.101", "s.101"]
    assert state.list_sources("s.101") == ["t.101"]
    assert find_member_place(state, MemberId("9", 2)) == (two.taker, started[3])
    views = survey_packs(state, state.list_all(), None)
    shown = {str(m.member) for view in views for m in view.members}
    assert shown == {"7/1", "7/2", "9/1", "9/2", "9/3"}
    assert group_by_home(two.taker, started) == [("", [1, 2]), ("9", started[2:])]


def test_sisters_go_first(two: Two, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    third = Submission(tmp_path, "u", "11", two.first.slurm)
    third.submit(1, 2, policy=OPEN)
    two.submit(2)
    parts = third.begin(101)
    run_plainly(monkeypatch, parts)
    third.room[101] = 2
    parts.place_filler.work()
    third.look(101)
    assert list_members(third.path(101)) == [1, 2, 3]
    assert list_members(two.home) == [1, 2]
    third.close()


@pytest.mark.parametrize(
    ("policy", "record", "reason"),
    [
        (Policy(), {}, "its --join is never"),
        (Policy(join="pending"), {}, "its --join is pending"),
        (
            OPEN,
            {"group": (("account", "b"), ("partition", "p"))},
            "it has --account=b, not a",
        ),
        (
            OPEN,
            {"group": (*GROUP, ("reservation", "r"))},
            "it has --reservation=r",
        ),
        (OPEN, {"gpu_type": "h200"}, "its GPU type is h200, not any"),
        (dataclasses.replace(OPEN, share="mps"), {}, "its --share is mps, not auto"),
        (dataclasses.replace(OPEN, goal=Goal.LATENCY), {}, "its --goal is latency, not throughput"),
        (
            dataclasses.replace(OPEN, degree=2, degree_is_asked=True),
            {},
            "its degree is 2, not 4",
        ),
        (
            dataclasses.replace(OPEN, running_limit=2),
            {},
            "it runs 2 of its jobs at a time (--array=...%)",
        ),
        (OPEN, {"request": None, "closed": "it runs alone"}, "it runs alone"),
        (OPEN, {"request": None, "local": True}, "it runs alone"),
        (
            OPEN,
            {"mode": SharingMode.MIG},
            "MIG instances are made for the members of one submission",
        ),
        (OPEN, {"cluster": "there"}, "its cluster is there, not here"),
        (dataclasses.replace(OPEN, pack_size=9), {}, "its limits on sharing differ"),
    ],
)
def test_what_must_not_share_stays_and_the_reason_is_written_down(
    two: Two,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    record: dict[str, object],
    reason: str,
) -> None:
    two.submit(2, policy=policy, **record)
    two.begin(monkeypatch)
    two.look()
    assert two.list_guests() == []
    own, other = two.first.state.read_pack("s.101"), two.second.state.read_pack("t.101")
    assert own is not None
    assert other is not None
    assert explain_difference(own, other) == reason


def test_another_script_comes_and_brings_its_own_bound(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(2, policy=dataclasses.replace(OPEN, slowdown_bound=3.0))
    for number in (1, 2):
        (two.home / "members" / format_number(number) / "script").write_text("another\n")
    started = two.begin(monkeypatch)
    two.look()
    assert two.list_guests() == [MemberId("9", 1), MemberId("9", 2)]
    members = two.first.parts[101].members.by_number
    assert [members[number].spec.plan.max_slowdown for number in started[2:]] == [3.0, 3.0]


def test_a_job_that_was_to_run_alone_comes_with_a_plan_for_company(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(1, request=None, closed="")
    started = two.begin(monkeypatch)
    two.look()
    assert two.list_guests() == [MemberId("9", 1)]
    guest = two.first.parts[101].members.by_number[started[2]]
    time_s = guest.spec.job.time_limit_s
    assert guest.spec.plan.wall_limit_s == (None if time_s is None else round(1.5 * time_s))
    assert guest.spec.plan.max_slowdown == 1.5
    assert read_emptied(two.home) == "s.101"


def test_what_runs_does_not_take_if_it_was_to_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Submission(tmp_path)
    second = Submission(tmp_path, "t", "9", first.slurm)
    first.submit(1, policy=Policy(join="never"))
    second.submit(1, policy=OPEN)
    parts = first.begin(101)
    run_plainly(monkeypatch, parts)
    first.room[101] = 4
    parts.place_filler.work()
    first.look(101)
    assert list_members(first.path(101)) == [1]
    first.close()


def test_none_leaves_while_a_job_waits_for_the_slurm_job_that_it_came_with(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(2)
    two.first.slurm.dependencies = ["afterany:9_*(unfulfilled)"]
    two.begin(monkeypatch)
    two.look()
    assert two.list_guests() == []
    two.first.slurm.dependencies = []
    two.first.parts[101].take_over.jobs._asked_at = float("-inf")
    two.look()
    assert len(two.list_guests()) == 2


def test_who_waits_for_a_member_of_its_own_does_not_lose_it(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.second.submit(
        2,
        policy=OPEN,
        change=lambda job: dataclasses.replace(job, depends=(("afterok", "3/1"),)),
    )
    two.begin(monkeypatch)
    two.look()
    assert two.list_guests() == []


def test_what_is_asked_for_a_member_reaches_the_pack_that_has_it(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(2, 1)
    started = two.begin(monkeypatch)
    two.second.begin(102)
    two.look()
    assert two.list_guests() == [MemberId("9", 1), MemberId("9", 2)]
    # Its runner, if one begins after all, hands on what it finds.
    home = two.second.begin(101)
    write_request(two.home, Request(Action.CANCEL, 2, reason="csub cancel"))
    home.requests.work()
    assert list_requests(two.home) == []
    (request,) = list_requests(two.taker)
    assert (request.action, request.number) == (Action.CANCEL, started[3])
    assert find_guest(two.taker, MemberId("9", 2)) == started[3]


def test_a_later_attempt_finishes_what_was_decided_and_gives_numbers_of_its_own(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(3)
    two.begin(monkeypatch, room=1)
    taker = two.first.parts[101].take_over
    # Killed before any directory followed.
    monkeypatch.setattr(inbox, "move", lambda *_arguments: False)
    two.first.look(101)
    assert taker.is_busy
    monkeypatch.undo()
    parts = two.first.begin(101, attempt=2)
    run_plainly(monkeypatch, parts)
    two.first.room[101] = 6
    two.look()
    two.look()
    assert sorted(two.list_guests()) == [MemberId("9", number) for number in (1, 2, 3)]
    numbers = [number for number in list_members(two.taker) if is_guest(number)]
    assert {(number // 10_000) % 100 for number in numbers} == {1, 2}


def test_a_pack_of_another_submission_that_knows_that_it_is_full_gives(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(3)
    full = two.second.begin(101, places=2)
    run_plainly(monkeypatch, full)
    full.place_filler.work()
    two.second.settle(101, degree=2, room=0)
    two.begin(monkeypatch)
    two.look()
    assert two.list_guests() == [MemberId("9", 3)]
    two.second.slurm.show("9_101", SlurmJobState.COMPLETED)


def test_one_mail_tells_of_the_whole_array_wherever_its_tasks_run(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = MailRequest(("ALL", "END", "FAIL"))
    two.submit(
        2,
        1,
        change=lambda job: dataclasses.replace(
            job, mail=request, array_task=ArrayTask(job.number, 3, 1, 3, 1)
        ),
    )
    two.begin(monkeypatch)
    two.second.begin(102)
    two.look()
    parts = two.first.parts[101]
    sent: list[Mail] = []
    monkeypatch.setattr(parts.mails._outbox, "put", sent.append)
    guests = [parts.members.by_number[n] for n in parts.members.by_number if is_guest(n)]
    assert len(guests) == 2
    (two.second.path(102) / "members" / "0003" / "cancelled").touch()
    for count, member in enumerate(guests):
        assert len(sent) == 0, count
        parts.states.write(member, MemberState.RUNNING, starts=1, started_at=1.0)
        parts.states.write_end(member, MemberState.COMPLETED, ExitCode(), "")
    (mail,) = sent
    assert "Array Summary Job_id=9_*" in mail.subject
    assert mail.environment["SLURM_ARRAY_JOB_ID"] == "9"
    assert mail.environment["SLURM_COLLOC_MEMBER"] == "9/2"


def tell_why(two: Two) -> list[str]:
    """What csub why says of each member of the second submission."""
    slurm = SimpleNamespace(read_elements=lambda _job_id: {})
    state = two.second.state
    session = cast("Session", SimpleNamespace(state=state, slurm=slurm, unreachable=None))
    (view,) = survey_packs(two.second.state, ["t.101"], two.first.slurm.jobs)
    inquiry = Inquiry(session)
    return [
        str(explain_why(view, member, inquiry.find_facts(view, member))) for member in view.members
    ]


@pytest.mark.parametrize(
    ("policy", "group", "said"),
    [
        (OPEN, GROUP, ""),
        (
            OPEN,
            (("account", "b"), ("partition", "p")),
            "; it does not start in the pack of 7, which has room: it has --account=b",
        ),
        (Policy(), (("account", "b"), ("partition", "p")), ""),
    ],
)
def test_csub_why_says_what_keeps_it_from_a_pack_that_has_room(
    two: Two,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    group: tuple[tuple[str, str], ...],
    said: str,
) -> None:
    two.submit(1, policy=policy, group=group)
    two.begin(monkeypatch)
    (told,) = tell_why(two)
    assert "does not start in the pack" not in told
    write_degree(two.taker, DegreeRecord(1, room=3))
    (told,) = tell_why(two)
    assert told.startswith("9/1 PENDING: ")
    assert said in told
    assert ("does not start in the pack" in told) == bool(said)


def test_csub_why_compares_no_pack_with_a_job_that_runs_alone(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(1, policy=OPEN, group=(("account", "b"), ("partition", "p")), request=None)
    two.begin(monkeypatch)
    (told,) = tell_why(two)
    assert "it runs alone" in told
    assert "does not start in the pack" not in told


def test_what_is_cancelled_whole_leaves_members_of_another_submission_that_have_just_come(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(1)
    two.begin(monkeypatch)
    (view,) = survey_packs(two.first.state, ["s.101"], two.first.slurm.jobs)
    two.look()
    assert two.list_guests() == [MemberId("9", 1)]
    session = cast("Session", SimpleNamespace(state=two.first.state, slurm=two.first.slurm))
    monkeypatch.setattr(cancel_and_requeue, "wake_runner", lambda *_arguments: None)
    cancel_and_requeue._cancel_whole(session, [view], Problems(), only_these=False)
    assert ("cancel", "7_101") not in two.first.slurm.done
    assert [request.number for request in list_requests(two.taker)] == [1, 2]


def test_places_of_members_that_have_left_stay_for_others(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.submit(3, closed="", degree=3)
    record = two.second.state.read_pack("t.101")
    assert record is not None
    two.begin(monkeypatch, room=1)
    two.first.look(101)
    left = list_members(two.home)
    assert 0 < len(left) < 3
    assert leave_out_absent(two.home, record).degree == 3
