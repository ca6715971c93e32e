"""Members of packs as squeue and sacct list tasks of an array, each with values of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from slurm_colloc.model.member import MemberId, MemberState, SlurmJobState
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
        time_format: SLURM_TIME_FORMAT; what has no `%` in it stands for the usual one.
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
        return frozenset({self.state.value, self.compact_state})

    def queue_cell(self, name: str) -> str | None:
        """Its cell by squeue's name for --Format; None where the pack's own is right."""
        find = _QUEUE_CELLS.get(name)
        return None if find is None else find(self)

    def account_cell(self, name: str) -> str | None:
        """Its cell by sacct's name in small letters; None where the pack's own is right."""
        find = _ACCOUNT_CELLS.get(name)
        return None if find is None else find(self)

    @property
    def compact_state(self) -> str:
        """Its state as `squeue --format=%t` has it."""
        return _COMPACT.get(self.state, self.state.value)

    @property
    def index_or_none(self) -> str:
        """Its task number, `N/A` for a job by itself."""
        return "N/A" if self.is_alone else str(self.index)

    @property
    def exit_code(self) -> str:
        """`code:signal`, as sacct writes it."""
        code = self._record_value("exit_code")
        return "0:0" if code is None else str(code)

    @property
    def elapsed_s(self) -> int | None:
        """How long it has run, or ran; None where its end was not seen."""
        return compute_elapsed_s(self._member, self._now)

    @property
    def limit_s(self) -> int | None:
        """Its wall limit; None for none of its own."""
        return self._member.wall_limit_s

    @property
    def left_s(self) -> int | None:
        """What is left of it; None where it ends with its pack at the latest."""
        if self.limit_s is None:
            return None
        if self.state is not MemberState.RUNNING:
            return max(0, self.limit_s - (self.elapsed_s or 0))
        left_s = compute_left_s(self._view, self._member, self._now)
        return None if left_s is None else max(0, left_s)

    @property
    def start(self) -> str | None:
        """When it started; None before that."""
        return self._moment("started_at")

    @property
    def start_or_forecast(self) -> str | None:
        """The same; None where Slurm may foresee a start of its pack."""
        if self.start is None and not self._waits_with_pack:
            return self.end or "N/A"
        return self.start

    @property
    def end(self) -> str | None:
        """When it has ended; None before that."""
        return self._moment("ended_at")

    @property
    def end_or_limit(self) -> str | None:
        """When it has ended or will have to; None where that is when its pack does."""
        if self.is_final or (self.is_pending and not self._waits_with_pack):
            return self.end or "N/A"
        left_s = self.left_s
        if self.state is not MemberState.RUNNING or left_s is None:
            return None
        return self._write_moment(self._now + left_s)

    @property
    def _waits_with_pack(self) -> bool:
        return self.is_pending and self._view.slurm_state is SlurmJobState.PENDING

    @property
    def reason(self) -> str:
        """Why it waits, or how it ended."""
        if self.is_pending:
            return (self._member.reason or "None").replace("\n", " ")
        return _END_REASONS.get(self.state, "None")

    @property
    def reason_or_nodes(self) -> str:
        """What squeue has in its last column."""
        shows_reason = self.is_pending or self.state in _END_REASONS
        return f"({self.reason})" if shows_reason else self.nodes

    @property
    def nodes(self) -> str:
        """Its node; empty before its start."""
        node = self._record_value("node")
        return node if isinstance(node, str) else ""

    @property
    def accounted_nodes(self) -> str:
        """The same in sacct's words."""
        has_started = self._record_value("started_at") is not None
        return self.nodes if has_started else "None assigned"

    @property
    def cpus(self) -> str:
        """CPUs of its own."""
        return str(self._member.spec.plan.cpus)

    @property
    def directory(self) -> str:
        """Its working directory."""
        return self._member.spec.job.directory

    @property
    def command(self) -> str:
        """Its script and arguments."""
        job = self._member.spec.job
        return describe_command(job.script_name, job.arguments, self._view.record.submit_directory)

    def _record_value(self, name: str) -> object | None:
        record = self._member.record
        return None if record is None or self.is_pending else getattr(record, name)

    def _moment(self, name: str) -> str | None:
        at = self._record_value(name)
        return self._write_moment(at) if isinstance(at, int | float) else None

    def _write_moment(self, at: float) -> str:
        # In a form that is none of strftime's the time is at least its own.
        form = self._time_format if "%" in self._time_format else "%Y-%m-%dT%H:%M:%S"
        return time.strftime(form, time.localtime(at))


def _format_span(seconds: int | None) -> str | None:
    return None if seconds is None else format_elapsed(seconds)


def _format_clock(seconds: int | None) -> str | None:
    """`1-02:03:04` or `02:03:04`, as sacct writes it; None for None."""
    if seconds is None:
        return None
    text = format_time_limit(seconds)
    return text if "-" in text else text.zfill(len("00:00:00"))


_QUEUE_CELLS: Mapping[str, Callable[[SlurmTask], str | None]] = {
    "arrayjobid": lambda task: task.job,
    "arraytaskid": lambda task: task.index_or_none,
    "command": lambda task: task.command,
    "endtime": lambda task: task.end_or_limit,
    "jobarrayid": lambda task: task.name_for_slurm,
    "name": lambda task: task.name,
    "nodelist": lambda task: task.nodes,
    "numcpus": lambda task: task.cpus,
    # Who needs several nodes is in no pack.
    "numnodes": lambda _: "1",
    "reason": lambda task: task.reason,
    "reasonlist": lambda task: task.reason_or_nodes,
    "starttime": lambda task: task.start_or_forecast,
    "state": lambda task: task.state.value,
    "statecompact": lambda task: task.compact_state,
    "timeleft": lambda task: _format_span(task.left_s),
    "timelimit": lambda task: _format_span(task.limit_s),
    # Empty where its end was not seen: the pack's is not its own.
    "timeused": lambda task: _format_span(task.elapsed_s) or "",
    "workdir": lambda task: task.directory,
}

_ACCOUNT_CELLS: Mapping[str, Callable[[SlurmTask], str | None]] = {
    "alloccpus": lambda task: task.cpus,
    "elapsed": lambda task: _format_clock(task.elapsed_s) or "",
    "elapsedraw": lambda task: "" if task.elapsed_s is None else str(task.elapsed_s),
    "end": lambda task: task.end or "Unknown",
    "exitcode": lambda task: task.exit_code,
    "jobid": lambda task: task.name_for_slurm,
    # Slurm has no number for it, and that of its pack is another job's.
    "jobidraw": lambda task: task.name_for_slurm,
    "jobname": lambda task: task.name,
    "ncpus": lambda task: task.cpus,
    "nnodes": lambda _: "1",
    "nodelist": lambda task: task.accounted_nodes,
    "reason": lambda task: task.reason,
    "reqcpus": lambda task: task.cpus,
    "start": lambda task: task.start or "Unknown",
    "state": lambda task: task.state.value,
    "timelimit": lambda task: _format_clock(task.limit_s),
    "timelimitraw": lambda task: None if task.limit_s is None else str(task.limit_s // 60),
    "workdir": lambda task: task.directory,
}
