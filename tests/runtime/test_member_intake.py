"""Members as an attempt takes them in."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import EndCause, ExitCode, MemberState, WaitKind, WaitReason
from slurm_colloc.runtime import fill_places, guarded_steps
from slurm_colloc.runtime.fill_places import MemberIntake
from slurm_colloc.runtime.members import Member
from slurm_colloc.store import inbox, written_ends
from slurm_colloc.store.inbox import list_taken, take
from slurm_colloc.store.member_states import GpuUse, Retries, StateRecord, write_state
from slurm_colloc.store.written_ends import RunnerKill

from .stepped_runner import SteppedRunner


def build_intake(
    bed: SteppedRunner, noted: list[int], killed_before: RunnerKill | None = None
) -> MemberIntake:
    def note(member: Member) -> None:
        noted.append(member.number)

    return MemberIntake(
        pack=dataclasses.replace(bed.context, attempt=2), killed_before=killed_before,
        states=bed.parts.states, mails=cast("Any", SimpleNamespace(note_requeue=note)),
    )  # fmt: skip


def leave(bed: SteppedRunner, number: int, state: MemberState, **fields: Any) -> None:
    """What the first attempt has left of a member that it had taken."""
    assert take(str(bed.pack), number)
    write_state(bed.pack, number, StateRecord(state, 1, **fields))


@pytest.fixture
def second(build_bed: Callable[..., SteppedRunner]) -> SteppedRunner:
    """The second attempt of a pack."""
    return build_bed(attempt=2)


def test_a_new_member_waits_for_its_start(bed: SteppedRunner) -> None:
    (member,) = bed.adopt(1)
    assert (member.record.state, member.record.attempt) == (MemberState.PENDING, 1)
    assert bed.read(1) == member.record
    assert list(bed.members.waiting) == [1]


def test_what_an_earlier_attempt_had_running_starts_again(second: SteppedRunner) -> None:
    leave(second, 1, MemberState.RUNNING, starts=1, started_at=5.0)
    leave(second, 2, MemberState.PENDING)
    noted: list[int] = []
    build_intake(second, noted).adopt_taken()
    record = second.read(1)
    assert (record.state, record.attempt, record.starts) == (MemberState.PENDING, 2, 1)
    assert list(second.members.waiting) == [1, 2]
    # Only who had started is told of.
    assert noted == [1]


def write_exit(bed: SteppedRunner, number: int, run: str, status: int, **fields: Any) -> None:
    """What the wrapper of a start has written: that it was up, and how its script ended."""
    folder = bed.pack / "members" / inbox.format_number(number)
    (folder / f"run.{run}.started").write_text("{}")
    record = {"schema": 1, "wait_status": status, "at": 9.0, "started_at": 5.0, **fields}
    record.setdefault("foreign_signals", [])
    (folder / f"run.{run}.exit").write_text(json.dumps(record))


@pytest.mark.parametrize("starts", [0, 1], ids=["start not noted", "start noted"])
@pytest.mark.parametrize(
    ("status", "fields", "state"),
    [
        (0, {}, MemberState.COMPLETED),
        (3 << 8, {}, MemberState.FAILED),
        (9, {"oom_kills": 1}, MemberState.OUT_OF_MEMORY),
        (0, {"foreign_signals": [[10, 1.0]]}, MemberState.COMPLETED),
    ],
)
def test_an_end_that_no_runner_has_noted_is_an_end(
    second: SteppedRunner, starts: int, status: int, fields: dict[str, Any], state: MemberState
) -> None:
    before = MemberState.RUNNING if starts else MemberState.PENDING
    leave(second, 1, before, starts=starts)
    write_exit(second, 1, "1.1", status, **fields)
    noted: list[int] = []
    build_intake(second, noted).adopt_taken()
    record = second.read(1)
    assert (record.state, record.attempt, record.starts) == (state, 2, 1)
    assert (record.started_at, record.ended_at) == (5.0, 9.0)
    assert record.exit_code == ExitCode.from_wait_status(status)
    assert record.evidence == (written_ends.EVIDENCE,)
    assert (list(second.members.waiting), noted) == ([], [])
    assert second.parts.states.worst == record.exit_code


@pytest.mark.parametrize(
    ("run", "status", "fields"),
    [
        # Its runner, or Slurm, had sent a TERM: it may have saved what it had.
        ("1.1", 0, {"terminated": True}),
        ("1.1", 0, {"foreign_signals": [[15, 1.0]]}),
        ("1.1", 143 << 8, {"terminated": True}),
        ("1.1", 15, {}),
        # That of an earlier start was noted when it began to wait for this one.
        ("1.0", 0, {}),
    ],
)
def test_what_a_term_has_ended_is_none(
    second: SteppedRunner, run: str, status: int, fields: dict[str, Any]
) -> None:
    leave(second, 1, MemberState.RUNNING, starts=1)
    write_exit(second, 1, run, status, **fields)
    build_intake(second, []).adopt_taken()
    assert second.read(1).state is MemberState.PENDING
    assert list(second.members.waiting) == [1]


def test_an_end_of_a_start_that_was_requeued_is_none(second: SteppedRunner) -> None:
    leave(second, 1, MemberState.PENDING, starts=1)
    write_exit(second, 1, "1.1", 0)
    build_intake(second, []).adopt_taken()
    assert list(second.members.waiting) == [1]


def test_a_failure_that_no_runner_has_noted_takes_a_retry(
    build_bed: Callable[..., SteppedRunner],
) -> None:
    bed = build_bed(attempt=2, change=lambda job: dataclasses.replace(job, retries=1))
    leave(bed, 1, MemberState.RUNNING, starts=1)
    write_exit(bed, 1, "1.1", 3 << 8)
    build_intake(bed, []).adopt_taken()
    assert (bed.read(1).state, bed.read(1).retries.failures) == (MemberState.PENDING, 1)
    assert list(bed.members.waiting) == [1]
    # It was the last one.
    leave(bed, 2, MemberState.RUNNING, starts=2, retries=Retries(failures=1))
    write_exit(bed, 2, "1.2", 3 << 8)
    build_intake(bed, []).adopt_taken()
    assert bed.read(2).state is MemberState.FAILED


@pytest.mark.parametrize(
    ("mode", "killed_at", "state"),
    [
        ("mps", 8.0, MemberState.PENDING),
        ("mps", 10.0, MemberState.FAILED),
        ("timeslice", 8.0, MemberState.FAILED),
    ],
)
def test_who_has_failed_after_its_mps_daemon_had_lost_its_runner_runs_again(
    second: SteppedRunner, mode: str, killed_at: float, state: MemberState
) -> None:
    leave(second, 1, MemberState.RUNNING, starts=1, gpu=GpuUse(mode))
    write_exit(second, 1, "1.1", 1 << 8)
    kill = RunnerKill(0, 1, 9, killed_at)
    build_intake(second, [], kill).adopt_taken()
    assert second.read(1).state is state


def test_what_had_ended_stays_so_and_counts(second: SteppedRunner) -> None:
    leave(second, 1, MemberState.FAILED, starts=1, exit_code=ExitCode(3, 0))
    noted: list[int] = []
    build_intake(second, noted).adopt_taken()
    assert (second.read(1).state, second.read(1).attempt) == (MemberState.FAILED, 1)
    assert (list(second.members.waiting), noted) == ([], [])
    assert second.parts.states.worst == ExitCode(3, 0)


def test_only_what_was_taken_is_adopted_and_only_once(second: SteppedRunner) -> None:
    leave(second, 2, MemberState.PENDING)
    intake = build_intake(second, [])
    for _ in range(2):
        intake.adopt_taken()
    assert (list(second.members.by_number), list(second.members.waiting)) == ([2], [2])
    assert list_taken(str(second.pack)) == [2]


DEPENDENCY = WaitReason(WaitKind.DEPENDENCY, name="afterok:4/2")


@pytest.mark.parametrize(
    ("waits", "kept"), [(WaitReason(WaitKind.TIME), None), (DEPENDENCY, DEPENDENCY)]
)
def test_what_an_earlier_attempt_waited_for_is_over(
    second: SteppedRunner, waits: WaitReason, kept: WaitReason | None
) -> None:
    leave(second, 1, MemberState.PENDING, waits=waits)
    leave(second, 2, MemberState.PENDING, reason="requeued")
    build_intake(second, []).adopt_taken()
    assert second.read(1).waits == kept
    assert second.read(2).reason == "requeued"


def test_after_a_killed_runner_its_members_say_why_they_run_again(second: SteppedRunner) -> None:
    leave(second, 1, MemberState.RUNNING, starts=1)
    leave(second, 2, MemberState.PENDING)
    kill = RunnerKill(0, 1, signal.SIGKILL, 1.0)
    build_intake(second, [], kill).adopt_taken()
    assert second.read(1).reason == f"{kill}; it runs again"
    assert second.read(1).evidence == (f"restarted: {kill}",)
    assert second.read(2).reason == ""


def test_who_was_at_the_door_starts_from_the_beginning(second: SteppedRunner) -> None:
    reason = "at the door: its program is loaded, and it waits: no more than 1 runs at once"
    leave(second, 1, MemberState.RUNNING, starts=1, at_door=True, reason=reason)
    build_intake(second, []).adopt_taken()
    record = second.read(1)
    assert (record.state, record.at_door, record.reason) == (MemberState.PENDING, False, "")


def damage(bed: SteppedRunner, number: int, how: str) -> None:
    """Make what a member runs, or its state, unreadable for good."""
    folder = bed.folder(number)
    if how == "gone":
        (folder / "spec.json").unlink()
    elif how == "state":
        (folder / "state.1.json").write_text('{"schema":1,"state":"ASLEEP"}')
    else:
        (folder / "spec.json").write_text({"empty": "", "half": '{"schema":1,'}.get(how, how))


@pytest.mark.parametrize("how", ["gone", "empty", "half", "[]", '{"schema":99}', "state"])
def test_a_member_whose_record_is_damaged_fails_alone(second: SteppedRunner, how: str) -> None:
    damage(second, 1, how)
    second.parts.place_filler.work()
    record = second.read(1)
    assert (record.state, record.cause) == (MemberState.FAILED, EndCause.NOT_STARTED)
    assert record.reason.startswith("it could not be taken in: ")
    assert str(second.folder(1)) in record.reason
    assert not (second.folder(1) / "env").exists()
    assert sorted(member.number for member in second.members.running()) == [2, 3]
    # It counts for the pack's own end, and is not taken in again.
    assert second.parts.states.worst == ExitCode(1, 0)
    second.parts.intake.adopt_taken()
    assert 1 not in second.members.by_number


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_where_the_file_system_fails_a_member_is_taken_in_later(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert take(str(bed.pack), 1)
    with monkeypatch.context() as failing:
        failing.setattr(fill_places, "read_spec", fail_with(number))
        bed.parts.intake.adopt(1)
        bed.parts.place_filler.work()
        assert bed.members.by_number == {}
        # Nothing is closed over it.
        assert not bed.parts.place_filler.close()
    bed.parts.place_filler.work()
    assert sorted(bed.members.by_number) == [1, 2, 3]
    trouble = bed.events("trouble")
    assert [entry["step"] for entry in trouble] == [f"taking in member {n}" for n in (1, 2, 3)]
    assert os.strerror(number) in trouble[0]["error"]


def test_a_member_that_cannot_be_read_for_minutes_fails_alone(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_steps, "GIVE_UP_AFTER_S", 0.0)
    monkeypatch.setattr(fill_places, "read_spec", fail_with(errno.EIO))
    bed.parts.place_filler.work()
    monkeypatch.undo()
    assert {number: bed.read(number).state for number in (1, 2, 3)} == dict.fromkeys(
        (1, 2, 3), MemberState.FAILED
    )
    assert bed.parts.place_filler.close()


def test_who_was_taken_although_the_answer_was_lost_is_found(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(pack: str, number: int) -> bool:
        assert take(pack, number)
        raise StateError("cannot look at it: Stale file handle")

    with monkeypatch.context() as failing:
        failing.setattr(inbox, "take", lose)
        with pytest.raises(StateError):
            bed.parts.intake.work()
    bed.parts.intake.work()
    assert sorted(bed.members.by_number) == [1, 2, 3]


def fail_with(number: int) -> Callable[..., Any]:
    """A reader whose file system fails."""

    def fail(*_: object) -> Any:
        error = StateError(f"cannot read it: {os.strerror(number)}")
        raise error from OSError(number, os.strerror(number))

    return fail
