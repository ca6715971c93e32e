"""Members of packs as squeue and sacct list tasks of an array, each with values of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property

from slurm_colloc.model.member import MemberId, MemberState
from slurm_colloc.model.sbatch.quantities import format_elapsed, format_time_limit
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.queue_rows import compute_elapsed_s, compute_left_s
from slurm_colloc.slurm.tables.job_command import describe_command

_COMPACT = {
    MemberState.PENDING: "PD",
    MemberState.RUNNING: "R",
    MemberState.COMPLETED: "CD",
    MemberState.FAILED: "F",
    MemberState.CANCELLED: "CA",
    MemberState.TIMEOUT: "TO",
    MemberState.OUT_OF_MEMORY: "OOM",
    MemberState.PREEMPTED: "PR",
    MemberState.NODE_FAIL: "NF",
}
"""squeue(1), JOB STATE CODES."""

_END_REASONS = {
    MemberState.FAILED: "NonZeroExitCode",
    MemberState.TIMEOUT: "TimeLimit",
    MemberState.OUT_OF_MEMORY: "OutOfMemory",
}
"""squeue(1), JOB REASON CODES. Of jobs with these ends squeue shows the reason where of others it
shows the nodes (`_print_job_reason_list`)."""


class SlurmTask:
    """One member.

    Args:
        view: The pack in which it is.
        member: The member there.
        name: The member's name where it was submitted: sbatch's answer and the task number.
        now: Seconds since the epoch.
        is_alone: It is a job by itself and no task of an array.
        time_format: SLURM_TIME_FORMAT; empty for the usual one.
    """

    def __init__(
        self,
        view: PackView,
        member: MemberView,
        name: MemberId,
        now: float,
        *,
        is_alone: bool = False,
        time_format: str = "",
    ) -> None:
        self._view = view
        self._member = member
        self.job = name.job
        self.index = name.number
        self.is_alone = is_alone
        self._now = now
        self._time_format = time_format
        # Slurm knows no LOST; the job of such a member is gone.
        is_lost = member.state is MemberState.LOST
        self.state = MemberState.NODE_FAIL if is_lost else member.state

    @property
    def name(self) -> str:
        """Its job name."""
        return self._member.name

    @property
    def name_for_slurm(self) -> str:
        """`4711_3`, or `4711` for a job by itself."""
        return self.job if self.is_alone else f"{self.job}_{self.index}"

    @property
    def is_pending(self) -> bool:
        """It waits."""
        return self.state is MemberState.PENDING

    @property
    def is_final(self) -> bool:
        """It will not run again."""
        return self._member.is_final

    @property
    def state_words(self) -> frozenset[str]:
        """The words by which --states names its state."""
        return frozenset({self.state.value, _COMPACT.get(self.state, self.state.value)})

    def queue_cells(self) -> Mapping[str, str]:
        """Its cells by squeue's names for --Format; what is not there is the pack's own."""
        cells = {
            "jobarrayid": self.name_for_slurm,
            "arrayjobid": self.job,
            "arraytaskid": "N/A" if self.is_alone else str(self.index),
            "state": self.state.value,
            "statecompact": _COMPACT.get(self.state, self.state.value),
            "name": self.name,
            "timeused": _format_span(self._elapsed_s),
            "starttime": self._moment("started_at"),
            "endtime": self._end(),
            "reason": self._reason,
            "reasonlist": self._reason_or_nodes(),
            "nodelist": self._nodes,
            "numnodes": "1",
            "command": self._command,
            "workdir": self._member.spec.job.directory,
            "numcpus": str(self._member.spec.plan.cpus),
        }
        if (limit_s := self._member.wall_limit_s) is not None:
            cells["timelimit"] = _format_span(limit_s)
            cells["timeleft"] = _format_span(self._left_s)
        # A start that Slurm foresees is the pack's.
        return {name: cell for name, cell in cells.items() if cell is not None}

    def account_cells(self) -> Mapping[str, str]:
        """Its cells by sacct's names in small letters; what is not there is the pack's own."""
        code = self._record_value("exit_code")
        elapsed_s = self._elapsed_s
        cells = {
            "jobid": self.name_for_slurm,
            # Slurm has no number for it, and that of its pack is another job's.
            "jobidraw": self.name_for_slurm,
            "jobname": self.name,
            "state": self.state.value,
            "exitcode": "0:0" if code is None else str(code),
            "start": self._moment("started_at") or "Unknown",
            "end": self._moment("ended_at") or "Unknown",
            "elapsed": _format_clock(elapsed_s or 0),
            "elapsedraw": str(elapsed_s or 0),
            "reason": self._reason,
            "workdir": self._member.spec.job.directory,
            "ncpus": str(self._member.spec.plan.cpus),
            "alloccpus": str(self._member.spec.plan.cpus),
            "nnodes": "1",
            "reqcpus": str(self._member.spec.plan.cpus),
            "nodelist": self._nodes if self._has_started else "None assigned",
        }
        if (limit_s := self._member.wall_limit_s) is not None:
            cells["timelimit"] = _format_clock(limit_s)
            cells["timelimitraw"] = str(limit_s // 60)
        return cells

    @property
    def _has_started(self) -> bool:
        return not self.is_pending and self._record_value("started_at") is not None

    def _record_value(self, name: str) -> object | None:
        record = self._member.record
        return None if record is None or self.is_pending else getattr(record, name)

    @cached_property
    def _elapsed_s(self) -> int | None:
        return compute_elapsed_s(self._member, self._now)

    @cached_property
    def _left_s(self) -> int:
        limit_s = self._member.wall_limit_s or 0
        if self.state is not MemberState.RUNNING:
            return max(0, limit_s - (self._elapsed_s or 0))
        return max(0, compute_left_s(self._view, self._member, self._now) or 0)

    def _end(self) -> str | None:
        if self.is_final:
            return self._moment("ended_at") or "N/A"
        if self.state is MemberState.RUNNING and self._member.wall_limit_s is not None:
            return self._write_moment(self._now + self._left_s)
        return None

    def _moment(self, name: str) -> str | None:
        at = self._record_value(name)
        return self._write_moment(at) if isinstance(at, int | float) else None

    def _write_moment(self, at: float) -> str | None:
        form = self._time_format
        if form in ("", "standard"):
            form = "%Y-%m-%dT%H:%M:%S"
        return time.strftime(form, time.localtime(at)) if "%" in form else None

    @property
    def _reason(self) -> str:
        if self.is_pending:
            return (self._member.reason or "None").replace("\n", " ")
        return _END_REASONS.get(self.state, "None")

    def _reason_or_nodes(self) -> str:
        shows_reason = self.is_pending or self.state in _END_REASONS
        return f"({self._reason})" if shows_reason else self._nodes

    @property
    def _nodes(self) -> str:
        node = self._record_value("node")
        return node if isinstance(node, str) else ""

    @cached_property
    def _command(self) -> str:
        job = self._member.spec.job
        return describe_command(job.script_name, job.arguments, self._view.record.submit_directory)


def _format_span(seconds: int | None) -> str | None:
    return None if seconds is None else format_elapsed(seconds)


def _format_clock(seconds: int) -> str:
    """`1-02:03:04` or `02:03:04`, as sacct writes it."""
    text = format_time_limit(seconds)
    return text.zfill(len("00:00:00")) if "-" not in text else text
