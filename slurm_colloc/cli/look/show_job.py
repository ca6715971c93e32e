"""`scontrol show job` with tasks of packs: each has a record, all else is as scontrol says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_colloc.cli.handed_to_slurm import find_command
from slurm_colloc.cli.look.packed_tasks import JobChoice, PackedTasks
from slurm_colloc.cli.session import Session
from slurm_colloc.report.lines.task_records import write_json_record, write_record
from slurm_colloc.report.slurm_tasks import SlurmTask
from slurm_colloc.runtime.programs.own_answers import read_output
from slurm_colloc.slurm.tables.job_records import find_field, join_records, name_job, split_records
from slurm_colloc.slurm.tables.scontrol_words import ScontrolCall


def list_job_records(session: Session, call: ScontrolCall) -> list[str] | None:
    """The lines of the answer; None where scontrol is to answer alone.

    Args:
        session: The state.
        call: What was asked.
    """
    choice = JobChoice(session, ",".join(call.ids) or None)
    asked = choice.translate(",".join(call.ids)).split(",") if call.ids else [""]
    if call.ids:
        # An array's answer has all of its elements.
        asked = [one for one in asked if "_" not in one or one.partition("_")[0] not in asked]
    is_json = "json" in call.options
    options = _drop_oneliner(call.words)
    answers = []
    for one in asked:
        words = ["scontrol", *options, "show", "job", *filter(None, [one])]
        is_silent = bool(call.ids)
        status, text = read_output(find_command("scontrol"), words, os.environ, is_silent=is_silent)
        if not status and text:
            answers.append(text)
    if is_json:
        return _fill_json(session, choice, answers)
    records = [record for text in answers for record in split_records(text) if record.strip()]
    told = list(_fill(session, choice, records))
    if not told:
        return None
    is_one_line = "o" in call.options
    text = join_records([*told, ""], is_one_line=is_one_line)
    return text.removesuffix("\n").split("\n")


def _fill(session: Session, choice: JobChoice, records: Sequence[str]) -> Iterator[str]:
    names = [name_job(record) for record in records]
    tasks = _find_tasks(session, choice, names)
    hidden = tasks.names()
    shown: set[str] = set()
    for name, record in zip(names, records, strict=True):
        ids = (name, find_field(record, "JobId") or "")
        found = tasks.find(name, set(names))
        if found is None:
            # Of a task that another pack has taken over Slurm may still know the element.
            if name not in hidden and choice.is_named(*ids):
                yield record
            continue
        for task in _choose(choice, found, ids, shown):
            yield write_record(task, record)


def _fill_json(session: Session, choice: JobChoice, answers: Sequence[str]) -> list[str] | None:
    documents = []
    try:
        documents = [json.loads(text) for text in answers]
        jobs = [job for document in documents for job in document["jobs"]]
        names = [_name_json_job(job) for job in jobs]
    except (KeyError, TypeError, ValueError):
        return None
    tasks = _find_tasks(session, choice, names)
    hidden = tasks.names()
    told: list[dict[str, Any]] = []
    shown: set[str] = set()
    for name, job in zip(names, jobs, strict=True):
        ids = (name, str(job["job_id"]))
        found = tasks.find(name, set(names))
        if found is not None:
            told += [write_json_record(task, job) for task in _choose(choice, found, ids, shown)]
        elif name not in hidden and choice.is_named(*ids):
            told.append(job)
    if not told:
        return None
    return json.dumps({**documents[0], "jobs": told}, indent=2).split("\n")


def _find_tasks(session: Session, choice: JobChoice, names: Sequence[str]) -> PackedTasks:
    arrays = dict.fromkeys(name.partition("_")[0] for name in names)
    return PackedTasks(session, [*choice.jobs, *arrays], os.environ)


def _choose(
    choice: JobChoice, found: Sequence[SlurmTask], pack: Sequence[str], shown: set[str]
) -> Iterator[SlurmTask]:
    for task in found:
        if task.name_for_slurm not in shown and choice.wants(task, pack):
            shown.add(task.name_for_slurm)
            yield task


def _drop_oneliner(words: Sequence[str]) -> list[str]:
    return [word for word in words if word != "-o" and not "--oneliner".startswith(word)]


def _name_json_job(job: dict[str, Any]) -> str:
    array, task = (_read_number(job.get(key)) for key in ("array_job_id", "array_task_id"))
    if waiting := job.get("array_task_string"):
        return f"{array}_[{waiting}]"
    return f"{array}_{task}" if array and task is not None else str(job["job_id"])


def _read_number(value: Any) -> int | None:
    """A number in the form of any release; None where it is not set."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") else None
    return None if value is None else int(value)
