"""What happens to a member besides running to its end: requests, limits, `--signal`."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import SlurmUnreachable, StateError
from slurm_colloc.model.job import Job, SignalRequest
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime import stop_member
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.step_command import StartedProcess, start_process
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.store.runner_requests import Action, Request, write_request

from ..wait_until import wait_until
from .stepped_runner import SteppedRunner

TELL = """
import signal, sys, time
def tell(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write(f"{number}\\n")
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, tell)
open(sys.argv[1], "a").close()
while True:
    time.sleep(60)
"""


@dataclasses.dataclass
class Teller:
    """A process that writes down which signals it gets."""

    process: StartedProcess
    path: Path

    def heard(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()]

    def wait_for(self, *numbers: int) -> None:
        wait_until(lambda: self.heard() == list(numbers), f"it was sent {numbers}")


@pytest.fixture
def teller(tmp_path: Path) -> Iterator[Teller]:
    path = tmp_path / "heard"
    process = start_process([sys.executable, "-IS", "-c", TELL, str(path)], {}, None)
    wait_until(path.exists, "it is up")
    yield Teller(process, path)
    process.kill()
    wait_until(lambda: process.poll() is not None, "it has ended")


def ask(bed: SteppedRunner, action: Action, number: int, **details: Any) -> None:
    """Leave a request, and have the runner look."""
    write_request(bed.pack, Request(action, number, **details))
    bed.parts.requests.work()


def with_signal(*, batch_shell: bool) -> Callable[[Job], Job]:
    request = SignalRequest(signal.SIGUSR1, 30, batch_shell)
    return lambda job: dataclasses.replace(job, signal=request)


@pytest.mark.parametrize(
    ("action", "asked"), [(Action.CANCEL, StopReason.CANCEL), (Action.REQUEUE, StopReason.REQUEUE)]
)
def test_a_running_member_is_asked_to_end_once(
    bed: SteppedRunner, teller: Teller, action: Action, asked: StopReason
) -> None:
    member, _ = bed.run_member(1)
    member.wrapper_pid = teller.process.pid
    for _ in range(2):
        ask(bed, action, 1)
    teller.wait_for(signal.SIGTERM)
    assert member.asked is asked
    assert member.end_by is not None
    assert member.end_by > time.monotonic() + 30
    assert len(bed.events("terminate")) == 1
    assert bed.read(1).state is MemberState.RUNNING


def test_the_steps_of_a_script_are_ended_with_it(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.slurm.steps = [("7.1", "7/1"), ("7.4", "7/1:python")]
    Path(f"{member.prefix}.steps").touch()
    bed.parts.control.end(member, StopReason.CANCEL)
    assert bed.slurm.done == [("signal", "7.4", signal.SIGTERM)]


def test_who_is_cancelled_is_not_requeued_any_more(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.parts.control.end(member, StopReason.CANCEL)
    bed.parts.control.end(member, StopReason.REQUEUE)
    assert member.asked is StopReason.CANCEL


def test_a_signal_goes_to_the_script_or_to_its_own_steps(
    bed: SteppedRunner, teller: Teller
) -> None:
    member, _ = bed.run_member(1)
    member.pid = teller.process.pid
    bed.slurm.steps = [("7.1", "7/1"), ("7.4", "7/1:python"), ("7.5", "7/2:python")]
    control = bed.parts.control
    ask(bed, Action.SIGNAL, 1, signal=signal.SIGUSR1)
    teller.wait_for(signal.SIGUSR1)
    assert bed.slurm.done == []
    # Slurm is not even asked for the steps of a script that has started none.
    control.signal(member, signal.SIGUSR1, steps_only=True)
    assert bed.slurm.done == []
    Path(f"{member.prefix}.steps").touch()
    control.signal(member, signal.SIGUSR1, steps_only=True)
    assert bed.slurm.done == [("signal", "7.4", signal.SIGUSR1)]
    assert teller.heard() == [signal.SIGUSR1]


def test_a_member_whose_wall_limit_is_over_is_ended_for_that(
    bed: SteppedRunner, teller: Teller
) -> None:
    member, _ = bed.run_member(1)
    member.wrapper_pid = teller.process.pid
    member.deadline = time.monotonic() + 60
    bed.parts.control.enforce_limits()
    assert member.asked is None
    member.deadline = time.monotonic() - 1
    bed.parts.control.enforce_limits()
    teller.wait_for(signal.SIGTERM)
    assert member.asked is StopReason.TIMEOUT


def test_who_is_being_ended_anyway_does_not_reach_its_wall_limit(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.parts.control.end(member, StopReason.REQUEUE)
    member.deadline = time.monotonic() - 1
    bed.parts.control.enforce_limits()
    assert member.asked is StopReason.REQUEUE


def test_the_signal_of_a_job_comes_once_when_it_is_due(
    build_bed: Callable[..., SteppedRunner], teller: Teller
) -> None:
    bed = build_bed(change=with_signal(batch_shell=True))
    member, _ = bed.run_member(1)
    member.pid = teller.process.pid
    # Its wall limit is 60 s by its plan, and the signal comes 30 s before that.
    assert member.deadline is not None
    assert member.signal_at == member.deadline - 30
    member.signal_at = time.monotonic() - 1
    for _ in range(2):
        bed.parts.control.enforce_limits()
    teller.wait_for(signal.SIGUSR1)
    assert member.signal_at is None


def test_a_wrapper_that_does_not_end_its_member_is_killed(bed: SteppedRunner) -> None:
    member, process = bed.run_member(1)
    bed.parts.control.end(member, StopReason.CANCEL)
    process.kills = 0
    bed.parts.control.enforce_limits()
    assert process.kills == 0
    member.end_by = time.monotonic() - 1
    bed.parts.control.enforce_limits()
    assert process.kills == 1
    # And again, if that was not enough.
    assert member.end_by is not None
    assert member.end_by > time.monotonic()


def test_the_limits_of_a_paused_member_stand_still(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    now = time.monotonic()
    member.deadline, member.signal_at, member.paused_at = now - 1, now - 2, now - 3
    bed.parts.control.enforce_limits()
    assert member.asked is None
    assert member.list_due() == []
    bed.parts.pauser.resume([member])
    assert member.deadline > now + 1
    assert member.list_due() != []


def test_who_keeps_a_server_from_mending_is_ended_unless_that_has_begun(bed: SteppedRunner) -> None:
    stuck, _ = bed.run_member(1)
    leaving, _ = bed.run_member(2)
    (waiting,) = bed.adopt(3)
    bed.parts.control.end(leaving, StopReason.CANCEL)
    bed.parts.control.end_stuck([1, 2, 3])
    assert (stuck.asked, leaving.asked, waiting.asked) == (
        StopReason.FAULT,
        StopReason.CANCEL,
        None,
    )


def test_an_ended_script_is_not_signalled(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.parts.control.signal(member, signal.SIGUSR1, steps_only=False)
    assert member.process is not None


def make_due(member: Member) -> None:
    """Its signal is due, its limit is far."""
    now = time.monotonic()
    member.deadline, member.signal_at = now + 1000.0, now - 1.0


def test_a_signal_that_slurm_does_not_pass_on_comes_as_soon_as_it_does(
    build_bed: Callable[..., SteppedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be all that makes a member save its work."""
    bed = build_bed(change=with_signal(batch_shell=False))
    member, _ = bed.run_member(1)
    Path(f"{member.prefix}.steps").touch()
    make_due(member)
    asked = []

    def fail(job_id: str) -> list[tuple[str, str]]:
        asked.append(job_id)
        raise SlurmUnreachable("squeue: Unable to contact slurm controller")

    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with monkeypatch.context() as failing:
        failing.setattr(bed.slurm, "list_steps", fail)
        bed.parts.control.enforce_limits()
        # It wakes no turn before its time, and does not ask in every one.
        assert member.signal_at is not None
        assert member.signal_at > time.monotonic()
        make_due(member)
        bed.parts.control.enforce_limits()
    assert len(asked) == 1
    bed.slurm.steps = [("7.4", "7/1:python")]
    clock[0] += stop_member.ASK_AGAIN_S
    make_due(member)
    bed.parts.control.enforce_limits()
    assert bed.slurm.done == [("signal", "7.4", signal.SIGUSR1)]
    assert member.signal_at is None


def test_a_signal_is_not_lost_where_the_file_system_fails(
    build_bed: Callable[..., SteppedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = build_bed(change=with_signal(batch_shell=False))
    member, _ = bed.run_member(1)
    Path(f"{member.prefix}.steps").touch()
    bed.slurm.steps = [("7.4", "7/1:python")]
    make_due(member)

    def fail(path: str) -> bool:
        raise StateError(f"cannot look at {path}")

    with monkeypatch.context() as failing:
        failing.setattr(stop_member, "is_there", fail)
        bed.parts.control.enforce_limits()
        # Nor does that keep a member from being ended.
        other, _ = bed.run_member(2)
        bed.parts.control.end(other, StopReason.CANCEL)
        assert len(bed.events("terminate")) == 1
    make_due(member)
    bed.parts.control.enforce_limits()
    assert bed.slurm.done == [("signal", "7.4", signal.SIGUSR1)]
