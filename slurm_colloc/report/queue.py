"""The rows of `csub queue`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.quantities import format_elapsed
from slurm_colloc.report.survey import MemberView, PackView

HEADER = ("MEMBER", "NAME", "STATE", "MODE", "NODE:GPU", "TIME", "LEFT", "REASON")


def build_rows(views: Iterable[PackView], now: float, *, finished: bool) -> list[tuple[str, ...]]:
    """One row per member.

    Args:
        views: The packs.
        now: Seconds since the epoch.
        finished: Show members that have ended, too.
    """
    return [
        build_row(view, member, now)
        for view in views
        for member in view.members
        if finished or not member.is_final
    ]


def build_row(view: PackView, member: MemberView, now: float) -> tuple[str, ...]:
    """One member's row."""
    return (
        str(member.member),
        member.spec.job.name,
        member.state.value,
        view.record.mode.value,
        format_where(member),
        format_elapsed(compute_elapsed_s(member, now)),
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


def compute_elapsed_s(member: MemberView, now: float) -> int:
    """How long it has run, or ran."""
    record = member.record
    if record is None or record.started_at is None or member.state is MemberState.PENDING:
        return 0
    end = record.ended_at if record.ended_at is not None else now
    return max(0, int(end - record.started_at))


def format_left(view: PackView, member: MemberView, now: float) -> str:
    """Time to its wall limit, as squeue prints it."""
    record = member.record
    if member.state is not MemberState.RUNNING or record is None:
        limit = member.spec.plan.wall_limit_s
        return "" if member.is_final else _format_limit(limit)
    if record.wall_limit_s is None:
        return view.slurm.time_left if view.slurm else "UNLIMITED"
    left = record.wall_limit_s - compute_elapsed_s(member, now)
    return format_elapsed(max(0, left))


def _format_limit(limit_s: int | None) -> str:
    return "UNLIMITED" if limit_s is None else format_elapsed(limit_s)


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the last one as long as it is."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    return "".join(
        "  ".join(
            [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)] + [row[-1]]
        ).rstrip()
        + "\n"
        for row in table
    )


def build_json(views: Iterable[PackView], now: float, *, finished: bool) -> list[dict[str, Any]]:
    """Members with the fields that docs/json.md describes."""
    return [
        build_member_json(view, member, now)
        for view in views
        for member in view.members
        if finished or not member.is_final
    ]


def build_member_json(view: PackView, member: MemberView, now: float) -> dict[str, Any]:
    """One member's fields; what is not known is null."""
    record = member.record
    code = record.exit_code if record else None
    return {
        "member": str(member.member),
        "name": member.spec.job.name,
        "state": member.state.value,
        "reason": member.reason or None,
        "mode": view.record.mode.value,
        "degree": view.record.degree,
        "slurm_job_id": view.job_id or None,
        "slurm_state": view.slurm_state.value if view.slurm_state else None,
        "step": record.step if record else None,
        "node": record.node if record else None,
        "slurm_gpu_indices": list(record.gpus) if record else [],
        "cpus": list(record.cpus) if record else [],
        "starts": record.starts if record else 0,
        "started_at": record.started_at if record else None,
        "ended_at": record.ended_at if record else None,
        "elapsed_s": compute_elapsed_s(member, now),
        "wall_limit_s": member.spec.plan.wall_limit_s,
        "exit_code": None if code is None else {"code": code.code, "signal": code.signal},
        "script": member.spec.job.script_name,
        "arguments": list(member.spec.job.arguments),
        "directory": member.spec.job.directory,
    }
