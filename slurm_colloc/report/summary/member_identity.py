"""Which job a member was, where it ran and how it ended, as summary.json has it."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.report.member_views import MemberView, PackView


def build_identity(view: PackView, member: MemberView) -> dict[str, Any]:
    """What tells a member from others; docs/report.md has the fields.

    Args:
        view: Its pack.
        member: It.
    """
    record = member.record
    code = record.exit_code if record is not None and member.is_final else None
    use = record.gpu if record is not None else None
    found: dict[str, Any] = {"script": None, "arguments": None, "directory": None}
    with contextlib.suppress(StateError):
        job = member.spec.job
        found = {
            "script": job.script_name,
            "arguments": list(job.arguments),
            "directory": job.directory,
        }
    return {
        **found,
        "node": record.node if record is not None else None,
        "gpu_uuids": list(use.uuids) if use is not None else [],
        "mode": view.mode_of(member),
        "exit_code": None if code is None else code.code,
        "exit_signal": None if code is None else code.signal,
    }


def add_times(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary with times for people."""
    members = [
        {
            **entry,
            "started_time": format_time(entry["started_at"]),
            "ended_time": format_time(entry["ended_at"]),
        }
        for entry in summary["members"]
    ]
    return {**summary, "made_time": format_time(summary["made_at"]), "members": members}


def format_time(at: float | None) -> str | None:
    """A moment in ISO 8601 with milliseconds, in UTC; None for None.

    Args:
        at: Seconds since the epoch.
    """
    if at is None:
        return None
    try:
        moment = dt.datetime.fromtimestamp(at, dt.UTC)
    except (OverflowError, OSError, ValueError):
        # A clock that was wrong wrote it.
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
