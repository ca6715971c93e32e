"""What a guard does about a killed runner: whether Slurm is asked, and what is written down."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.requeue_after_kill import (
    ALL_ENDED,
    ASK_FOR_S,
    JobStanding,
    KilledRunner,
    find_killed_before,
    find_refusal,
    judge_standing,
    tell_of_restart,
)
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    StateRecord,
    begin_attempt,
    leave_behind,
    write_held,
    write_state,
)
from slurm_colloc.store.pack_directory import write_pack, write_record
from slurm_colloc.store.written_ends import RunnerKill, list_kills, write_kill

from ..packs import build_pack
from ..pausing.running_member import RunningMember

RUNNING = {
    "JobState": "RUNNING", "Requeue": "1", "Restarts": "0", "PreemptTime": "None",
    "EndTime": "Unknown", "RunTime": "1-00:59:59", "TimeLimit": "1-01:00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({}, JobStanding.RUNS),
        ({"TimeLimit": "UNLIMITED"}, JobStanding.RUNS),
        ({"TimeLimit": "Partition_Limit"}, JobStanding.RUNS),
        ({"JobState": "CANCELLED"}, JobStanding.ENDS),
        ({"JobState": "COMPLETING"}, JobStanding.ENDS),
        ({"JobState": "TIMEOUT"}, JobStanding.ENDS),
        ({"JobState": "NODE_FAIL"}, JobStanding.ENDS),
        ({"JobState": "PENDING", "Restarts": "1"}, JobStanding.ENDS),
        ({"PreemptTime": "2026-11-21T10:58:00"}, JobStanding.ENDS),
        # Slurm has not looked yet.
        ({"RunTime": "1-01:00:00"}, JobStanding.ENDS),
        ({"RunTime": "1-01:00:20"}, JobStanding.ENDS),
        # An administrator has set it; limits are whole minutes.
        ({"EndTime": "2026-10-25T02:05:00"}, JobStanding.ENDS),
        # In Berlin the clock shows it twice, and the second time counts.
        ({"EndTime": "2026-10-25T02:20:00"}, JobStanding.RUNS),
        # This node was taken for lost, and the pack runs elsewhere.
        ({"Restarts": "1"}, JobStanding.ELSEWHERE),
    ],
)
def test_only_what_slurm_shows_running_and_not_about_to_end_is_touched(
    changes: dict[str, str], standing: JobStanding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        # Ten past two, for the second time.
        assert judge_standing({**RUNNING, **changes}, 0, 1792890600.0) is standing
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("now", "end", "standing"),
    [
        # Ten past two on the night of the change, first in summer time, then an hour later.
        (1792887000.0, "2026-10-25T02:05:00", JobStanding.RUNS),
        (1792890600.0, "2026-10-25T02:05:00", JobStanding.ENDS),
        # The hours around it come once.
        (1792887000.0, "2026-10-25T01:55:00", JobStanding.ENDS),
        (1792890600.0, "2026-10-25T03:05:00", JobStanding.RUNS),
        # In spring an hour is left out, and half past three follows a quarter to two.
        (1774745100.0, "2026-03-29T03:30:00", JobStanding.RUNS),
        (1774747860.0, "2026-03-29T03:30:00", JobStanding.ENDS),
    ],
)
def test_a_set_end_is_read_right_on_nights_when_clocks_change(
    now: float, end: str, standing: JobStanding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert judge_standing({**RUNNING, "EndTime": end}, 0, now) is standing
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("changes", "earlier", "unfinished", "refusal"),
    [
        ({}, 0, True, ""),
        ({}, 1, True, ""),
        ({}, 2, True, "it was restarted 2 times before"),
        ({"Requeue": "0"}, 0, True, "it may not be requeued"),
        ({}, 0, False, "all its members had ended"),
    ],
)
def test_why_a_pack_is_not_requeued(
    changes: dict[str, str], earlier: int, unfinished: bool, refusal: str
) -> None:
    assert find_refusal({**RUNNING, **changes}, earlier, has_unfinished=unfinished) == refusal


# With a scontrol that answers as Slurm does ------------------------------------------------------

_SCONTROL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>asked
if [ "$1" = requeue ]; then
    ls ../pack >seen
    [ ! -e says ] || cat says >&2
    [ ! -e after ] || mv after job
    exit "$(cat status 2>/dev/null || echo 0)"
fi
[ -e job ] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
cat job
"""


