"""Members' states on disk, also where the disk does not take them, and the worst of their ends."""

from __future__ import annotations

import time

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.write_states import LAST_WRITE_S, StateWriter
from slurm_colloc.store.member_states import StateRecord

from .stepped_runner import SteppedRunner


def take_folder_away(bed: SteppedRunner, number: int) -> None:
    """No state of this member can be written any more."""
    bed.folder(number).rename(bed.pack / f"away.{number}")


def put_folder_back(bed: SteppedRunner, number: int) -> None:
    (bed.pack / f"away.{number}").rename(bed.folder(number))


def test_a_state_is_written_and_told_with_the_one_before(bed: SteppedRunner) -> None:
    (member,) = bed.adopt(1)
    told: list[tuple[int, MemberState, MemberState]] = []

    def listen(changed: Member, before: StateRecord) -> None:
        told.append((changed.number, before.state, bed.read(changed.number).state))

    StateWriter(pack=bed.context, listener=listen).write(member, MemberState.RUNNING, starts=1)
    assert told == [(1, MemberState.PENDING, MemberState.RUNNING)]
    assert bed.read(1).starts == 1


def test_no_state_follows_that_the_table_does_not_allow(bed: SteppedRunner) -> None:
    (member,) = bed.adopt(1)
    bed.parts.states.write_end(member, MemberState.CANCELLED, None, "")
    with pytest.raises(ValueError, match="CANCELLED -> RUNNING"):
        bed.parts.states.write(member, MemberState.RUNNING)
    assert bed.read(1).state is MemberState.CANCELLED


def test_an_end_removes_the_environment_and_keeps_its_moment(bed: SteppedRunner) -> None:
    (member,) = bed.adopt(1)
    bed.parts.states.write_end(
        member, MemberState.FAILED, ExitCode(3, 0), "exit code 3", ended_at=7.0, cause="why"
    )
    record = bed.read(1)
    assert (record.ended_at, record.exit_code, record.cause) == (7.0, ExitCode(3, 0), "why")
    assert not (bed.folder(1) / "env").exists()


@pytest.mark.parametrize(
    ("ends", "worst"),
    [
        ([(ExitCode(0, 0), MemberState.COMPLETED)], ExitCode(0, 0)),
        ([(ExitCode(3, 0), MemberState.FAILED), (ExitCode(2, 0), MemberState.FAILED)],
         ExitCode(3, 0)),
        ([(ExitCode(3, 0), MemberState.FAILED), (ExitCode(0, 9), MemberState.FAILED)],
         ExitCode(0, 9)),
        # It answered TERM with 0 and is cancelled all the same.
        ([(ExitCode(0, 0), MemberState.CANCELLED)], ExitCode(1, 0)),
        # Nobody saw how it ended.
        ([(None, MemberState.FAILED)], ExitCode(1, 0)),
        ([(None, MemberState.COMPLETED)], ExitCode(0, 0)),
    ],
)  # fmt: skip
def test_the_worst_end_is_kept(
    bed: SteppedRunner, ends: list[tuple[ExitCode | None, MemberState]], worst: ExitCode
) -> None:
    for code, state in ends:
        bed.parts.states.note_end(code, state)
    assert bed.parts.states.worst == worst


def test_what_cannot_be_written_now_is_written_later(
    bed: SteppedRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = bed.adopt(1, 2)
    take_folder_away(bed, 1)
    states = bed.parts.states
    states.write(first, MemberState.RUNNING, starts=1)
    states.write(second, MemberState.RUNNING, starts=1)
    states.flush()
    # It is said once, however often it is tried.
    assert capfd.readouterr().err.count("csub: error: ") == 1
    put_folder_back(bed, 1)
    states.flush()
    assert bed.states() == {1: MemberState.RUNNING, 2: MemberState.RUNNING}


def test_the_end_waits_until_all_is_written(bed: SteppedRunner) -> None:
    (member,) = bed.adopt(1)
    take_folder_away(bed, 1)
    bed.parts.states.write(member, MemberState.RUNNING, starts=1)
    waits: list[int] = []

    def wait() -> None:
        waits.append(1)
        if len(waits) == 3:
            put_folder_back(bed, 1)

    bed.parts.states.finish(wait)
    assert (len(waits), bed.read(1).state) == (3, MemberState.RUNNING)


def test_the_end_does_not_wait_for_ever(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    (member,) = bed.adopt(1)
    take_folder_away(bed, 1)
    bed.parts.states.write(member, MemberState.RUNNING, starts=1)

    def wait() -> None:
        now[0] += 1.0

    with pytest.raises(StateError):
        bed.parts.states.finish(wait)
    assert now[0] > LAST_WRITE_S
    put_folder_back(bed, 1)
