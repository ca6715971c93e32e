from __future__ import annotations

from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import pytest

from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.verdict import (
    PackVerdict,
    StopReason,
    Verdict,
    judge_pack,
    judge_process_end,
    read_kill_reason,
)

M = MemberState
OOM = "it used more host memory than its limit"


def build_record(status: int, *foreign: int, **changes: Any) -> dict[str, Any]:
    return {
        "wait_status": status,
        "oom_kills": 0,
        "foreign_signals": [[number, 1.0] for number in foreign],
        "problem": "",
        **changes,
    }


@pytest.mark.parametrize(
    ("record", "asked", "expected"),
    [
        (build_record(0), None, Verdict(M.COMPLETED, ExitCode())),
        (build_record(3 << 8), None, Verdict(M.FAILED, ExitCode(3), "exit code 3")),
        (build_record(9), None, Verdict(M.FAILED, ExitCode(0, 9), "ended by signal 9")),
        (build_record(9, oom_kills=1), None, Verdict(M.OUT_OF_MEMORY, ExitCode(0, 9), OOM)),
        # A child of the script was killed and the script went on.
        (build_record(0, oom_kills=1), None, Verdict(M.OUT_OF_MEMORY, ExitCode(), OOM)),
        (build_record(0, oom_kills=None), None, Verdict(M.COMPLETED, ExitCode())),
        (build_record(15), StopReason.CANCEL, Verdict(M.CANCELLED, ExitCode(0, 15), "cancelled")),
        (build_record(0), StopReason.CANCEL, Verdict(M.CANCELLED, ExitCode(), "cancelled")),
        (
            build_record(9),
            StopReason.TIMEOUT,
            Verdict(M.TIMEOUT, ExitCode(0, 9), "its time limit was reached"),
        ),
        (build_record(0), StopReason.REQUEUE, Verdict(M.PENDING, ExitCode(), "requeued")),
        (
            build_record(15, SIGTERM),
            None,
            Verdict(M.FAILED, ExitCode(0, 15), "ended by signal 15", foreign=True),
        ),
        (build_record(0, SIGTERM), None, Verdict(M.COMPLETED, ExitCode(), foreign=True)),
        (build_record(0, SIGUSR1), None, Verdict(M.COMPLETED, ExitCode())),
        (
            build_record(15, SIGTERM),
            StopReason.CANCEL,
            Verdict(M.CANCELLED, ExitCode(0, 15), "cancelled"),
        ),
        (
            build_record(127 << 8, problem="it could not be started: x: No such file"),
            None,
            Verdict(
                M.FAILED,
                ExitCode(127),
                "it could not be started: x: No such file",
                without_script=True,
            ),
        ),
    ],
)
def test_an_end_that_the_wrapper_wrote_down(
    record: dict[str, Any], asked: StopReason | None, expected: Verdict
) -> None:
    assert judge_process_end(record, started=True, srun_status=1, log="", asked=asked) == expected


CANCELLED_AT = "slurmstepd: error: *** STEP 7.1 ON node1 CANCELLED AT 2026-01-01T00:00:00"
KILLED = ExitCode(0, SIGKILL)


@pytest.mark.parametrize(
    ("started", "log", "asked", "expected"),
    [
        (True, "", None, Verdict(None, KILLED, "", foreign=True)),
        (True, f"{CANCELLED_AT} ***", None, Verdict(None, KILLED, "cancelled", foreign=True)),
        (
            True,
            f"{CANCELLED_AT} DUE TO TIME LIMIT ***",
            None,
            Verdict(None, KILLED, "time limit", foreign=True),
        ),
        (False, f"{CANCELLED_AT} ***", None, Verdict(None, KILLED, "cancelled", foreign=True)),
        # srun was gone before slurmstepd's line came (22.05, seldom).
        (
            True,
            "srun: Job step aborted: Waiting up to 5 seconds for job step to finish.",
            None,
            Verdict(None, KILLED, "step aborted", foreign=True),
        ),
        (
            True,
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.1",
            None,
            Verdict(M.OUT_OF_MEMORY, KILLED, OOM),
        ),
        (
            True,
            "srun: error: node1: task 0: Out Of Memory",
            None,
            Verdict(M.OUT_OF_MEMORY, KILLED, OOM),
        ),
        (True, "", StopReason.CANCEL, Verdict(M.CANCELLED, KILLED, "killed: cancelled")),
        (True, "", StopReason.TIMEOUT, Verdict(M.TIMEOUT, KILLED, "killed: time limit")),
        (True, "", StopReason.REQUEUE, Verdict(M.PENDING, None, "requeued")),
        (
            False,
            "srun: error: Unable to create step\n\nsrun: more\n",
            None,
            Verdict(
                M.FAILED,
                None,
                "it could not be started: srun: error: Unable to create step; srun: more",
                never_started=True,
            ),
        ),
        (
            False,
            "",
            None,
            Verdict(M.FAILED, None, "it could not be started: status 1", never_started=True),
        ),
    ],
)
def test_an_end_that_nobody_wrote_down(
    started: bool, log: str, asked: StopReason | None, expected: Verdict
) -> None:
    assert judge_process_end(None, started=started, srun_status=1, log=log, asked=asked) == expected


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("srun: something else", ""),
        (f"x\n{CANCELLED_AT} ***", "cancelled"),
        (f"{CANCELLED_AT} DUE TO PREEMPTION ***", "preemption"),
        (f"{CANCELLED_AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
         "node failure, see slurmctld log for details"),
        (f"{CANCELLED_AT} DUE TO JOB REQUEUE ***", "job requeue"),
        (f"{CANCELLED_AT} DUE to SIGNAL Terminated ***", "cancelled"),  # 26.05
        (f"{CANCELLED_AT} DUE to PREEMPTION ***", "preemption"),
    ],
)  # fmt: skip
def test_what_slurmstepd_said(log: str, reason: str) -> None:
    assert read_kill_reason(log) == reason


