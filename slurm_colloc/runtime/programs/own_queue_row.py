"""squeue inside a member: the real command's answer, with the member's values in its own row.

Only fields that csub knows better are replaced, and only in the row of the pack; whatever cannot
be followed exactly is left to the real command alone.
"""

from __future__ import annotations

import time

from slurm_colloc.runtime.programs.own_answers import (
    OwnAnswers,
    format_span,
    parse_span,
    read_output,
    write_output,
)
from slurm_colloc.runtime.programs.own_member import OwnMember
from slurm_colloc.slurm.tables.marked_queue import (
    QueueField,
    QueueQuestion,
    QueueRow,
    build_queue_question,
    split_rows,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = {"A": "jobid", "L": "timeleft"}


def answer_squeue(
    member: OwnMember, real: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Ask squeue; its exit status, or None where the real one is to answer alone."""
    question = build_queue_question(arguments, environment, HEAD)
    if question is None:
        return None
    words = build_own_words(question, member)
    status, text = read_output(real, ["squeue", *words], environment)
    rows = split_rows(text, question.fields)
    if rows is None:
        return None
    answers = choose_answers(rows, member, environment.get("SLURM_TIME_FORMAT", ""))
    is_written = write_output(tell(rows, member, question.fields, answers))
    return status if is_written else status or 1


def build_own_words(question: QueueQuestion, member: OwnMember) -> list[str]:
    """The arguments of squeue, in which the member's own ids are Slurm's."""
    return question.build_words(
        lambda ids: ",".join(
            member.job_id if word in member.ids else word for word in ids.split(",")
        )
    )


def choose_answers(rows: Sequence[QueueRow], member: OwnMember, time_format: str) -> OwnAnswers:
    """The member's values; none of its time is longer than what the pack has left."""
    left_s = None
    for row in rows:
        if row.head and row.head[0] == member.job_id:
            left_s = parse_span(row.head[1])
    return OwnAnswers(member, time.time(), left_s, time_format)


def tell(
    rows: Sequence[QueueRow],
    member: OwnMember,
    fields: Sequence[QueueField],
    answers: OwnAnswers,
) -> str:
    """What squeue has answered, without marks."""
    lines = []
    for row in rows:
        if row.head and row.head[0] == member.job_id:
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
        "timelimit": format_span(answers.limit_s),
        "timeleft": format_span(answers.left_s),
        "timeused": format_span(answers.used_s),
        "endtime": answers.moment(answers.ends_at),
        "starttime": answers.moment(answers.started_at),
        "jobarrayid": answers.task("whole"),
        "arrayjobid": answers.task("job"),
        "arraytaskid": answers.task("index"),
        "mincpus": answers.text("cpu_count"),
        "minmemory": answers.host_memory,
        "name": answers.text("name"),
        "numcpus": answers.text("cpu_count"),
        "command": answers.text("command"),
        "workdir": answers.text("directory"),
    }
    return choices.get(name)
