"""Members of packs as squeue and sacct list tasks of an array, each with values of its own.

Also: the cells of squeue's and sacct's rows that a member of a pack has of its own; a task's record
of `scontrol show job`, made of that of its pack: as text and as JSON.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_colloc.model.member import MemberId, MemberState, Selection, SlurmJobState
from slurm_colloc.model.quantities import format_elapsed, format_mb
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.queue_rows import compute_elapsed_s, compute_left_s
from slurm_colloc.report.show_view import find_input_path, find_log_paths
from slurm_colloc.slurm.scontrol_records import (
    describe_command,
    find_field,
    format_clock,
    rename_job,
    replace_fields,
)

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
        self.address = name
        # One that has joined a pack is a job by itself, by the number that its call printed.
        self.job = name.joined_as or name.job
        self.index = name.number
        self.is_alone = is_alone or bool(name.joined_as)
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

    def is_meant(self, selection: Selection) -> bool:
        """Whether a selection names it."""
        return selection.job == self.address.job and selection.means(self.address)

    @property
    def own_id(self) -> str | None:
        """Its SLURM_JOB_ID; None where that is its pack's."""
        job = self._member.spec.job
        return job.own_id or (self.job if self.is_alone or job.is_alone_in_its_id else None)

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

    def share_tres(self, cell: str) -> str:
        """What its pack has of Slurm's resources (`cpu=8,mem=2G,node=1`), with its own amounts."""
        own = {"cpu": self.cpus, "mem": self.host_memory, "gres/gpu": self._gpus}
        found = dict(part.partition("=")[::2] for part in cell.split(","))
        # Slurm bills CPUs where the site has set no weights.
        own["billing"] = self.cpus if found.get("billing") == found.get("cpu") else None
        return ",".join(f"{key}={own.get(key) or text}" for key, text in found.items())

    def account_state(self, cell: str) -> str:
        """Its state in sacct's words, which name the user who has cancelled it.

        Args:
            cell: That of its pack.
        """
        if self.state is not MemberState.CANCELLED:
            return self.state.value
        return cell if cell.startswith("CANCELLED by ") else f"CANCELLED by {os.geteuid()}"

    @property
    def compact_state(self) -> str:
        """Its state as `squeue --format=%t` has it."""
        return _COMPACT.get(self.state, self.state.value)

    @property
    def exit_code(self) -> str:
        """`code:signal` as sacct writes it; only the script of a job that was ended has one."""
        is_cut = self.state in (MemberState.CANCELLED, MemberState.TIMEOUT)
        return "0:0" if is_cut else self.script_exit_code

    @property
    def script_exit_code(self) -> str:
        """The same of its batch script as a step."""
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
        if self.start is None and not self.waits_with_pack:
            return self.end or "N/A"
        return self.start

    @property
    def end(self) -> str | None:
        """When it has ended; None before that."""
        return self._moment("ended_at")

    @property
    def end_or_limit(self) -> str | None:
        """When it has ended or will have to; None where that is when its pack does."""
        if self.is_final or (self.is_pending and not self.waits_with_pack):
            return self.end or "N/A"
        left_s = self.left_s
        if self.state is not MemberState.RUNNING or left_s is None:
            return None
        return self._write_moment(self._now + left_s)

    @property
    def waits_with_pack(self) -> bool:
        """It waits, and Slurm has not started its pack."""
        return self.is_pending and self._view.slurm_state is SlurmJobState.PENDING

    @property
    def reason_word(self) -> str | None:
        """Why it waits, or how it ended, in one of Slurm's words; None where its pack's is right.

        Programs split what Slurm says at spaces, and look its words up.
        """
        if not self.is_pending:
            return _END_REASONS.get(self.state, "None")
        if self._member.is_held:
            return "JobHeldUser"
        return None if self.waits_with_pack else "Resources"

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        starts = 0 if self._member.record is None else self._member.record.starts
        return max(0, starts - 1)

    @property
    def started_at(self) -> int | None:
        """When it started, in seconds since the epoch; None before that."""
        at = self._record_value("started_at")
        return int(at) if isinstance(at, int | float) else None

    @property
    def ended_at(self) -> int | None:
        """When it has ended or will have to; None where that is when its pack does."""
        at = self._record_value("ended_at")
        if isinstance(at, int | float):
            return int(at)
        running_s = None if self.state is not MemberState.RUNNING else self.left_s
        return None if running_s is None else int(self._now + running_s)

    @property
    def reason_or_nodes(self) -> str | None:
        """What squeue has in its last column; None where its pack's is right."""
        if not self.is_pending and self.state not in _END_REASONS:
            return self.nodes
        return None if self.reason_word is None else f"({self.reason_word})"

    @property
    def nodes(self) -> str:
        """Its node; empty before its start."""
        node = self._record_value("node")
        return node if isinstance(node, str) else ""

    @property
    def cpus(self) -> str:
        """CPUs of its own."""
        return str(self._member.spec.plan.cpus)

    @property
    def host_memory(self) -> str | None:
        """Host memory of its own, `1500M`; None for no limit of its own."""
        memory_mb = self._member.spec.plan.host_memory_mb
        return None if memory_mb is None else format_mb(memory_mb)

    @property
    def _gpus(self) -> str | None:
        gpus = self._member.spec.job.gpus
        return str(gpus) if gpus else None

    @property
    def comment(self) -> str:
        """The user's comment, without what csub adds to that of the pack."""
        return dict(self._member.spec.job.group).get("comment", "")

    @property
    def input(self) -> str:
        """The file that its script reads."""
        return find_input_path(self._view, self._member) or "/dev/null"

    @property
    def output(self) -> str:
        """The file of its standard output."""
        return find_log_paths(self._view, self._member)[0]

    @property
    def error(self) -> str:
        """The file of its standard error."""
        output, error = find_log_paths(self._view, self._member)
        return error or output

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
        form = self._time_format
        if form == "relative":
            form = choose_relative_form(time.localtime(at), time.localtime(self._now))
        elif "%" not in form:
            # In a form that is none of strftime's the time is at least its own.
            form = "%Y-%m-%dT%H:%M:%S"
        return time.strftime(form, time.localtime(at))


