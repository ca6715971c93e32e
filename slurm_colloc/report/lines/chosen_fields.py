"""`--format` of queue and history: squeue's `%.18i %.8j %T`, or sacct's `JobID,State%12`."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.sbatch.quantities import format_elapsed
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.queue_rows import (
    format_elapsed_of,
    format_left,
    format_where,
)


@dataclass(frozen=True)
class Shown:
    """A member as a line shows it.

    Attributes:
        view: Its pack.
        member: It.
        now: Seconds since the epoch.
    """

    view: PackView
    member: MemberView
    now: float


_Read = Callable[[Shown], str]


@dataclass(frozen=True)
class MemberField:
    """Something that can be shown of a member.

    Attributes:
        name: As sacct calls it, or would.
        code: As squeue calls it; empty where squeue has none.
        title: Its head.
        read: What it is of a member at a moment.
    """

    name: str
    code: str
    title: str
    read: _Read


def _format_moment(at: float | None) -> str:
    if at is None:
        return "Unknown"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def _read_moment(name: str) -> _Read:
    def read(at: Shown) -> str:
        return _format_moment(getattr(at.member.record, name) if at.member.record else None)

    return read


def _read_exit(at: Shown) -> str:
    code = at.member.record.exit_code if at.member.record else None
    return "" if code is None else str(code)


def _read_node(at: Shown) -> str:
    return (at.member.record.node or "") if at.member.record else ""


def _read_gpus(at: Shown) -> str:
    use = at.member.record.gpu if at.member.record else None
    return ",".join(use.uuids) if use else ""


def _read_limit(at: Shown) -> str:
    limit_s = at.member.wall_limit_s
    return "UNLIMITED" if limit_s is None else format_elapsed(limit_s)


def _read_place(at: Shown) -> str:
    """As squeue's NODELIST(REASON)."""
    reason = at.member.reason
    return format_where(at.member) or (f"({reason})" if reason else "")


FIELDS: tuple[MemberField, ...] = (
    MemberField("JobID", "i", "JOBID", lambda at: str(at.member.member)),
    MemberField("JobIDRaw", "A", "JOBID", lambda at: at.view.job_id),
    MemberField("JobName", "j", "NAME", lambda at: at.member.name),
    MemberField("State", "T", "STATE", lambda at: at.member.state.value),
    MemberField("Elapsed", "M", "TIME", lambda at: format_elapsed_of(at.member, at.now)),
    MemberField("TimeLeft", "L", "TIME_LEFT", lambda at: format_left(at.view, at.member, at.now)),
    MemberField("Timelimit", "l", "TIME_LIMIT", _read_limit),
    MemberField("Reason", "r", "REASON", lambda at: at.member.reason),
    MemberField("Place", "R", "NODELIST(REASON)", _read_place),
    MemberField("NodeList", "N", "NODELIST", _read_node),
    MemberField("Submit", "V", "SUBMIT_TIME",
                lambda at: _format_moment(at.member.spec.joined_at or at.view.record.created_at)),
    MemberField("Start", "S", "START_TIME", _read_moment("started_at")),
    MemberField("End", "e", "END_TIME", _read_moment("ended_at")),
    MemberField("AllocCPUS", "C", "CPUS", lambda at: str(at.member.spec.plan.cpus)),
    MemberField("WorkDir", "Z", "WORK_DIR", lambda at: at.member.spec.job.directory),
    MemberField("SubmitLine", "o", "COMMAND",
                lambda at: " ".join((at.member.script_name, *at.member.arguments))),
    MemberField("ExitCode", "", "EXIT", _read_exit),
    MemberField("Mode", "", "MODE", lambda at: at.view.mode_of(at.member)),
    MemberField("Cause", "", "CAUSE", lambda at: at.view.cause_of(at.member)),
    MemberField("Script", "", "SCRIPT", lambda at: at.member.script_name),
    MemberField("Arguments", "", "ARGS", lambda at: shlex.join(at.member.arguments)),
    MemberField("GPU", "", "GPU", _read_gpus),
    MemberField("PackID", "", "PACK", lambda at: at.view.record.pack_id),
)  # fmt: skip
"""Those of squeue's and sacct's that mean something of a member, and csub's own."""

_BY_CODE = {field.code: field for field in FIELDS if field.code}
_BY_NAME = {field.name.lower(): field for field in FIELDS}
_CODE = re.compile(r"%(?P<right>\.)?(?P<width>[0-9]{1,4})?(?P<code>[A-Za-z])")
_NAMED = re.compile(r"(?P<name>[A-Za-z]+)(?:%(?P<width>-?[0-9]{1,4}))?")


@dataclass(frozen=True)
class LineFormat:
    """What a line shows.

    Attributes:
        parts: Fields, each with its width (0: as long as it is; less than 0: to the left), and
            texts between them.
    """

    parts: tuple[tuple[MemberField, int] | str, ...]

    @classmethod
    def parse(cls, text: str) -> LineFormat:
        """Read a format: one with `%` before letters is squeue's, else names with commas.

        Raises:
            UsageProblem: It cannot be read.
        """
        return cls(_parse_codes(text) if text.lstrip().startswith("%") else _parse_names(text))

    def render(
        self, found: Sequence[tuple[PackView, MemberView]], now: float, *, header: bool = True
    ) -> str:
        """A line for each member.

        Args:
            found: The members, each with its pack.
            now: Seconds since the epoch.
            header: A line of titles comes before them.
        """
        lines = ["".join(_pad(p[0].title, p[1]) if isinstance(p, tuple) else p
                         for p in self.parts)] if header else []  # fmt: skip
        for view, member in found:
            lines.append(
                "".join(
                    part
                    if isinstance(part, str)
                    else _pad(escape_controls(part[0].read(Shown(view, member, now))), part[1])
                    for part in self.parts
                )
            )
        return "".join(f"{line.rstrip()}\n" for line in lines)


def _parse_codes(text: str) -> tuple[tuple[MemberField, int] | str, ...]:
    parts: list[tuple[MemberField, int] | str] = []
    at = 0
    for match in _CODE.finditer(text):
        parts.append(_check_text(text[at : match.start()]))
        at = match.end()
        field = _BY_CODE.get(match["code"])
        if field is None:
            raise UsageProblem(
                f"--format: %{match['code']} says nothing of a member",
                hint=f"valid ones are {', '.join(f'%{code}' for code in _BY_CODE)}",
            )
        width = int(match["width"] or 0)
        parts.append((field, width if match["right"] else -width))
    return (*parts, _check_text(text[at:]))


def _check_text(text: str) -> str:
    """What stands between fields, as it is shown."""
    if "%" in text:
        raise UsageProblem(f"--format: {text!a} cannot be read", hint="write it as %.18i or %j")
    return escape_controls(text)


def _parse_names(text: str) -> tuple[tuple[MemberField, int] | str, ...]:
    parts: list[tuple[MemberField, int] | str] = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        match = _NAMED.fullmatch(word)
        field = _BY_NAME.get(match["name"].lower()) if match else None
        if match is None or field is None:
            raise UsageProblem(
                f"--format: there is no field {word!a}",
                hint=f"valid ones are {', '.join(field.name for field in FIELDS)}",
            )
        # sacct pads to the right of its fields; a negative width is to the left.
        parts += [(field, int(match["width"] or 0)), "|" if not match["width"] else " "]
    if not parts:
        raise UsageProblem("--format: it names no field", hint="as in JobID,State,Elapsed")
    return tuple(parts[:-1])


def _pad(text: str, width: int) -> str:
    if not width:
        return text
    size = abs(width)
    return text[:size].rjust(size) if width > 0 else text[:size].ljust(size)