class KilledPack:
    """A pack with one member that has ended and one that runs, and a Slurm that answers.

    Args:
        path: A fresh directory.
    """

    def __init__(self, path: Path) -> None:
        self.pack, self.programs = path / "pack", path / "bin"
        write_pack(self.pack, build_pack("s"))
        self.programs.mkdir()
        (self.programs / "scontrol").write_text(_SCONTROL)
        (self.programs / "scontrol").chmod(0o755)
        begin_attempt(self.pack, 1)
        write_state(self.pack, 1, StateRecord(MemberState.FAILED, 1, exit_code=ExitCode(3)))
        write_state(self.pack, 2, StateRecord(MemberState.RUNNING, 1, starts=1))
        self.answer()

    def answer(self, name: str = "job", **changes: str) -> None:
        """What Slurm shows of the job; with another name what it shows once it was asked."""
        fields = {"JobId": "4711", **RUNNING, **changes}
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        (self.programs / name).write_text(text)

    def say(self, status: int, text: str) -> None:
        """How Slurm answers to a requeue."""
        (self.programs / "status").write_text(str(status))
        (self.programs / "says").write_text(text)

    def requeue(self, restarts: int = 0, *, killed_ago_s: float = 0.0) -> bool | None:
        allocation = Allocation("4711_2", "4711", "n", restarts, 1, (), (), {})
        slurm = SlurmAccess({"PATH": f"{self.programs}:/usr/bin:/bin"})
        killed_at = time.time() - killed_ago_s
        return KilledRunner(self.pack, allocation, slurm, 9, killed_at).requeue()

    def list_requeues(self) -> list[str]:
        asked = self.programs / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line for line in lines if line.startswith("requeue")]

    def read_journal(self) -> list[tuple[bool, str]]:
        path = self.pack / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines]
        assert all((event["event"], event["signal"]) == ("runner_killed", 9) for event in events)
        return [(event["requeued"], event["reason"]) for event in events]


@pytest.fixture
def bed(tmp_path: Path) -> KilledPack:
    return KilledPack(tmp_path)


def test_a_requeue_is_written_down_before_slurm_is_asked_for_it(bed: KilledPack) -> None:
    bed.answer("after", JobState="COMPLETING", Restarts="1")
    assert bed.requeue() is True
    # By the name of the element, and only as long as the job runs.
    assert bed.list_requeues() == ["requeue Incomplete 4711_2"]
    assert "killed.0.json" in (bed.programs / "seen").read_text().split()
    [kill] = list_kills(bed.pack)
    assert (kill.restarts, kill.attempt, kill.signal, kill.refusal) == (0, 1, 9, "")
    assert bed.read_journal() == [(True, "")]


def test_where_it_cannot_be_written_down_slurm_is_not_asked(bed: KilledPack) -> None:
    # A name that is taken: no file can be moved there, not even by root.
    (bed.pack / "killed.0.json").mkdir()
    (bed.pack / "killed.0.json" / "x").touch()
    with pytest.raises(StateError):
        bed.requeue()
    assert bed.list_requeues() == []


def test_a_requeue_that_slurm_refuses_is_told_in_its_words(bed: KilledPack) -> None:
    bed.say(1, "Requested operation is presently disabled for job 4711_2\n")
    assert bed.requeue() is False
    words = "scontrol: Requested operation is presently disabled for job 4711_2"
    refusal = f"Slurm did not requeue it: {words}"
    assert [kill.refusal for kill in list_kills(bed.pack)] == [refusal]
    assert bed.read_journal() == [(False, refusal)]


@pytest.mark.parametrize("answered", [True, False])
def test_a_requeue_that_did_not_happen_though_nobody_says_no(
    bed: KilledPack, answered: bool
) -> None:
    if not answered:
        bed.say(1, "slurm_requeue error: Socket timed out on send/recv operation\n")
        assert bed.requeue() is None
    assert bed.requeue(killed_ago_s=ASK_FOR_S + 1) is False
    [kill] = list_kills(bed.pack)
    told = "it runs on" if answered else "Slurm's controller did not answer in time"
    assert kill.refusal.startswith(f"Slurm did not requeue it: {told}")


def test_an_unanswered_requeue_that_was_done_counts(bed: KilledPack) -> None:
    bed.say(1, "slurm_requeue error: Socket timed out on send/recv operation\n")
    bed.answer("after", JobState="PENDING", Restarts="1")
    assert bed.requeue() is True
    assert [kill.refusal for kill in list_kills(bed.pack)] == [""]