def choose_relative_form(at: time.struct_time, now: time.struct_time) -> str:
    """As Slurm does for SLURM_TIME_FORMAT=relative (`_relative_date_fmt`)."""
    days = 1000 * (at.tm_year - now.tm_year) + at.tm_yday - now.tm_yday
    if days in (-1, 0, 1):
        return {-1: "Ystday %H:%M", 0: "%H:%M:%S", 1: "Tomorr %H:%M"}[days]
    if not -365 <= days <= 365:
        return "%-d %b %Y"
    return "%a %H:%M" if 1 < days <= 6 else "%-d %b %H:%M"


# ---- The cells of squeue's and sacct's rows that a member of a pack has of its own ---------------

_SUMMED = ("ave", "max", "min", "tresusage")
_COUNTED = frozenset(
    {"totalcpu", "usercpu", "systemcpu", "cputime", "cputimeraw", "consumedenergy",
     "consumedenergyraw"}
)  # fmt: skip
_OF_STEPS = frozenset({"jobid", "jobidraw"})
_OF_JOBS = frozenset({"jobname", "reason", "reqmem", "timelimit", "timelimitraw"})
_RESOURCES = frozenset({"alloctres", "reqtres"})
_UNKNOWN = frozenset({"derivedexitcode"})
"""What a task's own steps would tell."""

_OF_SCRIPTS = frozenset({"state", "exitcode", "start", "end", "elapsed", "elapsedraw"})
_EXTERN = "extern"
"""The step of what comes to a job by other ways; it ends well whatever becomes of the job."""


def find_queue_cell(task: SlurmTask, name: str) -> str | None:
    """A task's cell by squeue's name for --Format; None where the pack's own is right."""
    find = _QUEUE_CELLS.get(name)
    return None if find is None else find(task)


def sort_tasks(tasks: Sequence[SlurmTask], order: str) -> list[SlurmTask]:
    """The tasks of one pack in the order that squeue's --sort asks for.

    Args:
        tasks: They.
        order: Letters of --format between commas, each with `-` before it for the other way; of
            those in which tasks of a pack do not differ, nothing follows.
    """
    found = list(tasks)
    for part in reversed(order.split(",")):
        find = _ORDER.get(part.strip().lstrip("+-"))
        if find is not None:
            found.sort(key=find, reverse=part.strip().startswith("-"))
    return found


_ORDER: Mapping[str, Callable[[SlurmTask], tuple[object, ...]]] = {
    "i": lambda task: (len(task.job), task.job, task.index),
    "j": lambda task: (task.name,),
    "l": lambda task: (task.limit_s or 0,),
    "L": lambda task: (task.left_s or 0,),
    "M": lambda task: (task.elapsed_s or 0,),
    "S": lambda task: (-(task.elapsed_s or 0),),
    "t": lambda task: (not task.is_pending, task.state.value),
    "T": lambda task: (not task.is_pending, task.state.value),
}


