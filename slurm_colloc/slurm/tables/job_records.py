"""The records of `scontrol show job`, in which single fields are replaced.

Loads nothing, for the sake of the shims that start often.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_INDENT = "\n   "
_TO_THE_END = ("JobName", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment")
"""Fields that end with their line; their values may hold spaces."""


def split_records(text: str) -> list[str]:
    """The records of an answer that was asked for without `--oneliner`."""
    return text.split("\n\n")


def join_records(records: list[str], *, is_one_line: bool) -> str:
    """An answer, as with `--oneliner` or without it."""
    if is_one_line:
        return "".join(f"{record.replace(_INDENT, ' ')}\n" for record in records if record.strip())
    return "\n\n".join(records)


def find_field(record: str, name: str) -> str | None:
    """The first value of a field, up to the next space; None where there is none."""
    for word in record.split():
        key, equals, value = word.partition("=")
        if equals and key == name:
            return value
    return None


def name_job(record: str) -> str:
    """`4711`, `4711_3`, or `4711_[1-4]` for some that wait; empty where it is no job's."""
    head = record.partition("\n")[0].partition(" JobName=")[0]
    array, task = find_field(head, "ArrayJobId"), find_field(head, "ArrayTaskId")
    if array is None or task is None:
        return find_field(head, "JobId") or ""
    return f"{array}_{task}" if task.isdecimal() else f"{array}_[{task}]"


def rename_job(record: str, ids: str) -> str:
    """The record with other ids before the job's name."""
    _, name, rest = record.partition(" JobName=")
    return f"{ids}{name}{rest}" if name else record


def replace_fields(record: str, new: Mapping[str, str | None]) -> str:
    """The record with other values; None leaves that of a field as it is."""
    return "\n".join(_replace_in(line, new) for line in record.split("\n"))


def _replace_in(line: str, new: Mapping[str, str | None]) -> str:
    for name, value in new.items():
        if value is None:
            continue
        before, found, rest = f" {line}".partition(f" {name}=")
        if found:
            behind = "" if name in _TO_THE_END else rest[len(rest.split(" ", 1)[0]) :]
            line = f"{before}{found}{value}{behind}"[1:]
            if name in _TO_THE_END:
                break
    return line


def format_clock(seconds: int | None) -> str | None:
    """`[D-]HH:MM:SS`, as scontrol writes times."""
    if seconds is None:
        return None
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"
