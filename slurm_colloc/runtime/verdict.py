"""How a member ended: from its exit record, srun's words and what the runner had done; pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_colloc.model.member import ExitCode, ExitRecord, MemberState, SlurmJobState


class StopReason(enum.Enum):
    """Why the runner itself is ending a member."""

    CANCEL = "cancelled"
    TIMEOUT = "time limit"
    REQUEUE = "requeued"
    FAULT = "stuck after a fault on the GPU"
    PROBED = "its probe window is over"


@dataclass(frozen=True)
class Verdict:
    """How a member ended.

    Attributes:
        state: Its new state; None where only Slurm can tell (see `foreign`).
        exit_code: How the script ended; None where that was not seen.
        reason: In words.
        foreign: Something other than the runner ended it or signalled it: the pack may be
            coming to its end, and nothing must be started before Slurm shows that it goes on.
        never_started: The step or process did not come up at all.
        without_script: Its wrapper came up, and could not start its script.
        too_late: Slurm starts no step any more because the pack's time is up, although it may
            show the pack running for up to a minute more.
        ended_at: When it ended, in seconds since the epoch; None where nothing says it.
    """

    state: MemberState | None
    exit_code: ExitCode | None
    reason: str = ""
    foreign: bool = False
    never_started: bool = False
    without_script: bool = False
    too_late: bool = False
    ended_at: float | None = None


def judge_process_end(
    record: Mapping[str, Any] | None,
    *,
    started: bool,
    srun_status: int,
    log: str,
    asked: StopReason | None,
) -> Verdict:
    """Judge how the processes of a member ended.

    Args:
        record: The wrapper's exit record; None if it could write none.
        started: The wrapper had come up.
        srun_status: Exit status of srun or of the wrapper, negative for a signal.
        log: What srun wrote.
        asked: What the runner had asked for.
    """
    if record is None:
        return _judge_without_record(started, srun_status, log, asked)
    # The record may have waited for room on a full disk: its file says nothing of the time.
    written = ExitRecord.parse(record)
    return dataclasses.replace(_judge_record(written, asked), ended_at=written.ended_at)


def _judge_record(record: ExitRecord, asked: StopReason | None) -> Verdict:
    code = record.code
    if asked is StopReason.CANCEL:
        return Verdict(MemberState.CANCELLED, code, "cancelled")
    if asked is StopReason.PROBED:
        return Verdict(MemberState.CANCELLED, code, asked.value)
    if asked is StopReason.TIMEOUT:
        return Verdict(MemberState.TIMEOUT, code, "its time limit was reached")
    if asked is StopReason.REQUEUE:
        # As after a preemption: how its script ended at the signal does not count.
        return Verdict(MemberState.PENDING, code, asked.value)
    if asked is StopReason.FAULT:
        return Verdict(MemberState.FAILED, code, asked.value)
    if record.oom_kills:
        return Verdict(record.state, code, record.reason)
    return Verdict(
        record.state,
        code,
        record.reason,
        foreign=record.was_signalled,
        without_script=bool(record.problem),
    )


_TOO_LATE = ("completing or completed", "has expired")
"""srun's words where it is refused a step of a job that is over (22.05 to 26.05)."""


def _judge_without_record(
    started: bool, srun_status: int, log: str, asked: StopReason | None
) -> Verdict:
    folded = log.lower()
    if "out of memory" in folded or "oom-kill" in folded or "oom_kill" in folded:
        return Verdict(
            MemberState.OUT_OF_MEMORY,
            ExitCode(0, 9),
            "it used more host memory than its limit",
            never_started=not started,
        )
    if asked is StopReason.REQUEUE:
        return Verdict(MemberState.PENDING, None, asked.value)
    if asked is not None:
        if asked is StopReason.FAULT:
            return Verdict(MemberState.FAILED, ExitCode(0, 9), asked.value)
        state = MemberState.TIMEOUT if asked is StopReason.TIMEOUT else MemberState.CANCELLED
        return Verdict(state, ExitCode(0, 9), f"killed: {asked.value}")
    is_too_late = any(words in folded for words in _TOO_LATE)
    cancelled_by_slurm = "cancelled at" in folded or is_too_late
    if not started and not cancelled_by_slurm:
        words = "; ".join(line.strip() for line in log.splitlines() if line.strip())
        return Verdict(
            MemberState.FAILED,
            None,
            f"it could not be started: {words or f'status {srun_status}'}",
            never_started=True,
        )
    if not started and is_too_late:
        # slurmctld compares with the job's end time, and looks for such jobs every 30 s
        # (step_mgr.c, job_mgr.c; 22.05 to 26.05).
        return Verdict(None, None, foreign=True, too_late=True)
    # Its wrapper is gone without a word: the whole step was killed from outside.
    # slurmstepd's line is lost where srun, told by slurmctld to end, is gone before it.
    told_to_end = "step aborted" if "job step aborted" in folded else ""
    return Verdict(None, ExitCode(0, 9), read_kill_reason(log) or told_to_end, foreign=True)


def read_kill_reason(log: str) -> str:
    """What slurmstepd said when it ended the step: `time limit`, `preemption`, ..., or ''.

    A plain cancel is `... CANCELLED AT <time> ***` up to 24.11, and ends with `DUE to SIGNAL
    Terminated` in 26.05.
    """
    for line in log.splitlines():
        if "CANCELLED AT" in line:
            _, separator, reason = line.lower().partition("due to")
            reason = reason.strip(" *")
            return "cancelled" if not separator or reason.startswith("signal") else reason
    return ""


@dataclass(frozen=True)
class PackVerdict:
    """What becomes of the pack after something foreign ended a member of it.

    Attributes:
        goes_on: Slurm shows the pack running, not about to end.
        state: What its unfinished members become; None where a later attempt, or Slurm's last
            word, decides.
        reason: In words.
    """

    goes_on: bool
    state: MemberState | None
    reason: str


def judge_pack(
    fields: Mapping[str, str] | None, restarts: int, kill_reason: str, *, is_lone: bool = False
) -> PackVerdict | None:
    """Judge the pack from `scontrol show job`.

    Args:
        fields: The job's fields; None if Slurm did not answer.
        restarts: Slurm's restart count when this attempt began.
        kill_reason: From `read_kill_reason`, over all members.
        is_lone: Its only member is the whole job, and no pack to its user.

    Returns:
        The verdict, or None if it cannot be told yet.
    """
    if fields is None:
        return None
    state = SlurmJobState.parse(fields.get("JobState", ""))
    preempted = fields.get("PreemptTime", "None") not in ("None", "(null)", "Unknown", "")
    if state is SlurmJobState.RUNNING and not preempted:
        return PackVerdict(True, None, "")
    requeued = state is SlurmJobState.PENDING or int(fields.get("Restarts", "0")) > restarts
    if preempted or requeued or "preempt" in kill_reason or "requeue" in kill_reason:
        return PackVerdict(False, None, "the pack is preempted or requeued")
    if "time limit" in kill_reason or state is SlurmJobState.TIMEOUT:
        whose = "its" if is_lone else "the pack's"
        return PackVerdict(False, MemberState.TIMEOUT, f"{whose} time limit was reached")
    if "node failure" in kill_reason or state is SlurmJobState.NODE_FAIL:
        return PackVerdict(False, None, "the node failed")
    if kill_reason == "cancelled" or state is SlurmJobState.CANCELLED:
        what = "it" if is_lone else "the pack"
        return PackVerdict(False, MemberState.CANCELLED, f"{what} was cancelled")
    return PackVerdict(False, None, "the pack is ending")
