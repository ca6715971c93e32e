"""Members as an attempt takes them in."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from typing import Any

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.degree.ramp_decision import TOO_LITTLE_TIME
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.queue.fill_places import MemberIntake
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.inbox import list_taken, take
from slurm_colloc.store.pack.member_states import StateRecord, write_state
from slurm_colloc.store.pack.runner_kills import RunnerKill

from .runner_bed import Bed


def build_intake(
    bed: Bed, noted: list[int], killed_before: RunnerKill | None = None
) -> MemberIntake:
    def note(member: Member) -> None:
        noted.append(member.number)

    return MemberIntake(
        pack=bed.pack, attempt=2, killed_before=killed_before, members=bed.members,
        states=bed.parts.states, note_requeue=note,
    )  # fmt: skip


def leave(bed: Bed, number: int, state: MemberState, **fields: Any) -> None:
    """What the first attempt has left of a member that it had taken."""
    assert take(str(bed.pack), number)
    write_state(bed.pack, number, StateRecord(state, 1, **fields))


@pytest.fixture
def second(build_bed: Callable[..., Bed]) -> Bed:
    """The second attempt of a pack."""
    return build_bed(attempt=2)


def test_a_new_member_waits_for_its_start(bed: Bed) -> None:
    (member,) = bed.adopt(1)
    assert (member.record.state, member.record.attempt) == (MemberState.PENDING, 1)
    assert bed.read(1) == member.record
    assert list(bed.members.waiting) == [1]


def test_what_an_earlier_attempt_had_running_starts_again(second: Bed) -> None:
    leave(second, 1, MemberState.RUNNING, starts=1, started_at=5.0)
    leave(second, 2, MemberState.PENDING)
    noted: list[int] = []
    build_intake(second, noted).adopt_taken()
    record = second.read(1)
    assert (record.state, record.attempt, record.starts) == (MemberState.PENDING, 2, 1)
    assert list(second.members.waiting) == [1, 2]
    # Only who had started is told of.
    assert noted == [1]


def test_what_had_ended_stays_so_and_counts(second: Bed) -> None:
    leave(second, 1, MemberState.FAILED, starts=1, exit_code=ExitCode(3, 0))
    noted: list[int] = []
    build_intake(second, noted).adopt_taken()
    assert (second.read(1).state, second.read(1).attempt) == (MemberState.FAILED, 1)
    assert (list(second.members.waiting), noted) == ([], [])
    assert second.parts.states.worst == ExitCode(3, 0)


def test_only_what_was_taken_is_adopted_and_only_once(second: Bed) -> None:
    leave(second, 2, MemberState.PENDING)
    intake = build_intake(second, [])
    for _ in range(2):
        intake.adopt_taken()
    assert (list(second.members.by_number), list(second.members.waiting)) == ([2], [2])
    assert list_taken(str(second.pack)) == [2]


@pytest.mark.parametrize(
    ("reason", "kept"), [(f"{TOO_LITTLE_TIME}0:30 left", ""), ("requeued", "requeued")]
)
def test_what_an_earlier_attempt_waited_for_is_over(second: Bed, reason: str, kept: str) -> None:
    leave(second, 1, MemberState.PENDING, reason=reason)
    build_intake(second, []).adopt_taken()
    assert second.read(1).reason == kept


def test_after_a_killed_runner_its_members_say_why_they_run_again(second: Bed) -> None:
    leave(second, 1, MemberState.RUNNING, starts=1)
    leave(second, 2, MemberState.PENDING)
    kill = RunnerKill(0, 1, signal.SIGKILL, 1.0)
    build_intake(second, [], kill).adopt_taken()
    assert second.read(1).reason == f"{kill}; it runs again"
    assert second.read(1).evidence == (f"restarted: {kill}",)
    assert second.read(2).reason == ""


def test_a_member_whose_record_is_gone_is_not_taken_in(bed: Bed) -> None:
    (bed.folder(1) / "spec.json").unlink()
    with pytest.raises(StateError):
        bed.adopt(1)
    assert dict(bed.members.by_number) == {}
    assert dataclasses.asdict(bed.record)["pack_id"] == "s.0"
