"""squeue inside a member: the real command's answer, with the member's values in its own row.

squeue is asked for the same fields with marks between them, and for the job's id before each row.
Only fields that csub knows better are replaced, and only in the row of the pack; whatever cannot
be followed exactly is left to the real command alone.
"""

from __future__ import annotations

import time

from slurm_colloc.runtime.programs.command_words import CommandOptions
from slurm_colloc.runtime.programs.own_answers import (
    OwnAnswers,
    format_span,
    parse_span,
    read_output,
    write_output,
)
from slurm_colloc.runtime.programs.own_member import OwnMember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEAD, _MARK = "\x1e", "\x1f"
_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_DEFAULT_LONG = (
    "jobarrayid:.18 ,partition:.9 ,name:.8 ,username:.8 ,state:.8 ,timeused:.10 ,timelimit:.9 ,"
    "numnodes:.6 ,reasonlist:"
)
"""squeue(1), --format and --long; the same from 22.05 to 26.05. --long excludes --format, and goes
before SQUEUE_FORMAT."""

_WIDTH = 20
"""Of a field of --Format that names none."""

_OPTIONS = CommandOptions(
    "A:ahi:j::lL:n:M:O:o:p:Pq:R:rs::S:t:u:U:vVw:",
    {
        "account": "A", "accounts": "A", "all": "a", "array": "r", "cluster": "M",
        "clusters": "M", "Format": "O", "format": "o", "help": "help", "hide": "hide",
        "iterate": "i", "job": "j", "jobs": "j", "json": "json", "licenses": "L", "local": "local",
        "long": "l", "me": "me", "name": "n", "names": "n", "nodelist": "w", "nodes": "w",
        "noheader": "h", "partition": "p", "partitions": "p", "priority": "P", "qos": "q",
        "reservation": "R", "sort": "S", "start": "start", "state": "t", "states": "t",
        "step": "s", "steps": "s", "usage": "usage", "user": "u", "users": "u", "verbose": "v",
        "version": "V", "yaml": "yaml", "array-unique": "array-unique", "noconvert": "noconvert",
        "federation": "federation", "sibling": "sibling", "expand-patterns": "expand-patterns",
        "only-job-state": "only-job-state",
    },
)  # fmt: skip
_LEFT_ALONE = frozenset(
    {"i", "s", "M", "V", "json", "yaml", "start", "help", "usage", "federation", "sibling",
     "only-job-state"}
)  # fmt: skip

_LETTERS = {
    "l": "timelimit", "L": "timeleft", "M": "timeused", "e": "endtime", "S": "starttime",
    "j": "name", "C": "numcpus", "o": "command", "Z": "workdir", "i": "jobarrayid",
    "m": "minmemory", "F": "arrayjobid", "K": "arraytaskid",
}  # fmt: skip


