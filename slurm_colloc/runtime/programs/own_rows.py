"""`scontrol show job` inside a member: the real answer, with the member's values in its record.

Also: squeue inside a member: the real command's answer, with the member's values in its own row.
"""

from __future__ import annotations

import time

from slurm_colloc.runtime.programs.member_commands import (
    OwnMember,
    read_output,
    write_output,
)
from slurm_colloc.runtime.programs.translate_calls import translate_call
from slurm_colloc.slurm.marked_tables import (
    QueueField,
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


_STANDARD = "%Y-%m-%dT%H:%M:%S"


class OwnAnswers:
    """The member's values.

    Args:
        member: The member.
        now: The time, in seconds since the epoch.
        pack_left_s: How long the pack may still run; None for no limit, or where it is not known.
        time_format: SLURM_TIME_FORMAT, empty where it is not set.
    """

    def __init__(
        self,
        member: OwnMember,
        now: float,
        pack_left_s: int | None = None,
        time_format: str = "",
    ) -> None:
        self._values = values = member.values
        self._format = _STANDARD if time_format in ("", "standard") else time_format
        self.started_at = int(values["started_at"])
        self.used_s = max(0, int(now) - self.started_at)
        limit = values.get("wall_limit_s")
        self.limit_s = None if limit is None else int(limit)
        left_s = None if self.limit_s is None else max(0, self.limit_s - self.used_s)
        if left_s is not None and pack_left_s is not None:
            # The pack may end before the member's own limit does.
            left_s = min(left_s, pack_left_s)
        self.left_s = left_s
        self.ends_at = None if left_s is None else int(now) + left_s

    def text(self, name: str) -> str | None:
        """One of what the member's file says; None where it does not."""
        return self._values.get(name)

    @property
    def host_memory(self) -> str | None:
        """Its limit as Slurm writes it: `1500M`, `2G`; None for no limit of its own."""
        text = self._values.get("host_memory_mb")
        if text is None:
            return None
        amount, unit = int(text), "M"
        for larger in ("G", "T"):
            if amount and amount % 1024 == 0:
                amount, unit = amount // 1024, larger
        return f"{amount}{unit}"

    def moment(self, at: int | None) -> str | None:
        """A moment as Slurm writes it; None where it is not known, or asked for as `relative`."""
        if at is None or "%" not in self._format:
            return None
        return time.strftime(self._format, time.localtime(at))


def parse_span(text: str) -> int | None:
    """The seconds of squeue's `1-02:03:04`; None for `UNLIMITED` and all else that is no time."""
    days, dash, rest = text.strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds + int(days or 0) * 86400


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
    if member.task:
        ids += " ArrayJobId={} ArrayTaskId={}".format(*member.task)
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
    words = question.build_words(member.translate)
    status, text = read_output(real, ["squeue", *words], environment)
    rows = split_rows(text, question.fields)
    if rows is None:
        return None
    answers = choose_answers(rows, member, environment.get("SLURM_TIME_FORMAT", ""))
    is_written = write_output(tell_row(rows, member, question.fields, answers))
    return status if is_written else status or 1


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
    values = _list_values(member, answers)
    return "\n".join(
        row.replace(fields, values) if row.head and row.head[0] == member.real_id else row.text()
        for row in rows
    )


def _list_values(member: OwnMember, answers: OwnAnswers) -> dict[str, str | None]:
    """The member's values of fields; None where Slurm's own is right."""
    array, index = member.task or (answers.text("job_id"), None)
    return {
        "timelimit": None if answers.limit_s is None else format_span(answers.limit_s),
        "timeleft": None if answers.left_s is None else format_span(answers.left_s),
        "timeused": format_span(answers.used_s),
        "endtime": answers.moment(answers.ends_at),
        "starttime": answers.moment(answers.started_at),
        "jobid": answers.text("job_id"),
        "jobarrayid": answers.text("task_id") or answers.text("job_id"),
        "arrayjobid": array,
        "arraytaskid": index,
        "mincpus": answers.text("cpu_count"),
        "minmemory": answers.host_memory,
        "name": answers.text("name"),
        "numcpus": answers.text("cpu_count"),
        "command": answers.text("command"),
        "workdir": answers.text("directory"),
    }


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
