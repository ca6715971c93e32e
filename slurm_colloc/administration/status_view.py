"""What hooks have prepared on a node, and what was undone of it, for people; pure.

Nothing that a file holds reaches the terminal as it is: control characters are shown by number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_colloc.model.printable import escape_controls

COLUMNS = ("job", "user", "phase", "mode", "gpus", "daemons", "since", "problem")
_NOT_OF_THIS_BOOT = "from before the last boot: csub admin recover"


def render_status(status: Mapping[str, Any], name_user: Callable[[int], str]) -> str:
    """A table of jobs, and a line on the policy.

    Args:
        status: What `host.whole_node.build_status` says; a job may have `made_at` too.
        name_user: Gives a user's name by number.
    """
    rows = [_build_row(job, name_user) for job in status["jobs"]]
    lines = _align([[name.upper() for name in COLUMNS], *rows]) if rows else ["nothing is prepared"]
    return "".join(f"{line}\n" for line in (*lines, describe_policy_state(status["policy"])))


def describe_policy_state(policy: Mapping[str, Any]) -> str:
    """One line on the policy: whether prologs prepare anything, or why not."""
    path = escape_controls(str(policy["path"]))
    if policy["problem"]:
        return f"policy: prologs prepare nothing: {escape_controls(str(policy['problem']))}"
    if policy["enabled"]:
        return f"policy: {path} is enabled"
    return f"policy: {path} has enabled = false: prologs prepare nothing, epilogs still undo"


def describe_recovered_job(found: Mapping[str, Any]) -> str:
    """What became of another job's leftovers, in one line."""
    reason = str(found["reason"])
    if found["undone"] is None:
        words = f"left alone: {reason}"
    elif found["undone"]:
        words = f"undone: {reason}"
    else:
        words = f"not all of it could be undone: {reason}"
    parts = [words]
    for name, title in (("unsafe", "NOT FIT"), ("left", "left behind"), ("notes", "note")):
        parts += [f"{title}: {text}" for text in found.get(name, ())]
    return escape_controls(f"job {found['job']}: {'; '.join(parts)}")


def list_unsafe(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the node is not fit for jobs, each with the job that has left it."""
    return [f"job {one['job']}: {text}" for one in found for text in one.get("unsafe", ())]


def _build_row(job: Mapping[str, Any], name_user: Callable[[int], str]) -> list[str]:
    uid = job["uid"]
    problems = [str(job["problem"])] if job["problem"] else []
    if not job["is_of_this_boot"] and not problems:
        problems.append(_NOT_OF_THIS_BOOT)
    pids = ["no answer" if pid is None else str(pid) for pid in job["daemon_pids"]]
    made_at = job.get("made_at")
    cells = [
        str(job["job_id"]),
        "" if uid is None else f"{name_user(uid)}({uid})",
        str(job["phase"]),
        str(job["mode"]),
        ",".join(_shorten_uuid(str(gpu)) for gpu in job["gpus"]),
        ",".join(pids),
        "" if made_at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(made_at)),
        "; ".join(problems),
    ]
    return [escape_controls(cell) or "-" for cell in cells]


def _shorten_uuid(uuid: str) -> str:
    """As much as tells the GPUs of a node apart; JSON has all of it."""
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest.partition('-')[0]}" if kind in ("GPU", "MIG") and rest else uuid


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