def test_a_cancel_at_the_last_moment_leaves_no_word_of_a_requeue(bed: KilledPack) -> None:
    bed.answer("after", JobState="CANCELLED")
    assert bed.requeue() is True
    assert len(bed.list_requeues()) == 1
    assert list_kills(bed.pack) == []
    assert bed.read_journal() == []


@pytest.mark.parametrize(
    ("changes", "follows"), [({"JobState": "CANCELLED"}, True), ({"Restarts": "1"}, False)]
)
def test_what_slurm_ends_or_has_started_elsewhere_is_left_alone(
    bed: KilledPack, changes: dict[str, str], follows: bool
) -> None:
    bed.answer(**changes)
    assert bed.requeue() is follows
    assert bed.list_requeues() == []
    assert list_kills(bed.pack) == []
    assert bed.read_journal() == []


def test_slurm_is_asked_for_minutes_where_it_does_not_answer(bed: KilledPack) -> None:
    (bed.programs / "job").rename(bed.programs / "away")
    assert bed.requeue() is None
    assert list_kills(bed.pack) == []
    assert bed.list_requeues() == []
    (bed.programs / "away").rename(bed.programs / "job")
    bed.answer("after", JobState="PENDING", Restarts="1")
    assert bed.requeue(killed_ago_s=60.0) is True
    assert [kill.refusal for kill in list_kills(bed.pack)] == [""]
    assert bed.read_journal() == [(True, "")]


def test_in_the_end_it_is_said_that_slurm_did_not_answer(bed: KilledPack) -> None:
    (bed.programs / "job").unlink()
    assert bed.requeue(killed_ago_s=ASK_FOR_S + 1) is False
    [kill] = list_kills(bed.pack)
    assert kill.refusal.startswith("Slurm could not be asked to requeue it: Slurm's controller ")
    assert bed.list_requeues() == []


def test_as_long_as_a_member_lives_slurm_is_asked(bed: KilledPack) -> None:
    (bed.programs / "job").unlink()
    member = RunningMember(bed.pack, 2, ["/bin/sleep", "600"])
    assert bed.requeue(killed_ago_s=ASK_FOR_S + 1) is None
    member.process.terminate()
    member.process.wait(60)
    assert bed.requeue(killed_ago_s=ASK_FOR_S + 1) is False


def test_where_it_is_refused_the_pack_stands_as_long_as_a_member_lives(bed: KilledPack) -> None:
    bed.answer(Requeue="0")
    member = RunningMember(bed.pack, 2, ["/bin/sleep", "600"])
    assert bed.requeue() is None
    # Slurm is not asked again for what it has refused.
    (bed.programs / "job").unlink()
    assert bed.requeue(killed_ago_s=ASK_FOR_S + 1) is None
    member.process.terminate()
    member.process.wait(60)
    assert bed.requeue(killed_ago_s=ASK_FOR_S + 1) is False
    assert [kill.refusal for kill in list_kills(bed.pack)] == ["it may not be requeued"]
    assert bed.read_journal() == [(False, "it may not be requeued")]
    assert bed.list_requeues() == []


def test_a_requeue_without_an_answer_that_was_done_is_found_done(bed: KilledPack) -> None:
    bed.say(1, "slurm_requeue error: Socket timed out on send/recv operation\n")
    assert bed.requeue() is None
    bed.answer(JobState="PENDING", Restarts="1")
    assert bed.requeue() is True
    assert len(bed.list_requeues()) == 1
    assert [kill.refusal for kill in list_kills(bed.pack)] == [""]
    assert bed.read_journal() == [(True, "")]


def test_members_that_have_ended_without_a_runner_need_no_slurm(bed: KilledPack) -> None:
    (bed.programs / "job").unlink()
    write_exit(bed, 0)
    assert bed.requeue() is False
    assert list_kills(bed.pack)[-1].refusal == ALL_ENDED


@pytest.mark.parametrize(
    ("status", "changes"), [(0, {"terminated": True}), (0, {"foreign_signals": [[15, 1.0]]}),
                            (15, {})], ids=["runner", "Slurm", "died of it"]
)  # fmt: skip
def test_what_a_term_has_ended_runs_again(
    bed: KilledPack, status: int, changes: dict[str, object]
) -> None:
    write_exit(bed, status, **changes)
    bed.answer("after", JobState="PENDING", Restarts="1")
    assert bed.requeue() is True