def answer_squeue(
    member: OwnMember, real: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Ask squeue; its exit status, or None where the real one is to answer alone."""
    asked = build_question(arguments, environment, member)
    if asked is None:
        return None
    words, fields = asked
    status, text = read_output(real, ["squeue", *words], environment)
    answers = choose_answers(text, member, environment.get("SLURM_TIME_FORMAT", ""))
    told = tell(text, member, fields, answers)
    if told is None:
        return None
    write_output(told)
    return status


class QueueField:
    """One field of a row.

    Args:
        name: Its name as in --Format, for those that can be replaced; else empty.
        width: Its width; 0 for as long as it is.
        is_right: It stands at the right.
        suffix: What follows it.
    """

    def __init__(self, name: str, width: int, is_right: bool, suffix: str) -> None:
        self.name = name
        self._width = width
        self._is_right = is_right
        self._suffix = suffix

    def render(self, value: str) -> str:
        """The field with this value (`_print_str` in squeue's print.c)."""
        if self._width:
            width = self._width
            value = (value.rjust(width) if self._is_right else value.ljust(width))[:width]
        return value + self._suffix


def build_question(
    arguments: Sequence[str], environment: Mapping[str, str], member: OwnMember
) -> tuple[list[str], list[QueueField]] | None:
    """The arguments with which squeue marks its fields, and the fields.

    Returns:
        None where the question is none that can be followed.
    """
    split = _OPTIONS.split(arguments)
    if split is None:
        return None
    options, operands = split
    kinds = [key for key, _, _ in options]
    if _LEFT_ALONE.intersection(kinds) or ("o" in kinds and "O" in kinds):
        return None
    formats = {key: value or "" for key, value, _ in options if key in ("o", "O")}
    if "l" in kinds:
        if "o" in kinds:
            return None
        formats = formats or {"O": _DEFAULT_LONG}
    elif not formats:
        formats = {
            key: environment[name]
            for key, name in (("o", "SQUEUE_FORMAT"), ("O", "SQUEUE_FORMAT2"))
            if name in environment
        } or {"o": _DEFAULT}
    if len(formats) > 1:
        return None
    kind, text = next(iter(formats.items()))
    marked = mark_letters(text) if kind == "o" else mark_names(text)
    if marked is None:
        return None
    words = []
    for key, value, shown in options:
        if key == "j" and value is not None:
            words.append(f"--jobs={_translate(value, member)}")
        elif key not in ("o", "O"):
            words += shown
    operands = [_translate(word, member) for word in operands]
    return [*words, f"-{kind}", marked[0], *(["--", *operands] if operands else [])], marked[1]


def _translate(ids: str, member: OwnMember) -> str:
    """A list of job ids in which the member's own are Slurm's."""
    return ",".join(member.job_id if word in member.ids else word for word in ids.split(","))


def mark_letters(text: str) -> tuple[str, list[QueueField]] | None:
    """`--format` with marks: `%[[.]width]letter[suffix]`, one after the other."""
    prefix, *parts = text.split("%")
    fields = []
    marked = f"%A{_MARK}%L{_HEAD}{prefix}{_MARK}"
    for part in parts:
        spec = part.lstrip(".0123456789")
        if not spec:
            return None
        size = part[: len(part) - len(spec)]
        suffix = spec[1:]
        width = size.lstrip(".")
        if width and not width.isdigit():
            return None
        name = _LETTERS.get(spec[0], "")
        fields.append(QueueField(name, int(width or 0), size.startswith("."), suffix))
        marked += f"%{size}{spec[0]}{suffix}{_MARK}"
    return (marked, fields) if fields else None


def mark_names(text: str) -> tuple[str, list[QueueField]] | None:
    """`--Format` with marks: `name[:[.][width][suffix]]`, separated by commas."""
    fields = []
    marked = [f"jobid:{_MARK}", f"timeleft:{_HEAD}{_MARK}"]
    for part in text.split(","):
        name, colon, rest = part.partition(":")
        spec = rest if colon else str(_WIDTH)
        plain = spec.removeprefix(".")
        suffix = plain.lstrip("0123456789")
        width = plain[: len(plain) - len(suffix)]
        fields.append(QueueField(name.lower(), int(width or 0), spec.startswith("."), suffix))
        marked.append(f"{name}:{spec}{_MARK}")
    return ",".join(marked), fields


def choose_answers(text: str, member: OwnMember, time_format: str) -> OwnAnswers:
    """The member's values; none of its time is longer than what the pack has left."""
    left_s = None
    for line in text.split("\n"):
        job_id, mark, rest = line.partition(_MARK)
        if mark and job_id == member.job_id:
            left_s = parse_span(rest.partition(_HEAD)[0])
    return OwnAnswers(member, time.time(), left_s, time_format)


def tell(
    text: str, member: OwnMember, fields: Sequence[QueueField], answers: OwnAnswers
) -> str | None:
    """What squeue has answered, without marks; None where the marks are not as they were asked."""
    lines = []
    for line in text.split("\n"):
        head, mark, row = line.partition(_HEAD)
        if not mark:
            lines.append(line)
            continue
        prefix, *cells = row.split(_MARK)
        # A name with a mark in it would shift the rest.
        if len(cells) != len(fields) + 1 or cells.pop():
            return None
        if head.partition(_MARK)[0] == member.job_id:
            cells = [
                _replace(cell, field, answers) for cell, field in zip(cells, fields, strict=True)
            ]
        lines.append(prefix + "".join(cells))
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
        "minmemory": answers.host_memory,
        "name": answers.text("name"),
        "numcpus": answers.text("cpu_count"),
        "command": answers.text("command"),
        "workdir": answers.text("directory"),
    }
    return choices.get(name)
