"""What stands in the mails of members that have ended; pure, and harmless in any mail program."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence

from slurm_colloc.model.member import FINAL_STATES, ExitCode, MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.sbatch.mail_types import format_mail_time
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_states import StateRecord

_LINE_MOST = 1000
_EVIDENCE_MOST = 5


@dataclasses.dataclass(frozen=True)
class TaskEnd:
    """How a task of an array has ended.

    Attributes:
        number: Its number.
        state: Its state.
        code: Its exit code.
        starts: How often it was started.
    """

    number: int
    state: MemberState
    code: ExitCode
    starts: int


def describe_member(shown_job_id: str, member: Member) -> str:
    """What became of a member, in a few lines.

    Each begins with a word of csub's or with blanks: mail programs take some signs at the
    beginning of a line for orders.
    """
    record, job, name = member.record, member.spec.job, member.name(shown_job_id)
    code = f", exit code {record.exit_code}" if record.exit_code is not None else ""
    where = f" on {record.node}" if record.node else ""
    lines = [
        f"{name} {shlex.join((job.script_name, *job.arguments))}",
        f"{record.state.value}{code}{where}{f': {record.reason}' if record.reason else ''}",
        *(f"  {line}" for line in record.evidence[:_EVIDENCE_MOST]),
        f"csub report {name.job} tells how fast it was",
    ]
    return "".join(f"{cut(escape_controls(line), _LINE_MOST)}\n" for line in lines)


def describe_tasks(shown_job_id: str, ends: Sequence[TaskEnd]) -> str:
    """How the tasks of an array have ended, a line each: where no summary was made in time."""
    return "".join(f"{shown_job_id}/{end.number}  {end.state.value}  {end.code}\n" for end in ends)


def describe_run_time(record: StateRecord) -> str:
    """`Run time 00:10:00`; empty for a member that was never started."""
    if record.started_at is None:
        return ""
    ended = record.ended_at if record.state in FINAL_STATES else None
    return f"Run time {format_mail_time((ended or time.time()) - record.started_at)}"