GOES_ON = PackVerdict(True, None, "")
REQUEUED = PackVerdict(False, None, "the pack is preempted or requeued")
TIMED_OUT = PackVerdict(False, M.TIMEOUT, "the pack's time limit was reached")
CANCELLED = PackVerdict(False, M.CANCELLED, "the pack was cancelled")
NODE_FAILED = PackVerdict(False, None, "the node failed")


@pytest.mark.parametrize(
    ("fields", "reason", "expected"),
    [
        (None, "cancelled", None),
        ({"JobState": "RUNNING", "PreemptTime": "None"}, "", GOES_ON),
        ({"JobState": "RUNNING"}, "cancelled", GOES_ON),
        ({"JobState": "RUNNING", "PreemptTime": "2026-01-01T00:00:00"}, "", REQUEUED),
        ({"JobState": "COMPLETING"}, "preemption", REQUEUED),
        ({"JobState": "PENDING"}, "", REQUEUED),
        ({"JobState": "COMPLETING", "Restarts": "1"}, "", REQUEUED),
        ({"JobState": "COMPLETING"}, "job requeue", REQUEUED),
        ({"JobState": "COMPLETING"}, "time limit", TIMED_OUT),
        ({"JobState": "TIMEOUT"}, "", TIMED_OUT),
        ({"JobState": "COMPLETING"}, "node failure, see slurmctld log", NODE_FAILED),
        ({"JobState": "NODE_FAIL"}, "", NODE_FAILED),
        ({"JobState": "CANCELLED"}, "", CANCELLED),
        ({"JobState": "COMPLETING"}, "cancelled", CANCELLED),
        ({"JobState": "COMPLETING"}, "", PackVerdict(False, None, "the pack is ending")),
    ],
)
def test_what_becomes_of_the_pack(
    fields: dict[str, str] | None, reason: str, expected: PackVerdict | None
) -> None:
    assert judge_pack(fields, 0, reason) == expected


@pytest.mark.parametrize(
    ("state", "reason"),
    [("TIMEOUT", "its time limit was reached"), ("CANCELLED", "it was cancelled")],
)
def test_a_job_alone_is_no_pack_to_its_user(state: str, reason: str) -> None:
    verdict = judge_pack({"JobState": state}, 0, "", is_lone=True)
    assert verdict is not None
    assert verdict.reason == reason


def test_a_restart_before_this_attempt_says_nothing() -> None:
    assert judge_pack({"JobState": "COMPLETING", "Restarts": "2"}, 2, "cancelled") == CANCELLED


@pytest.mark.parametrize("asked", [None, *StopReason])
def test_an_end_was_when_the_wrapper_says_whatever_was_asked(asked: StopReason | None) -> None:
    record = {"wait_status": 0, "foreign_signals": [], "at": 1234.5}
    judged = judge_process_end(record, started=True, srun_status=0, log="", asked=asked)
    assert judged.ended_at == 1234.5


@pytest.mark.parametrize("at", [{}, {"at": None}, {"at": "now"}])
def test_a_record_without_the_moment_says_none(at: dict[str, object]) -> None:
    record = {"wait_status": 0, "foreign_signals": [], **at}
    assert (
        judge_process_end(record, started=True, srun_status=0, log="", asked=None).ended_at is None
    )
