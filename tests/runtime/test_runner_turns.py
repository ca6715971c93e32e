"""Turns of a runner in which a step fails: the others go on, and nothing waits for ever."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.guarded_steps import GIVE_UP_AFTER_S, GivenUp
from slurm_colloc.runtime.members import PackPlace
from slurm_colloc.runtime.runner import Runner
from slurm_colloc.runtime.stop_member import Fenced
from slurm_colloc.settings import Settings
from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import list_waiting
from slurm_colloc.store.member_states import begin_attempt

from .stepped_runner import PlainProcess, SteppedRunner


class Turns:
    """A runner of three members, two at a time, whose waits take no time.

    Attributes:
        now: The time that the steps see, in seconds; each wait moves it on by ten.
        waits: How often it has waited.
    """

    def __init__(self, bed: SteppedRunner) -> None:
        self.bed = bed
        self.runner = Runner(
            bed.pack, bed.record, bed.allocation,
            Settings(monitor=False, instrument=False, pause=False, launcher="process"),
            bed.slurm, slurm_log=bed._log,
        )  # fmt: skip
        self.parts = self.runner._parts
        self.parts.gpu_mode.open()
        self.parts.monitor.open()
        self.runner.members.places = [PackPlace(0, 2, ()), PackPlace(1, 2, ())]
        self.now = 0.0
        self.waits = 0
        self.parts.steps._clock = lambda: self.now

    def wait(self, *_: object) -> None:
        self.now += 10.0
        self.waits += 1
        assert self.waits < 1000, "it never ends"

    @property
    def states(self) -> list[MemberState]:
        return [self.bed.read(number).state for number in (1, 2, 3)]


@pytest.fixture
def turns(bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    turns = Turns(bed)
    monkeypatch.setattr(turns.runner._waker, "wait", turns.wait)
    yield turns
    # What a test has had running is no process.
    assert all(isinstance(m.process, PlainProcess) for m in turns.runner.members.running())


def start_plainly(turns: Turns, monkeypatch: pytest.MonkeyPatch, *, ends: bool = True) -> list[int]:
    """Have members run as plain processes, which end well at once."""
    started: list[int] = []

    def start(member: Any, *_: object) -> bool:
        started.append(member.number)
        member.process, member.launcher = PlainProcess(), "process"
        member.prefix = str(turns.bed.folder(member.number) / "run.2.1")
        turns.bed.write(member, "started", pid=2**30, wrapper_pid=None, step=None, at=5.0)
        if ends:
            turns.bed.write(member, "exit", wait_status=0, foreign_signals=[], at=9.0)
            member.process.status = 0
        return True

    monkeypatch.setattr(turns.parts.starter, "start", start)
    return started


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


PARTS = (
    ("fence", "check"), ("gpu_mode", "work"), ("monitor", "work"), ("starts", "note_clients"),
    ("gpu_mode", "list_stuck"), ("requests", "work"), ("probe_window", "work"),
    ("measured_degree", "work"), ("mails", "work"), ("dependents", "look"),
    ("slurm_decision", "follow"),
)  # fmt: skip


@pytest.mark.parametrize(("part", "step"), PARTS, ids=lambda word: word)
@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "Stale file handle"), ZeroDivisionError("nobody foresaw it")]
)
def test_no_step_that_fails_keeps_the_others_from_theirs(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, part: str, step: str, error: Exception
) -> None:
    started = start_plainly(turns, monkeypatch)
    target = getattr(turns.parts, part)
    if part == "fence":
        # Before a start it must be certain; in a turn it is one look of many.
        looks = [error]
        check = target.check
        monkeypatch.setattr(target, "check", lambda: fail_with(looks.pop())() if looks else check())
    else:
        monkeypatch.setattr(target, step, fail_with(error))
    assert turns.runner.run() == 0
    assert turns.states == [MemberState.COMPLETED] * 3
    assert sorted(started) == [1, 2, 3]
    assert turns.bed.events("trouble")


@pytest.mark.parametrize("listener", ["note", "note_requeue"])
def test_mails_that_fail_cost_no_state(
    build_bed: Callable[..., SteppedRunner], monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    from slurm_colloc.runtime.member_mails import MemberMails

    monkeypatch.setattr(MemberMails, listener, fail_with(ValueError("no such mail")))
    turns = Turns(build_bed())
    monkeypatch.setattr(turns.runner._waker, "wait", turns.wait)
    start_plainly(turns, monkeypatch)
    assert turns.runner.run() == 0
    assert turns.states == [MemberState.COMPLETED] * 3
    assert not any((turns.bed.folder(number) / "env").exists() for number in (1, 2, 3))


def test_who_can_never_start_fails_after_minutes_with_the_reason(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = start_plainly(turns, monkeypatch)
    turns.runner.members.places = []
    assert turns.runner.run() != 0
    assert started == []
    assert turns.states == [MemberState.FAILED] * 3
    assert "member 1 cannot be started: waits: " in turns.bed.read(1).reason
    assert list_waiting(str(turns.bed.pack)) is None
    # Tried again now and then, not all the time.
    assert turns.waits <= GIVE_UP_AFTER_S / 10 + 10


def test_an_attempt_ends_where_nothing_runs_and_the_file_system_fails_for_minutes(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "list_waiting", fail_with(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(GivenUp, match="Input/output error"):
        turns.runner.run()
    monkeypatch.undo()
    # What never started is left as it was: the next csub submits it again.
    assert list_waiting(str(turns.bed.pack)) == [1, 2, 3]
    assert turns.now >= GIVE_UP_AFTER_S


def test_as_long_as_a_member_runs_the_file_system_is_waited_for(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_plainly(turns, monkeypatch, ends=False)
    assert not turns.runner._turn()
    list_real = inbox.list_waiting
    monkeypatch.setattr(inbox, "list_waiting", fail_with(OSError(errno.EIO, "Input/output error")))
    for _ in range(int(3 * GIVE_UP_AFTER_S / 10)):
        assert not turns.runner._turn()
        turns.wait()
    assert [member.number for member in turns.runner.members.running()] == [1, 2]
    monkeypatch.setattr(inbox, "list_waiting", list_real)
    start_plainly(turns, monkeypatch)
    for member in turns.runner.members.running():
        turns.bed.write(member, "exit", wait_status=0, foreign_signals=[], at=9.0)
        assert isinstance(member.process, PlainProcess)
        member.process.status = 0
    assert turns.runner.run() == 0
    assert turns.states == [MemberState.COMPLETED] * 3


def test_a_newer_attempt_passes_through(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    start_plainly(turns, monkeypatch, ends=False)
    assert not turns.runner._turn()
    begin_attempt(turns.bed.pack, 9)
    with pytest.raises(Fenced):
        turns.runner.run()
    for member in turns.runner.members.running():
        assert isinstance(member.process, PlainProcess)
        assert member.process.kills == 1


def test_while_a_step_fails_the_runner_does_not_spin(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_plainly(turns, monkeypatch, ends=False)
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(turns.runner._waker, "wait", lambda *words: asked.append(words))
    assert not turns.runner._turn()
    turns.runner.members.running()[0].end_by = 0.0
    turns.runner._wait()
    assert asked[-1][1] == [0.0]
    monkeypatch.setattr(turns.parts.gpu_mode, "work", fail_with(OSError(errno.EIO, "x")))
    assert not turns.runner._turn()
    turns.runner.members.running()[0].end_by = 0.0
    turns.runner._wait()
    # Neither what is due nor what could be read ends this wait at once.
    wait_s, due = asked[-1]
    assert isinstance(wait_s, float)
    assert wait_s >= 0.1
    assert due == []
