"""The rows of `csub queue`.

Also: `--format` of queue and history: squeue's `%.18i %.8j %T`, or sacct's `JobID,State%12`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import format_parameters
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_elapsed, format_moment
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.terminal_tables import describe_arguments, format_to_end

ARGUMENTS_MOST = 60
"""Longer arguments are cut; `--format=JobID,Arguments` and `--json` have all."""

HEADER: tuple[str, ...] = ("MEMBER", "NAME", "STATE", "MODE", "NODE:GPU", "TIME", "LEFT", "REASON")


Found = Sequence[tuple[PackView, Sequence[MemberView]]]
"""Members by pack."""


def pick(views: Iterable[PackView], *, finished: bool) -> Found:
    """The members of packs, those that have ended only if they are wanted."""
    return [(view, [m for m in view.members if finished or not m.is_final]) for view in views]


def join_gpu_sets(found: Found) -> Found:
    """The same, with the members of a Slurm job's GPU sets in one order, by their numbers."""
    jobs: dict[tuple[str, int], list[tuple[PackView, MemberView]]] = {}
    for view, members in found:
        own = jobs.setdefault((view.record.submission, view.record.index), [])
        own += [(view, member) for member in members]
    return [
        (view, [member])
        for job in jobs.values()
        for view, member in sorted(job, key=lambda entry: entry[1].member.number)
    ]


