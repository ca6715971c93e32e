"""The cells of squeue's and sacct's rows that a member of a pack has of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.model.sbatch.quantities import format_elapsed, format_time_limit
from slurm_colloc.report.slurm_tasks import SlurmTask

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
    if name == "state":
        return task.script_state if step else task.account_state(cell)
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


def _format_clock(seconds: int | None) -> str | None:
    """`1-02:03:04` or `02:03:04`, as sacct writes it."""
    if seconds is None:
        return None
    text = format_time_limit(seconds)
    return text if "-" in text else text.zfill(len("00:00:00"))


_QUEUE_CELLS: Mapping[str, Callable[[SlurmTask], str | None]] = {
    "arrayjobid": lambda task: task.job,
    "arraytaskid": lambda task: task.index_or_none,
    "command": lambda task: task.command,
    "comment": lambda task: task.comment or "(null)",
    "cpus-per-task": lambda task: task.cpus,
    "endtime": lambda task: task.end_or_limit,
    "jobarrayid": lambda task: task.name_for_slurm,
    # A task of an array has no number of its own.
    "jobid": lambda task: task.job if task.is_alone else None,
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
    # Of a job that has begun sacct knows no reason.
    "reason": lambda task: task.reason_word if task.is_pending else "None",
    "reqcpus": lambda task: task.cpus,
    "reqmem": lambda task: task.host_memory,
    "start": lambda task: task.start or "Unknown",
    "timelimit": lambda task: _format_clock(task.limit_s),
    "timelimitraw": lambda task: None if task.limit_s is None else str(task.limit_s // 60),
    "workdir": lambda task: task.directory,
}
