"""Steps that fail: said once, tried again, given up after minutes; ends on purpose pass through."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.runtime import guarded_steps
from slurm_colloc.runtime.guarded_steps import (
    GIVE_UP_AFTER_S,
    GivenUp,
    GuardedSteps,
    Journal,
    insist,
    is_passing,
)
from slurm_colloc.runtime.stop_member import Fenced
from slurm_colloc.store.atomic_files import explain_os_errors


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """Steps of a pack, and a step that fails for as long as there is an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.steps = GuardedSteps(Journal(folder), self.clock)
        self.error: Exception | None = None
        self.settled: list[str] = []

    def step(self) -> str:
        if self.error is not None:
            raise self.error
        return "done"

    def give_up(self, error: Exception) -> bool:
        self.settled.append(str(error))
        return True

    def run(self) -> str | None:
        return self.steps.run("a step", self.step, self.give_up)

    def events(self) -> list[str]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["event"] for line in lines]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_step_that_fails_is_said_once_and_tried_again(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    stage.error = OSError(errno.ESTALE, "Stale file handle", "/x")
    for _ in range(5):
        assert stage.run() is None
        stage.clock.now += 1
    assert stage.steps.has_trouble
    stage.error = None
    assert stage.run() == "done"
    assert stage.events() == ["trouble"]
    told = capfd.readouterr().err.splitlines()
    assert told == ["csub: error: a step: [Errno 116] Stale file handle: '/x'; it is tried again"]


def test_another_error_of_the_same_step_is_said_too_and_the_end_of_long_trouble(
    stage: Stage,
) -> None:
    for text in ("one", "two", "one"):
        stage.error = StateError(text)
        stage.run()
    stage.clock.now += 60
    stage.error = None
    stage.run()
    assert stage.events() == ["trouble", "trouble", "trouble_over"]


def test_what_was_not_foreseen_comes_with_the_place_where_it_was(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    stage.error = ZeroDivisionError("division by zero")
    assert stage.run() is None
    text = capfd.readouterr().err
    assert "ZeroDivisionError" in text
    assert __file__ in text


def test_a_step_is_given_up_after_minutes_and_trouble_counts_from_its_beginning(
    stage: Stage,
) -> None:
    stage.error = StateError("no answer")
    stage.run()
    stage.clock.now += GIVE_UP_AFTER_S - 1
    stage.run()
    assert stage.settled == []
    # It works once, and all begins anew.
    stage.error, kept = None, stage.error
    stage.run()
    stage.error = kept
    stage.run()
    stage.clock.now += GIVE_UP_AFTER_S
    assert stage.settled == []
    stage.run()
    assert stage.settled == ["no answer"]
    assert not stage.steps.has_trouble
    assert "given_up" in stage.events()


def test_what_fails_in_giving_up_is_one_more_failure(stage: Stage) -> None:
    def fail(_: Exception) -> bool:
        raise ValueError("that, too")

    stage.error = StateError("no answer")
    for _ in range(2):
        assert stage.steps.run("a step", stage.step, fail) is None
        stage.clock.now += GIVE_UP_AFTER_S
    assert stage.steps.has_trouble


@pytest.mark.parametrize("end", [Fenced("a newer attempt"), GivenUp("it", StateError("x"))])
def test_an_end_on_purpose_passes_through(stage: Stage, end: Exception) -> None:
    stage.error = end
    with pytest.raises(type(end)):
        stage.run()
    assert stage.events() == []


def test_a_log_that_cannot_be_written_ends_nothing(stage: Stage) -> None:
    (stage.folder / "events.jsonl").mkdir()
    stage.error = OSError(errno.EIO, "Input/output error")
    assert stage.run() is None


@pytest.mark.parametrize(
    ("number", "passes"),
    [
        (errno.ESTALE, True),
        (errno.EIO, True),
        (errno.ETIMEDOUT, True),
        (errno.ENOSPC, True),
        (errno.EMFILE, True),
        (errno.EHOSTDOWN, True),
        (errno.ENOENT, False),
        (errno.EISDIR, False),
        (errno.EACCES, False),
        (errno.EFBIG, False),
    ],
)
def test_what_may_pass_by_itself_is_told_by_its_cause(number: int, passes: bool) -> None:
    with pytest.raises(StateError) as caught, explain_os_errors("read", "/x"):
        raise OSError(number, "text", "/x")
    assert is_passing(caught.value) is passes
    assert not is_passing(NodeError("a member cannot be started"))


def test_what_a_runner_cannot_begin_without_is_tried_again_where_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_steps, "RETRY_S", 0.0)
    errors: list[Exception] = [OSError(errno.ESTALE, "x"), OSError(errno.EIO, "x")]

    def step() -> str:
        if errors:
            raise errors.pop()
        return "begun"

    assert insist("beginning", step) == "begun"
    errors = [StateError("it is damaged")]
    with pytest.raises(StateError):
        insist("beginning", step)
    assert errors == []


def test_a_runner_does_not_begin_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(guarded_steps, "RETRY_S", 0.0)

    def step() -> None:
        clock.now += GIVE_UP_AFTER_S / 3
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    with pytest.raises(OSError, match="timed out"):
        insist("beginning", step, clock)