def write_exit(bed: KilledPack, status: int, **changes: object) -> None:
    """What the wrapper of the member that runs writes when it ends."""
    record = {
        "schema": 1,
        "wait_status": status,
        "at": time.time(),
        "foreign_signals": [],
        **changes,
    }
    folder = bed.pack / "members" / format_number(2)
    (folder / "run.1.1.started").write_text("{}")
    (folder / "run.1.1.exit").write_text(json.dumps(record))


def test_refused_restarts_do_not_count_and_the_third_is_refused(bed: KilledPack) -> None:
    write_kill(bed.pack, RunnerKill(0, 1, 9, 1.0))
    write_kill(bed.pack, RunnerKill(1, 2, 9, 2.0, "it may not be requeued"))
    bed.answer(Restarts="2")
    bed.answer("after", JobState="PENDING", Restarts="3")
    assert bed.requeue(2) is True
    bed.answer(Restarts="3")
    assert bed.requeue(3) is False
    assert len(bed.list_requeues()) == 1
    assert list_kills(bed.pack)[-1].refusal == "it was restarted 2 times before"


def test_kills_in_all_gpu_sets_of_a_job_count_together(bed: KilledPack) -> None:
    packs = [
        build_pack("s", pack_id=name, gpu_set=number, gpu_sets=(1, 1))
        for number, name in enumerate(("s.0", "s~1.0"))
    ]
    write_record(bed.pack, packs[0].record)
    other = bed.pack.parent / "s~1.0"
    write_pack(other, packs[1])
    write_kill(other, RunnerKill(0, 1, 9, 1.0))
    write_kill(bed.pack, RunnerKill(1, 2, 9, 1.0))
    bed.answer(Restarts="2")
    assert not bed.requeue(2)
    assert list_kills(bed.pack)[-1].refusal == "it was restarted 2 times before"


def test_a_runner_killed_after_its_last_member_costs_no_second_allocation(bed: KilledPack) -> None:
    write_state(bed.pack, 2, StateRecord(MemberState.COMPLETED, 1, starts=1))
    assert bed.requeue() is False
    assert bed.list_requeues() == []
    assert list_kills(bed.pack)[-1].refusal == "all its members had ended"


@pytest.mark.parametrize("is_left", [False, True], ids=["cancelled", "held"])
def test_members_that_will_not_start_in_it_cost_none_either(bed: KilledPack, is_left: bool) -> None:
    (bed.pack / "members" / format_number(2) / "state.1.json").unlink()
    if is_left:
        assert inbox.take(str(bed.pack), 2)
        write_held(bed.pack, 2)
        assert leave_behind(bed.pack, 2)
    else:
        assert inbox.withdraw(str(bed.pack), 2)
    assert bed.requeue() is False
    assert list_kills(bed.pack)[-1].refusal == "all its members had ended"


# In the next attempt -----------------------------------------------------------------------------


def test_the_next_attempt_knows_why_it_is_there(bed: KilledPack) -> None:
    first, later = (Allocation("4711", "4711", "n", n, 1, (), (), {}) for n in (0, 2))
    second = dataclasses.replace(first, restarts=1)
    assert find_killed_before(bed.pack, second) is None
    kill = RunnerKill(0, 1, 9, 1.0)
    write_kill(bed.pack, kill)
    assert find_killed_before(bed.pack, first) is None
    assert find_killed_before(bed.pack, second) == kill
    assert find_killed_before(bed.pack, later) is None
    # Somebody else has requeued it by hand.
    write_kill(bed.pack, dataclasses.replace(kill, refusal="it may not be requeued"))
    assert find_killed_before(bed.pack, second) is None
    (bed.pack / "killed.0.json").write_text("{")
    assert find_killed_before(bed.pack, second) is None


def test_members_are_told_why_they_start_again() -> None:
    kill = RunnerKill(0, 1, 9, 1.0)
    record = StateRecord(MemberState.PENDING, 2, starts=1, evidence=("MPS: it was gone",))
    told = tell_of_restart(tell_of_restart(record, kill), kill)
    assert told.reason == "its runner was killed by signal 9; it runs again"
    assert told.evidence == (
        "MPS: it was gone",
        "restarted: its runner was killed by signal 9",
    )
