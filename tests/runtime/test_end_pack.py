"""The last states of a pack whose job Slurm ends."""

from __future__ import annotations

import signal
import time

import pytest

from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.runtime.end_pack import LET_GO_SHARE
from slurm_colloc.runtime.verdict import PackVerdict
from slurm_colloc.store.inbox import list_waiting
from slurm_colloc.store.member_states import write_held
from slurm_colloc.store.pack_directory import read_ended
from slurm_colloc.store.written_ends import find_written_end

from .stepped_runner import CONFIG, SteppedRunner

CANCELLED = PackVerdict(False, MemberState.CANCELLED, "the pack was cancelled")
TIMEOUT = PackVerdict(False, MemberState.TIMEOUT, "the pack's time limit was reached")
REQUEUED = PackVerdict(False, None, "the pack is preempted or requeued")


def end_at_term(bed: SteppedRunner, number: int) -> None:
    """Have a member that runs end at a TERM that somebody else has sent."""
    member = bed.members.by_number[number]
    bed.end_member(member, signal.SIGTERM, [(int(signal.SIGTERM), 1)])


def test_a_cancelled_pack_cancels_all_of_its_members(bed: SteppedRunner) -> None:
    bed.run_member(1)
    end_at_term(bed, 1)
    bed.adopt(2)
    bed.parts.slurm_decision.ending = CANCELLED
    assert bed.parts.pack_end.work()
    # The third waited in the inbox.
    assert bed.states() == dict.fromkeys((1, 2, 3), MemberState.CANCELLED)
    assert bed.read(2).reason == "the pack was cancelled"
    assert bed.read(1).ended_at == 9.0
    assert bed.read(2).exit_code == ExitCode(0, signal.SIGTERM)
    assert list_waiting(str(bed.pack)) is None
    assert read_ended(bed.pack) is None


def test_who_had_no_turn_when_the_time_is_up_is_left_for_another_pack(bed: SteppedRunner) -> None:
    bed.run_member(1)
    end_at_term(bed, 1)
    bed.adopt(2)
    bed.parts.slurm_decision.ending = TIMEOUT
    assert bed.parts.pack_end.work()
    assert bed.states() == {1: MemberState.TIMEOUT, 2: MemberState.PENDING}
    assert list_waiting(str(bed.pack)) == [3]
    assert read_ended(bed.pack) is SlurmJobState.TIMEOUT


def test_who_is_held_when_the_time_is_up_stays_held(bed: SteppedRunner) -> None:
    member, _ = bed.run_member(1)
    end_at_term(bed, 1)
    assert member.record.starts == 1
    write_held(bed.pack, 1)
    bed.parts.slurm_decision.ending = TIMEOUT
    assert bed.parts.pack_end.work()
    assert bed.read(1).state is MemberState.RUNNING


def test_of_a_pack_that_starts_again_nothing_is_written(bed: SteppedRunner) -> None:
    bed.run_member(1)
    end_at_term(bed, 1)
    bed.adopt(2)
    bed.parts.slurm_decision.ending = REQUEUED
    bed.slurm.fields = {"JobState": "COMPLETING", "Restarts": "1"}
    assert bed.parts.pack_end.work()
    assert bed.states() == {1: MemberState.RUNNING, 2: MemberState.PENDING}
    assert list_waiting(str(bed.pack)) == [3]


def test_slurm_s_own_last_line_tells_why_while_its_state_does_not(bed: SteppedRunner) -> None:
    bed.adopt(1)
    bed.parts.slurm_decision.ending = PackVerdict(False, None, "the pack is ending")
    bed.slurm.fields = {"JobState": "COMPLETING", "Restarts": "0"}
    bed.log.write_text("slurmstepd: error: *** JOB 7 ON n CANCELLED AT now DUE TO TIME LIMIT ***\n")
    assert bed.parts.pack_end.work()
    assert read_ended(bed.pack) is SlurmJobState.TIMEOUT


def test_nothing_is_settled_while_a_member_runs(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    let_go: list[float] = []
    monkeypatch.setattr(bed.parts.gpu_mode, "let_go", lambda: let_go.append(now[0]))
    bed.run_member(1)
    bed.parts.slurm_decision.ending = CANCELLED
    share_s = LET_GO_SHARE * float(CONFIG["KillWait"].split()[0])
    assert not bed.parts.pack_end.work()
    assert (bed.parts.pack_end.list_due(), let_go) == ([100.0 + share_s], [])
    now[0] += share_s + 0.1
    # Once, and long before Slurm kills.
    for _ in range(2):
        assert not bed.parts.pack_end.work()
    assert let_go == [now[0]]
    assert bed.read(1).state is MemberState.RUNNING
    end_at_term(bed, 1)
    assert bed.parts.pack_end.work()
    assert bed.read(1).state is MemberState.CANCELLED


@pytest.mark.parametrize("verdict", [TIMEOUT, REQUEUED])
def test_what_saved_in_an_instant_as_its_link_ended_goes_on_in_the_next(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, verdict: PackVerdict
) -> None:
    member, _ = bed.run_member(1)
    monkeypatch.setattr(type(bed.parts.chain), "goes_on", True)
    # The runner has Slurm's TERM, and its wrapper had none yet.
    bed.parts.slurm_decision.terminate()
    bed.end_member(member)
    bed.parts.slurm_decision.ending = verdict
    assert bed.parts.pack_end.work()
    assert bed.read(1).state is MemberState.PENDING
    assert "goes on in the next link" in bed.read(1).reason
    assert find_written_end(bed.pack, 1, bed.read(1), starts_again=True) is None
