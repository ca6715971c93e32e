"""Members as they come up and as they end."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime import collect_ends, guarded_steps
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.stop_member import read_exit
from slurm_colloc.runtime.verdict import StopReason, Verdict

from ..wait_until import wait_until
from .stepped_runner import NOBODY, SteppedRunner


def test_a_member_that_has_come_up_is_written_as_running(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1, is_up=False)
    bed.parts.starts.collect()
    assert (member.is_starting, bed.read(1).state) == (True, MemberState.PENDING)
    bed.write(member, "started", pid=NOBODY, wrapper_pid=NOBODY + 1, step="4", at=5.0)
    bed.parts.starts.collect()
    record = bed.read(1)
    assert (record.state, record.starts, record.started_at) == (MemberState.RUNNING, 1, 5.0)
    assert (record.step, record.node, record.wall_limit_s) == ("7.4", "node1", 60)
    assert (member.pid, member.wrapper_pid, member.is_starting) == (NOBODY, NOBODY + 1, False)
    assert member.deadline is not None
    assert time.monotonic() < member.deadline <= time.monotonic() + 60


@pytest.mark.parametrize(
    ("wait_status", "state", "code"),
    [
        (0, MemberState.COMPLETED, ExitCode(0, 0)),
        (3 << 8, MemberState.FAILED, ExitCode(3, 0)),
        (signal.SIGKILL, MemberState.FAILED, ExitCode(0, 9)),
    ],
)
def test_a_member_ends_as_its_wrapper_says_and_frees_its_place(
    bed: SteppedRunner, wait_status: int, state: MemberState, code: ExitCode
) -> None:
    member, _ = bed.run_member(1)
    Path(f"{member.prefix}.launch").touch()
    bed.end_member(member, wait_status)
    record = bed.read(1)
    assert (record.state, record.exit_code, record.ended_at) == (state, code, 9.0)
    assert (member.process, member.deadline) == (None, None)
    assert [place.occupant for place in bed.members.places] == [None, None]
    assert not Path(f"{member.prefix}.launch").exists()
    assert bed.parts.states.worst == code


def test_an_end_before_the_start_was_seen_is_an_end_all_the_same(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1, is_up=False)
    bed.write(member, "started", pid=NOBODY, wrapper_pid=None, step=None, at=5.0)
    bed.end_member(member)
    record = bed.read(1)
    assert (record.state, record.starts, record.started_at) == (MemberState.COMPLETED, 1, 5.0)


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        (StopReason.CANCEL, MemberState.CANCELLED),
        (StopReason.TIMEOUT, MemberState.TIMEOUT),
        (StopReason.FAULT, MemberState.FAILED),
    ],
)
def test_who_was_ended_is_told_by_why(
    bed: SteppedRunner, asked: StopReason, state: MemberState
) -> None:
    member, _ = bed.run_member(1)
    member.asked = asked
    bed.end_member(member)
    assert bed.read(1).state is state
    assert member.asked is None


def test_a_requeued_member_waits_behind_the_others(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.adopt(2, 3)
    member.asked = StopReason.REQUEUE
    bed.end_member(member)
    record = bed.read(1)
    assert (record.state, record.reason, record.exit_code) == (
        MemberState.PENDING, "requeued", None
    )  # fmt: skip
    assert list(bed.members.waiting) == [2, 3, 1]
    assert (bed.folder(1) / "env").exists()


def test_an_end_by_a_foreign_term_waits_for_what_slurm_says(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.end_member(member, signal.SIGTERM, [(int(signal.SIGTERM), 1)])
    assert bed.read(1).state is MemberState.RUNNING
    assert (list(bed.parts.ends.undecided), bed.parts.slurm_decision.is_undecided) == ([1], True)
    assert member.process is None
    # The pack goes on, so it counts as it ended.
    assert bed.parts.slurm_decision.follow()
    bed.parts.ends.resume()
    record = bed.read(1)
    assert (record.state, record.exit_code) == (MemberState.FAILED, ExitCode(0, 15))
    assert (bed.parts.ends.undecided, bed.parts.slurm_decision.is_undecided) == ({}, False)


def test_a_step_that_was_killed_whole_is_cancelled_where_slurm_said_so(bed: SteppedRunner) -> None:
    cancelled, process = bed.run_member(1)
    Path(f"{cancelled.prefix}.log").write_text("*** STEP 7.1 ON n CANCELLED AT now ***\n")
    killed, other = bed.run_member(2)
    process.status = other.status = 9
    bed.parts.ends.collect()
    assert sorted(bed.parts.ends.undecided) == [1, 2]
    bed.parts.ends.resume()
    assert bed.states() == {1: MemberState.CANCELLED, 2: MemberState.FAILED}
    assert {bed.read(number).reason for number in (1, 2)} == {"its step was killed"}
    assert killed.process is None


def test_a_step_that_comes_too_late_waits_for_another_turn(bed: SteppedRunner) -> None:
    member, process = bed.run_member(1, is_up=False)
    Path(f"{member.prefix}.log").write_text("srun: error: Job/step already completing or completed")
    process.status = 1
    bed.parts.ends.collect()
    bed.parts.ends.resume()
    assert (bed.read(1).state, list(bed.members.waiting)) == (MemberState.PENDING, [1])
    assert bed.read(1).starts == 0


@pytest.mark.parametrize(("launcher", "waits"), [("auto", True), ("srun", False)])
def test_where_steps_do_not_work_members_become_plain_processes_if_they_may(
    build_bed: Callable[..., SteppedRunner], launcher: str, waits: bool
) -> None:
    bed = build_bed(launcher=launcher)
    member, process = bed.run_member(1, is_up=False)
    Path(f"{member.prefix}.log").write_text("srun: error: no such plugin\n")
    process.status = 1
    bed.parts.ends.collect()
    # It may be the end of the job: Slurm is asked first.
    assert list(bed.parts.ends.undecided) == [1]
    bed.parts.ends.resume()
    if waits:
        assert (bed.read(1).state, list(bed.members.waiting)) == (MemberState.PENDING, [1])
        assert bed.parts.starter.launcher == "process"
    else:
        assert bed.read(1).state is MemberState.FAILED
        assert bed.read(1).reason == "it could not be started: srun: error: no such plugin"


def test_a_killed_srun_is_not_the_end_of_its_member(bed: SteppedRunner) -> None:
    member, process = bed.run_member(1)
    argv = [sys.executable, "-ISc", "import time; time.sleep(300)", f"{member.prefix}.launch"]
    wrapper = subprocess.Popen(argv)
    member.wrapper_pid = wrapper.pid
    wait_until(Path(f"/proc/{wrapper.pid}/cmdline").read_bytes, "it is up")
    process.status = -9
    for _ in range(2):
        bed.parts.ends.collect()
    assert (member.is_orphan, bed.read(1).state) == (True, MemberState.RUNNING)
    assert len(bed.events("srun_lost")) == 1
    wrapper.kill()
    wrapper.wait()
    bed.end_member(member)
    assert bed.read(1).state is MemberState.COMPLETED


def test_an_srun_that_does_not_end_is_left_once_its_wrapper_has_ended(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.write(member, "exit", wait_status=0, foreign_signals=[], at=9.0)
    bed.parts.ends.collect()
    assert bed.read(1).state is MemberState.RUNNING
    assert member.ended_at is not None
    member.ended_at -= 3600
    bed.parts.ends.collect()
    assert bed.read(1).state is MemberState.COMPLETED
    assert len(bed.events("srun_left")) == 1


def test_the_steps_that_a_script_has_left_are_ended_with_it(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    bed.slurm.steps = [("7.1", "7/1"), ("7.4", "7/1:python")]
    Path(f"{member.prefix}.steps").touch()
    bed.end_member(member)
    assert bed.slurm.done == [("end", "7.4")]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is damaged ("),
        ('{"schema": 1, "wait_status":', "is damaged ("),
        (
            '{"schema": 2, "wait_status": 0, "foreign_signals": [], "at": 9.0}',
            "is of another version (schema 2, this one reads 1)",
        ),
    ],
    ids=["empty", "half", "another"],
)
def test_an_end_that_cannot_be_read_for_minutes_frees_its_place(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, content: str, why: str
) -> None:
    member, process = bed.run_member(1)
    other, _ = bed.run_member(2)
    Path(f"{member.prefix}.exit").write_text(content)
    process.status = 0
    bed.parts.ends.collect()
    assert bed.read(1).state is MemberState.RUNNING
    monkeypatch.setattr(guarded_steps, "GIVE_UP_AFTER_S", 0.0)
    bed.parts.ends.collect()
    record = bed.read(1)
    assert (record.state, record.exit_code) == (MemberState.FAILED, None)
    assert record.reason.startswith("how it ended cannot be found out: ")
    assert f"{member.prefix}.exit {why}" in record.reason
    assert [place.occupant for place in bed.members.places] == [None, 2]
    assert other.process is not None


def test_one_end_that_cannot_be_read_now_holds_up_no_other(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, process = bed.run_member(1)
    second, _ = bed.run_member(2)

    def fail(member: Member) -> dict[str, Any] | None:
        if member is first:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_exit(member)

    with monkeypatch.context() as failing:
        failing.setattr(collect_ends, "read_exit", fail)
        bed.write(first, "exit", wait_status=0, foreign_signals=[], at=9.0)
        process.status = 0
        bed.end_member(second)
        assert bed.states() == {1: MemberState.RUNNING, 2: MemberState.COMPLETED}
    bed.parts.ends.collect()
    assert bed.states() == {1: MemberState.COMPLETED, 2: MemberState.COMPLETED}


def test_one_end_that_fails_after_slurm_has_decided_loses_no_other(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        member, _ = bed.run_member(number)
        bed.end_member(member, 3 << 8, [(signal.SIGTERM, 5)])
    assert sorted(bed.parts.ends.undecided) == [1, 2]
    end = bed.parts.ends.ends.end

    def fail(member: Member, verdict: Verdict) -> None:
        if member.number == 1:
            raise OSError(errno.EIO, "Input/output error")
        end(member, verdict)

    with monkeypatch.context() as failing:
        failing.setattr(bed.parts.ends.ends, "end", fail)
        bed.parts.ends.resume()
    assert bed.states() == {1: MemberState.RUNNING, 2: MemberState.FAILED}
    bed.parts.ends.collect()
    assert bed.states() == {1: MemberState.FAILED, 2: MemberState.FAILED}