def choose_account_cell(task: SlurmTask, name: str, cell: str, step: str) -> str:
    """A task's cell in a row of sacct's.

    Args:
        task: The task.
        name: sacct's name of the field, in small letters.
        cell: What sacct has of the pack.
        step: The step whose row it is; empty for that of the job.
    """
    if (step and name in _OF_JOBS) or (step == _EXTERN and name in _OF_SCRIPTS):
        return cell
    if name == "state" and step and task.state is MemberState.TIMEOUT:
        # The script is cancelled at a time limit.
        return MemberState.CANCELLED.value
    if name == "state":
        return task.state.value if step else task.account_state(cell)
    if name in _RESOURCES:
        return task.share_tres(cell) if cell else ""
    if name == "exitcode" and step:
        return task.script_exit_code
    find = _ACCOUNT_CELLS.get(name)
    value = None if find is None else find(task)
    if value is not None:
        return f"{value}.{step}" if step and name in _OF_STEPS else value
    is_of_pack = name.startswith(_SUMMED) or name in _COUNTED or name in _UNKNOWN
    return "" if is_of_pack else cell


def _format_span(seconds: int | None) -> str | None:
    return None if seconds is None else format_elapsed(seconds)


_QUEUE_CELLS: Mapping[str, Callable[[SlurmTask], str | None]] = {
    "arrayjobid": lambda task: task.job,
    "arraytaskid": lambda task: "N/A" if task.is_alone else str(task.index),
    "command": lambda task: task.command,
    "comment": lambda task: task.comment or "(null)",
    "cpus-per-task": lambda task: task.cpus,
    "endtime": lambda task: task.end_or_limit,
    "jobarrayid": lambda task: task.name_for_slurm,
    "jobid": lambda task: task.own_id,
    "mincpus": lambda task: task.cpus,
    "minmemory": lambda task: task.host_memory,
    "name": lambda task: task.name,
    "nodelist": lambda task: task.nodes,
    "numcpus": lambda task: task.cpus,
    # Who needs several nodes is in no pack.
    "numnodes": lambda _: "1",
    "reason": lambda task: task.reason_word,
    "reasonlist": lambda task: task.reason_or_nodes,
    "starttime": lambda task: task.start_or_forecast,
    "state": lambda task: task.state.value,
    "statecompact": lambda task: task.compact_state,
    "stderr": lambda task: task.error,
    "stdin": lambda task: task.input,
    "stdout": lambda task: task.output,
    "timeleft": lambda task: _format_span(task.left_s),
    "timelimit": lambda task: _format_span(task.limit_s),
    # Empty where its end was not seen: the pack's is not its own.
    "timeused": lambda task: _format_span(task.elapsed_s) or "",
    "workdir": lambda task: task.directory,
}