def build_table(
    found: Found, now: float, to_end: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header, and one row per member.

    Columns of arguments and of the time to the end are there where a member has such.

    Args:
        found: The members.
        now: Seconds since the epoch.
        to_end: Seconds that running members still take, by `4711/3`; None where not estimated.
    """
    listed = [(view, member) for view, members in found for member in members]
    header, rows = HEADER, [build_row(view, member, now) for view, member in listed]
    if to_end:
        times = [format_to_end(to_end.get(str(member.member))) for _, member in listed]
        header, rows = insert_column(header, rows, "LEFT", "TO_END", times)
    behind = "TO_END" if "TO_END" in header else "LEFT"
    header, rows = insert_column(header, rows, behind, "ARGS", list_argument_words(listed))
    several = (v.record.shown_id and not v.record.local and bool(ms) for v, ms in found)
    if not any(several):
        return header, rows
    # Some are in another Slurm job than the one that they are named after.
    jobs = [view.job_id for view, members in found for _ in members]
    with_jobs = [(row[0], job, *row[1:]) for row, job in zip(rows, jobs, strict=True)]
    return (header[0], "SLURM", *header[1:]), with_jobs


def list_argument_words(listed: Sequence[tuple[PackView, MemberView]]) -> list[str]:
    """The arguments of members, or what differs within each submission, not too long for a line."""
    jobs = [(v.shown_id or v.record.pack_id, m.script_name, m.arguments) for v, m in listed]
    # Parameters tell members of a sweep apart better than where they stand among the arguments.
    texts = [
        format_parameters(member.parameters) or text
        for (_, member), text in zip(listed, describe_arguments(jobs), strict=True)
    ]
    return [cut(escape_controls(text), ARGUMENTS_MOST) for text in texts]


def insert_column(
    header: tuple[str, ...],
    rows: list[tuple[str, ...]],
    behind: str,
    title: str,
    cells: Sequence[str],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A table with one more column behind another one; as it was where all its cells are empty.

    Args:
        header: Titles of the columns.
        rows: The cells.
        behind: The column behind which it comes.
        title: Its title.
        cells: Its cells.
    """
    if not any(cells):
        return header, rows
    place = header.index(behind) + 1
    return (
        (*header[:place], title, *header[place:]),
        [(*row[:place], cell, *row[place:]) for row, cell in zip(rows, cells, strict=True)],
    )


def build_row(view: PackView, member: MemberView, now: float) -> tuple[str, ...]:
    """One member's row."""
    return (
        str(member.member),
        member.name,
        member.state.value,
        view.mode_of(member),
        format_where(member),
        format_elapsed_of(member, now),
        format_left(view, member, now),
        member.reason,
    )


def format_where(member: MemberView) -> str:
    """`node1:0`: node and Slurm's GPU indices; empty before the start."""
    record = member.record
    if record is None or record.node is None or member.state is MemberState.PENDING:
        return ""
    gpus = ",".join(record.gpus)
    return f"{record.node}:{gpus}" if gpus else record.node


def compute_elapsed_s(member: MemberView, now: float) -> int | None:
    """How long it has run, or ran; None where its end was not seen."""
    record = member.record
    if record is None or record.started_at is None or member.state is MemberState.PENDING:
        return 0
    if record.ended_at is None and member.is_final:
        return None
    end = record.ended_at if record.ended_at is not None else now
    return max(0, int(end - record.started_at))


def format_elapsed_of(member: MemberView, now: float) -> str:
    """How long it has run, as squeue prints it; empty where that is not known."""
    elapsed_s = compute_elapsed_s(member, now)
    return "" if elapsed_s is None else format_elapsed(elapsed_s)


def compute_left_s(view: PackView, member: MemberView, now: float) -> int | None:
    """What is left of a running member's wall limit in seconds; None where it has none.

    For as long as its runner has paused it, its time does not run.
    """
    record = member.record
    if record is None or record.wall_limit_s is None:
        return None
    left_s = record.wall_limit_s - (compute_elapsed_s(member, now) or 0)
    if record.started_at is None:
        return left_s
    return left_s + int(view.count_paused_s(member, record.started_at, now))


def format_left(view: PackView, member: MemberView, now: float) -> str:
    """Time to its wall limit, as squeue prints it."""
    record = member.record
    if member.state is not MemberState.RUNNING or record is None:
        return "" if member.is_final else _format_limit(member)
    left_s = compute_left_s(view, member, now)
    if left_s is None:
        return view.slurm.time_left if view.slurm else "UNLIMITED"
    return format_elapsed(max(0, left_s))


def _format_limit(member: MemberView) -> str:
    limit_s = member.wall_limit_s
    return "UNLIMITED" if limit_s is None else format_elapsed(limit_s)


def build_json(found: Found, now: float) -> list[dict[str, Any]]:
    """Members with the fields that docs/json.md describes."""
    return [build_member_json(view, member, now) for view, members in found for member in members]


def build_member_json(view: PackView, member: MemberView, now: float) -> dict[str, Any]:
    """One member's fields; what is not known is null."""
    record = member.record
    code = record.exit_code if record else None
    use = record.gpu if record else None
    return {
        "member": member.member.address,
        "job_id": member.own_id or None,
        "name": member.name,
        "state": member.state.value,
        "reason": member.reason or None,
        "parked": member.is_parked,
        "mode": view.mode_of(member),
        "share": view.record.share,
        "degree": view.record.degree,
        "slurm_job_id": view.job_id or None,
        "slurm_state": view.slurm_state.value if view.slurm_state else None,
        "step": record.step if record else None,
        "node": record.node if record else None,
        "slurm_gpu_indices": list(record.gpus) if record else [],
        "gpu_uuids": list(use.uuids) if use else [],
        "thread_percentage": use.thread_percentage if use else None,
        "gpu_memory_limit_mb": use.gpu_memory_limit_mb if use else None,
        "is_mps_client": use.is_mps_client if use else None,
        "mig_instance": (use.instance or None) if use else None,
        "cpus": list(record.cpus) if record else [],
        "starts": record.starts if record else 0,
        "started_at": record.started_at if record else None,
        "ended_at": record.ended_at if record else None,
        "elapsed_s": compute_elapsed_s(member, now),
        "wall_limit_s": member.wall_limit_s,
        "exit_code": None if code is None else {"code": code.code, "signal": code.signal},
        "cause": view.cause_of(member) or None,
        "evidence": list(record.evidence) if record else [],
        "script": member.spec.job.script_name,
        "arguments": list(member.spec.job.arguments),
        "directory": member.spec.job.directory,
        "parameters": dict(member.parameters),
        "retry_of": member.retry_of or None,
        "snapshot": member.spec.job.snapshot or None,
    }


# ---- `--format` of queue and history: squeue's `%.18i %.8j %T`, or sacct's `JobID,State%12` ------


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
    return "Unknown" if at is None else format_moment(at)


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
    MemberField("Timelimit", "l", "TIME_LIMIT", lambda at: _format_limit(at.member)),
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
_CODE = late_pattern(r"%(?P<right>\.)?(?P<width>[0-9]{1,4})?(?P<code>[A-Za-z])")
_NAMED = late_pattern(r"(?P<name>[A-Za-z]+)(?:%(?P<width>-?[0-9]{1,4}))?")


def read_fields(names: Iterable[str], shown: Shown) -> tuple[str, ...]:
    """Some fields of a member, by their names."""
    return tuple(_BY_NAME[name.lower()].read(shown) for name in names)


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
