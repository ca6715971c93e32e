"""A task's record of `scontrol show job`, made of that of its pack: as text and as JSON.

What Slurm knows of the pack alone, such as priority and partition, stays as it is.
"""

from __future__ import annotations

from typing import Any

from slurm_colloc.report.slurm_tasks import SlurmTask
from slurm_colloc.slurm.tables.job_records import (
    find_field,
    format_clock,
    rename_job,
    replace_fields,
)


def write_record(task: SlurmTask, record: str) -> str:
    """The record of a task.

    Args:
        task: The task.
        record: What scontrol has of its pack.
    """
    ids = f"JobId={task.name_for_slurm}"
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
