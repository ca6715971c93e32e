"""`scontrol show job` inside a member: the real answer, with the member's values in its record.

Also: squeue inside a member: the real command's answer, with the member's values in its own row.
"""

from __future__ import annotations

import time

from slurm_colloc.runtime.programs.member_commands import (
    OwnAnswers,
    OwnMember,
    parse_span,
    read_output,
    write_output,
)
from slurm_colloc.runtime.programs.translate_calls import translate_call
from slurm_colloc.slurm.marked_tables import (
    QueueField,
    QueueQuestion,
    QueueRow,
    build_queue_question,
    split_rows,
)
from slurm_colloc.slurm.scontrol_records import (
    format_clock,
    format_span,
    join_records,
    rename_job,
    replace_fields,
    split_records,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def answer_show_job(
    member: OwnMember, real: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Ask scontrol; its exit status, or None where the real one is to answer alone."""
    if "--json" in arguments:
        return _answer_json(member, real, ["scontrol", *arguments], environment)
    asked = build_question(arguments, member)
    if asked is None:
        return None
    words, is_one_line = asked
    status, text = read_output(real, ["scontrol", *words], environment)
    time_format = environment.get("SLURM_TIME_FORMAT", "")
    told = tell_record(text, member, time.time(), time_format, is_one_line=is_one_line)
    is_written = write_output(told)
    return status if is_written else status or 1


def build_question(arguments: Sequence[str], member: OwnMember) -> tuple[list[str], bool] | None:
    """The arguments with one field a line, and whether all of a job is to stand on one.

    Returns:
        None where the answer is no text for people.
    """
    words, is_one_line = [], False
    for word in arguments:
        if word.startswith(("--json", "--yaml", "--clusters", "-M", "--federation", "-F")):
            return None
        if word in ("-o", "--oneliner") or (len(word) > 3 and "--oneliner".startswith(word)):
            is_one_line = True
        elif word[:1] == "-" and word[1:2] != "-" and "o" in word:
            is_one_line = True
            words += [kept] if (kept := word.replace("o", "")) != "-" else []
        else:
            key, equals, value = word.rpartition("=")
            words.append(f"{key}{equals}{member.translate(value)}")
    return words, is_one_line


def tell_record(
    text: str, member: OwnMember, now: float, time_format: str = "", *, is_one_line: bool = False
) -> str:
    """What scontrol has answered, about the own job with the member's values."""
    records = split_records(text)
    for number, record in enumerate(records):
        words = record.split(None, 1)
        if words and words[0] == f"JobId={member.real_id}":
            records[number] = _tell_own(record, member, now, time_format)
    return join_records(records, is_one_line=is_one_line)


def _tell_own(record: str, member: OwnMember, now: float, time_format: str) -> str:
    pairs = [word.partition("=") for word in record.split()]
    spans = {
        name: parse_span(value)
        for name, _, value in reversed(pairs)
        if name in ("RunTime", "TimeLimit")
    }
    limit_s, used_s = spans.get("TimeLimit"), spans.get("RunTime")
    left_s = None if limit_s is None else max(0, limit_s - (used_s or 0))
    answers = OwnAnswers(member, now, left_s, time_format)
    new = {
        "RunTime": format_clock(answers.used_s),
        "TimeLimit": format_clock(answers.limit_s),
        "StartTime": answers.moment(answers.started_at),
        "EndTime": answers.moment(answers.ends_at),
        "MinMemoryNode": answers.host_memory,
        "NumCPUs": answers.text("cpu_count"),
        "JobName": answers.text("name"),
        "Command": answers.text("command"),
        "WorkDir": answers.text("directory"),
        "StdOut": answers.text("output"),
        "StdErr": answers.text("error"),
    }
    ids = f"JobId={member.job_id}"
    if answers.task("whole"):
        ids += f" ArrayJobId={answers.task('job')} ArrayTaskId={answers.task('index')}"
    return rename_job(replace_fields(record, new), ids)


# ----
# squeue inside a member: the real command's answer, with the member's values in its own row.
#
# Only fields that csub knows better are replaced, and only in the row of the pack; whatever cannot
# be followed exactly is left to the real command alone.

HEAD = {"A": "jobid", "L": "timeleft"}


def answer_squeue(
    member: OwnMember, real: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Ask squeue; its exit status, or None where the real one is to answer alone."""
    if "--json" in arguments:
        return _answer_json(member, real, ["squeue", *arguments], environment)
    question = build_queue_question(arguments, environment, HEAD)
    if question is None:
        return None
    words = build_own_words(question, member)
    status, text = read_output(real, ["squeue", *words], environment)
    rows = split_rows(text, question.fields)
    if rows is None:
        return None
    answers = choose_answers(rows, member, environment.get("SLURM_TIME_FORMAT", ""))
    is_written = write_output(tell_row(rows, member, question.fields, answers))
    return status if is_written else status or 1


def build_own_words(question: QueueQuestion, member: OwnMember) -> list[str]:
    """The arguments of squeue, in which the member's own ids are Slurm's."""
    return question.build_words(member.translate)


def choose_answers(rows: Sequence[QueueRow], member: OwnMember, time_format: str) -> OwnAnswers:
    """The member's values; none of its time is longer than what the pack has left."""
    left_s = None
    for row in rows:
        if row.head and row.head[0] == member.real_id:
            left_s = parse_span(row.head[1])
    return OwnAnswers(member, time.time(), left_s, time_format)


def tell_row(
    rows: Sequence[QueueRow],
    member: OwnMember,
    fields: Sequence[QueueField],
    answers: OwnAnswers,
) -> str:
    """What squeue has answered, without marks."""
    lines = []
    for row in rows:
        if row.head and row.head[0] == member.real_id:
            cells = [
                _replace(cell, field, answers)
                for cell, field in zip(row.cells, fields, strict=True)
            ]
            lines.append(row.prefix + "".join(cells))
        else:
            lines.append(row.text())
    return "\n".join(lines)


def _replace(cell: str, field: QueueField, answers: OwnAnswers) -> str:
    value = _choose_value(field.name, answers)
    return cell if value is None else field.render(value)


def _choose_value(name: str, answers: OwnAnswers) -> str | None:
    """The member's value of a field; None where Slurm's own is right."""
    choices = {
        "timelimit": None if answers.limit_s is None else format_span(answers.limit_s),
        "timeleft": None if answers.left_s is None else format_span(answers.left_s),
        "timeused": format_span(answers.used_s),
        "endtime": answers.moment(answers.ends_at),
        "starttime": answers.moment(answers.started_at),
        "jobid": answers.text("job_id"),
        "jobarrayid": answers.task("whole") or answers.text("job_id"),
        "arrayjobid": answers.task("job") or answers.text("job_id"),
        "arraytaskid": answers.task("index"),
        "mincpus": answers.text("cpu_count"),
        "minmemory": answers.host_memory,
        "name": answers.text("name"),
        "numcpus": answers.text("cpu_count"),
        "command": answers.text("command"),
        "workdir": answers.text("directory"),
    }
    return choices.get(name)


# ---- --json of both: the member's values in the record of its Slurm job --------------------------


def _answer_json(
    member: OwnMember, real: str, call: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    call, _ = translate_call(member, call, environment)
    status, text = read_output(real, call, environment)
    is_written = write_output(tell_json(text, member, time.time()))
    return status if is_written else status or 1


def tell_json(text: str, member: OwnMember, now: float) -> str:
    """What was answered; unchanged where it is none of Slurm's records."""
    import json

    try:
        told = json.loads(text)
        jobs = [job for job in told["jobs"] if str(job["job_id"]) == member.real_id]
    except (KeyError, TypeError, ValueError):
        return text
    answers = OwnAnswers(member, now)
    new = {
        "job_id": int(member.job_id) if member.job_id.isdecimal() else None,
        "array_job_id": member.task and int(member.task[0]),
        "array_task_id": member.task and int(member.task[1]),
        "name": answers.text("name"),
        "command": answers.text("command"),
        "current_working_directory": answers.text("directory"),
        "standard_output": answers.text("output"),
        "standard_error": answers.text("error"),
        "start_time": answers.started_at,
        "end_time": answers.ends_at,
        "time_limit": None if answers.limit_s is None else -(-answers.limit_s // 60),
    }
    for job in jobs:
        for name, value in new.items():
            if value is not None and name in job:
                # From 23.11 on numbers are objects.
                is_object = isinstance(job[name], dict)
                told_as = {"set": True, "infinite": False, "number": value}
                job[name] = {**job[name], **told_as} if is_object else value
    return json.dumps(told, indent=2) + "\n"
