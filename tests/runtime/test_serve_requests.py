"""What is asked of a runner for one member: all of it is done, and a cancel wins."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime import fill_places
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.store.inbox import list_waiting
from slurm_colloc.store.runner_requests import Action, Request, list_requests, write_request

from .stepped_runner import SteppedRunner
from .test_member_intake import fail_with

TERM = [(signal.SIGTERM, 5)]


def ask(bed: SteppedRunner, action: Action, number: int = 1, **details: int | str) -> None:
    """Leave a request, and have the runner look."""
    write_request(bed.pack, Request(action, number, **details))  # type: ignore[arg-type]
    bed.parts.requests.work()


def test_a_waiting_member_is_cancelled_without_a_start(bed: SteppedRunner) -> None:
    _, other = bed.adopt(1, 2)
    ask(bed, Action.CANCEL, reason="by csub cancel")
    record = bed.read(1)
    assert (record.state, record.reason) == (MemberState.CANCELLED, "by csub cancel")
    assert record.exit_code == ExitCode(0, signal.SIGTERM)
    assert not (bed.folder(1) / "env").exists()
    assert list(bed.members.waiting) == [other.number]
    assert list_requests(bed.pack) == []


def test_a_waiting_member_is_neither_requeued_nor_signalled(bed: SteppedRunner) -> None:
    bed.adopt(1)
    for action in (Action.REQUEUE, Action.SIGNAL):
        ask(bed, action, signal=signal.SIGUSR1)
    assert (bed.read(1).state, list(bed.members.waiting)) == (MemberState.PENDING, [1])
    assert list_requests(bed.pack) == []


@pytest.mark.parametrize("asked", [StopReason.REQUEUE, StopReason.FAULT, None])
def test_who_is_being_stopped_to_run_again_is_cancelled_all_the_same(
    bed: SteppedRunner, asked: StopReason | None
) -> None:
    member, _ = bed.run_member(1)
    if asked is not None:
        bed.parts.control.end(member, asked)
    ask(bed, Action.CANCEL)
    bed.end_member(member, signal.SIGTERM)
    assert bed.read(1).state is MemberState.CANCELLED
    assert list(bed.members.waiting) == []


@pytest.mark.parametrize("order", [("requeue", "cancel"), ("cancel", "requeue")])
def test_of_a_requeue_and_a_cancel_the_cancel_wins_whichever_came_first(
    bed: SteppedRunner, order: tuple[str, str]
) -> None:
    member, _ = bed.run_member(1)
    for word in order:
        write_request(bed.pack, Request(Action(word), 1))
    bed.parts.requests.work()
    bed.end_member(member, signal.SIGTERM)
    assert bed.read(1).state is MemberState.CANCELLED
    bed.parts.requests.work()
    assert list_requests(bed.pack) == []


def test_a_cancel_stays_until_its_member_has_ended_so_that_a_later_attempt_finds_it(
    bed: SteppedRunner,
) -> None:
    member, _ = bed.run_member(1)
    for _ in range(3):
        ask(bed, Action.CANCEL)
    assert len(list_requests(bed.pack)) == 3
    assert len(bed.events("terminate")) == 1
    assert len(bed.events("request")) == 3
    bed.end_member(member)
    bed.parts.requests.work()
    assert list_requests(bed.pack) == []


def end_undecided(bed: SteppedRunner, wait_status: int = 3 << 8) -> None:
    """A member ends after a TERM that the runner did not send, and the controller is away."""
    member, _ = bed.run_member(1)
    bed.slurm.fields = None
    bed.end_member(member, wait_status, TERM)
    bed.parts.slurm_decision.follow()
    assert 1 in bed.parts.ends.undecided


@pytest.mark.parametrize(
    ("action", "state"),
    [(Action.CANCEL, MemberState.CANCELLED), (Action.REQUEUE, MemberState.PENDING)],
)
def test_what_is_asked_while_an_end_is_undecided_counts_once_the_pack_goes_on(
    bed: SteppedRunner, action: Action, state: MemberState
) -> None:
    end_undecided(bed)
    ask(bed, action)
    bed.parts.ends.resume()
    assert bed.read(1).state is state
    assert list(bed.members.waiting) == ([1] if state is MemberState.PENDING else [])


def test_who_had_come_to_its_own_end_keeps_it(bed: SteppedRunner) -> None:
    end_undecided(bed, wait_status=0)
    ask(bed, Action.CANCEL)
    bed.parts.ends.resume()
    assert bed.read(1).state is MemberState.COMPLETED


def test_a_cancel_while_an_end_is_undecided_counts_although_the_pack_is_requeued(
    bed: SteppedRunner,
) -> None:
    end_undecided(bed)
    ask(bed, Action.CANCEL)
    bed.slurm.fields = {"JobState": "PENDING", "Restarts": "1"}
    bed.parts.slurm_decision.open("", ask_in_s=0.0)
    bed.parts.slurm_decision._ask_at = 0.0
    bed.parts.slurm_decision.follow()
    assert bed.parts.pack_end.work()
    assert bed.read(1).state is MemberState.CANCELLED


def test_a_signal_waits_for_the_script_that_it_is_for(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1, is_up=False)
    ask(bed, Action.SIGNAL, signal=int(signal.SIGUSR1))
    assert len(list_requests(bed.pack)) == 1
    # A process id that no process can have: that it is not there is no fault.
    bed.write(member, "started", pid=2**30, wrapper_pid=None, step="1", at=5.0)
    bed.parts.starts.collect()
    bed.parts.requests.work()
    assert list_requests(bed.pack) == []


def test_a_member_that_has_just_entered_is_taken_in_for_its_cancel(bed: SteppedRunner) -> None:
    ask(bed, Action.CANCEL, 2)
    assert bed.read(2).state is MemberState.CANCELLED
    assert list_waiting(str(bed.pack)) == [1, 3]


def test_a_cancel_waits_for_a_member_that_cannot_be_read_yet(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(fill_places, "read_spec", fail_with(errno.ESTALE))
        ask(bed, Action.CANCEL)
        assert len(list_requests(bed.pack)) == 1
    bed.parts.intake.adopt(1)
    bed.parts.requests.work()
    assert bed.read(1).state is MemberState.CANCELLED


def test_what_no_member_is_for_is_dropped(bed: SteppedRunner) -> None:
    ask(bed, Action.CANCEL, 77)
    assert list_requests(bed.pack) == []


def test_what_cannot_be_removed_is_done_once(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, _ = bed.run_member(1)
    sent: list[int] = []
    monkeypatch.setattr(bed.parts.control, "signal", lambda _m, number, **_: sent.append(number))

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as failing:
        failing.setattr(os, "unlink", fail)
        for _ in range(2):
            ask(bed, Action.SIGNAL, signal=10)
    assert sent == [10, 10]
    assert len(list_requests(bed.pack)) == 2
    bed.parts.requests.work()
    assert (sent, list_requests(bed.pack)) == ([10, 10], [])
    assert member.asked is None
