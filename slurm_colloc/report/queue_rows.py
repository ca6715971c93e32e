"""The rows of `csub queue`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.parameters import format_parameters
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.sbatch.quantities import format_elapsed
from slurm_colloc.report.lines.argument_words import describe_arguments
from slurm_colloc.report.lines.time_to_end import format_to_end
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)

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
        limit = member.wall_limit_s
        return "" if member.is_final else _format_limit(limit)
    left_s = compute_left_s(view, member, now)
    if left_s is None:
        return view.slurm.time_left if view.slurm else "UNLIMITED"
    return format_elapsed(max(0, left_s))


def _format_limit(limit_s: int | None) -> str:
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
        "member": str(member.member),
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