_ACCOUNT_CELLS: Mapping[str, Callable[[SlurmTask], str | None]] = {
    "alloccpus": lambda task: task.cpus,
    "elapsed": lambda task: format_clock(task.elapsed_s) or "",
    "elapsedraw": lambda task: "" if task.elapsed_s is None else str(task.elapsed_s),
    "end": lambda task: task.end or "Unknown",
    "exitcode": lambda task: task.exit_code,
    "jobid": lambda task: task.name_for_slurm,
    "jobidraw": lambda task: task.own_id or task.name_for_slurm,
    "jobname": lambda task: task.name,
    "ncpus": lambda task: task.cpus,
    "nnodes": lambda _: "1",
    "nodelist": lambda task: "None assigned" if task.started_at is None else task.nodes,
    # Of a job that has begun sacct knows no reason.
    "reason": lambda task: task.reason_word if task.is_pending else "None",
    "reqcpus": lambda task: task.cpus,
    "reqmem": lambda task: task.host_memory,
    "start": lambda task: task.start or "Unknown",
    "timelimit": lambda task: format_clock(task.limit_s),
    "timelimitraw": lambda task: None if task.limit_s is None else str(task.limit_s // 60),
    "workdir": lambda task: task.directory,
}


# ---- A task's record of `scontrol show job`, made of that of its pack: as text and as JSON -------
#
# What Slurm knows of the pack alone, such as priority and partition, stays as it is.


def write_record(task: SlurmTask, record: str) -> str:
    """The record of a task.

    Args:
        task: The task.
        record: What scontrol has of its pack.
    """
    ids = f"JobId={task.own_id or task.name_for_slurm}"
    if not task.is_alone:
        ids += f" ArrayJobId={task.job} ArrayTaskId={task.index}"
    has_begun = bool(task.nodes)
    waits = task.is_pending and not task.waits_with_pack
    new = {
        "JobState": task.state.value,
        "Reason": task.reason_word,
        "Restarts": str(task.restarts),
        "ExitCode": task.script_exit_code,
        "RunTime": format_clock(0 if task.is_pending else task.elapsed_s) or "Unknown",
        "TimeLimit": format_clock(task.limit_s),
        "StartTime": task.start or ("Unknown" if waits else None),
        "EndTime": "Unknown" if waits else task.end_or_limit,
        "NodeList": task.nodes if has_begun or waits else None,
        "BatchHost": task.nodes if has_begun else None,
        "NumNodes": "1",
        "NumCPUs": task.cpus,
        "NumTasks": "1",
        "CPUs/Task": task.cpus,
        "MinCPUsNode": task.cpus,
        "MinMemoryNode": task.host_memory,
        "Command": task.command,
        "WorkDir": task.directory,
        # Slurm ends it with a space.
        "Comment": f"{task.comment} ",
        "StdErr": task.error,
        "StdIn": task.input,
        "StdOut": task.output,
    }
    for name in ("TRES", "ReqTRES", "AllocTRES"):
        if cell := find_field(record, name):
            new[name] = task.share_tres(cell)
    lines = [
        line
        for line in replace_fields(rename_job(record, ids), new).split("\n")
        # scontrol has these lines only where there is something to say.
        if line != "   Comment= " and not (waits and line.startswith("   BatchHost="))
    ]
    return "\n".join(lines)


def write_json_record(task: SlurmTask, job: dict[str, Any]) -> dict[str, Any]:
    """The same of a job in `scontrol --json`; releases differ in the shape of values.

    Args:
        task: The task.
        job: What scontrol has of its pack. `job_id` stays that of the pack, which is a number.
    """
    waits = task.is_pending and not task.waits_with_pack
    values: dict[str, Any] = {
        "array_job_id": 0 if task.is_alone else int(task.job),
        "array_task_id": None if task.is_alone else task.index,
        "array_task_string": "",
        "name": task.name,
        "job_state": task.state.value,
        "state_reason": task.reason_word,
        "restart_cnt": task.restarts,
        "start_time": 0 if waits else task.started_at,
        "end_time": 0 if waits else task.ended_at,
        "time_limit": None if task.limit_s is None else task.limit_s // 60,
        "nodes": task.nodes if task.nodes or waits else None,
        "batch_host": task.nodes if task.nodes or waits else None,
        "cpus": int(task.cpus),
        "cpus_per_task": int(task.cpus),
        "minimum_cpus_per_node": int(task.cpus),
        "command": task.command,
        "comment": task.comment,
        "current_working_directory": task.directory,
        "standard_error": task.error,
        "standard_input": task.input,
        "standard_output": task.output,
    }
    for name in ("tres_req_str", "tres_alloc_str"):
        if cell := job.get(name):
            values[name] = task.share_tres(cell)
    told = dict(job)
    for name in job.keys() & values.keys():
        value = values[name]
        if value is not None or name == "array_task_id":
            told[name] = _shape_like(job[name], value)
    code, _, number = task.script_exit_code.partition(":")
    if isinstance(job.get("exit_code"), dict):
        told["exit_code"] = _describe_exit(job["exit_code"], int(code), int(number))
    elif "exit_code" in job:
        told["exit_code"] = int(code) << 8 | int(number)
    return told


def _shape_like(before: Any, value: Any) -> Any:
    """A value in the form in which this release has it."""
    if isinstance(before, list):
        return [value]
    if isinstance(before, dict) and "number" in before:
        is_set = value is not None
        known = {"set": is_set, "infinite": False, "number": value or 0}
        return {key: known.get(key, old) for key, old in before.items()}
    return value


def _describe_exit(before: dict[str, Any], code: int, number: int) -> dict[str, Any]:
    told = dict(before)
    status = "SIGNALED" if number else "ERROR" if code else "SUCCESS"
    if "status" in before:
        told["status"] = _shape_like(before["status"], status)
    if "return_code" in before:
        told["return_code"] = _shape_like(before["return_code"], code)
    if isinstance(before.get("signal"), dict):
        told["signal"] = {
            key: _shape_like(old, number) if key in ("id", "signal_id") else ""
            for key, old in before["signal"].items()
        }
    return told
