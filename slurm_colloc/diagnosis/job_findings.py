"""What became of the tiny job, judged; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_colloc.diagnosis.findings import Finding, green, red, yellow
from slurm_colloc.diagnosis.login_findings import NO_ASK_PROBLEM, AskProblem
from slurm_colloc.model.examination import Examination
from slurm_colloc.report.words.waiting_reasons import find_reason, normalise_reason

_ASK = "ask the administrators"

NO_PYTHON, NO_STATE, NO_WRITING = 5, 6, 7
"""Exit statuses of templates/doctor.sbatch.j2."""

NEVER = frozenset(
    {
        "AssociationTimeLimit", "BadConstraints", "DeadLine", "DependencyNeverSatisfied",
        "InvalidAccount", "InvalidQOS", "JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue",
        "MaxMemPerLimit", "NodeDown", "PartitionDown", "PartitionInactive", "PartitionNodeLimit",
        "PartitionTimeLimit", "QOSNotAllowed", "QOSTimeLimit", "ReqNodeNotAvail",
        "ReservationDeleted", "launch_failed_requeued_held",
    }
)  # fmt: skip
"""Reasons that do not go away by waiting for other jobs to end."""


@dataclass(frozen=True)
class DoctorQuestion:
    """What the job was to find out.

    Attributes:
        version: Of csub here.
        python: The interpreter of the nodes.
        place: Where the node was to write its answer.
        state_shared: That is the state directory; otherwise the directory of the call.
        gpus: How many GPUs the job asked for.
        launcher: The setting `launcher`.
        share: The setting `share`.
        timeout_s: How long it was waited for.
    """

    version: str
    python: str
    place: str
    state_shared: bool = True
    gpus: int = 1
    launcher: str = "auto"
    share: str = "auto"
    timeout_s: float = 120.0


@dataclass(frozen=True)
class JobOutcome:
    """What became of the job.

    Attributes:
        job_id: Its id; empty where there was none.
        trouble: Why it could not be submitted or asked for.
        state: Slurm's word for its state at the end; empty where Slurm had forgotten it.
        reason: Slurm's reason at the end.
        node: Where it ran; empty where it did not.
        exit_code: Its exit status; None where it is not known.
        took_s: How long it was waited for.
        gave_up: It had not ended, and was cancelled.
        wrote: The node could write its answer.
        python: What `python -V` said there.
        errors: The last words of the program that looked.
        seen: What it saw; None where that did not come back.
    """

    job_id: str = ""
    trouble: AskProblem = NO_ASK_PROBLEM
    state: str = ""
    reason: str = ""
    node: str = ""
    exit_code: int | None = None
    took_s: float = 0.0
    gave_up: bool = False
    wrote: bool = False
    python: str = ""
    errors: str = ""
    seen: Examination | None = None


def judge_job(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """A job of the user's starts and ends."""
    if outcome.trouble:
        return red(
            "job",
            outcome.trouble.message,
            outcome.trouble.hint
            or "add what this site requires: --account, --partition, --qos, --gres",
            job_id=outcome.job_id or None,
        )
    values: dict[str, object] = {
        "job_id": outcome.job_id,
        "state": outcome.state or None,
        "reason": outcome.reason or None,
        "node": outcome.node or None,
        "exit_code": outcome.exit_code,
        "took_s": round(outcome.took_s, 1),
    }
    name = f"job {outcome.job_id}"
    if outcome.gave_up:
        return _judge_given_up(outcome, asked, name, values)
    is_known = outcome.exit_code in (NO_PYTHON, NO_STATE, NO_WRITING) or outcome.wrote
    if outcome.seen is not None or (is_known and outcome.state in ("FAILED", "COMPLETED", "")):
        return green("job", f"{name} ran on {outcome.node or 'a node'}", **values)
    how = outcome.state or "in a way that Slurm no longer knows"
    where = f" on {outcome.node}" if outcome.node else ""
    code = f" with exit status {outcome.exit_code}" if outcome.exit_code else ""
    why = outcome.reason.replace("_", " ") if outcome.reason not in ("", "None") else ""
    return red(
        "job",
        f"{name} ended {how}{code}{where}{f' ({why})' if why else ''} before its checks",
        f"try again, on another node with --nodelist; if it fails again, {_ASK} and name the job",
        **values,
    )


def _judge_given_up(
    outcome: JobOutcome, asked: DoctorQuestion, name: str, values: dict[str, object]
) -> Finding:
    after = f"{outcome.took_s:.0f} s"
    if outcome.state != "PENDING":
        return red(
            "job",
            f"{name} is {outcome.state or 'not over'} after {after}, and was cancelled",
            f"give it more time with --timeout; if that does not help, {_ASK} to look at "
            f"{outcome.node or 'the node'}",
            **values,
        )
    word = "" if outcome.reason in ("None", "(null)") else normalise_reason(outcome.reason)
    reason = find_reason(word)
    meaning = f"{reason.meaning} ({word})" if reason else f"Slurm's reason is {word or 'not known'}"
    what = f"{name} did not start within {after}, and was cancelled: {meaning}"
    advice = reason.advice if reason else ""
    if is_hopeless(outcome.reason):
        other = "name another --partition, --account, --qos, --gres or --nodelist"
        return red("job", what, f"{advice}; or {other}" if advice else other, **values)
    return yellow(
        "job",
        what,
        "nothing is known about the nodes",
        f"wait longer with --timeout={2 * asked.timeout_s:.0f}, or look where there is room: "
        "sinfo shows idle nodes, --partition and --nodelist name them",
        **values,
    )


def is_hopeless(reason: str) -> bool:
    """A job with this reason does not start by waiting."""
    return re.split(r"[,:( ]", normalise_reason(reason), maxsplit=1)[0] in NEVER
