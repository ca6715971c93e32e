"""The lines that hooks leave, read for people: one JSON value for each run of a hook."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_colloc.errors import NotFound, StateError, UsageProblem

_ROTATED = re.compile(r"\.(\d+)(?:\.gz)?$")
COLUMNS = ("time", "hook", "job", "uid", "mode", "action", "ms", "exit", "outcome")
OUTCOMES = ("ok", "problem", "failed", "prepared", "told", "undone", "none")
"""`ok` and `problem`: whether all went as it should; `failed`: Slurm was told that the node is not
fit for jobs; the rest: what the hook did, `told` where nothing could be prepared."""


@dataclass(frozen=True)
class AuditFilter:
    """Which lines are wanted; None for all.

    Args:
        job: A job id.
        uid: A user.
        outcome: One of OUTCOMES.
        hook: prolog, epilog or recover.
    """

    job: str | None = None
    uid: int | None = None
    outcome: str | None = None
    hook: str | None = None

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """A line is wanted."""
        wanted = {"job": self.job, "uid": self.uid, "hook": self.hook}
        return self._matches_outcome(entry) and all(
            value is None or str(entry.get(name)) == str(value) for name, value in wanted.items()
        )

    def _matches_outcome(self, entry: Mapping[str, Any]) -> bool:
        if self.outcome == "failed":
            return bool(entry.get("exit"))
        if self.outcome in ("ok", "problem"):
            return is_ok(entry) == (self.outcome == "ok")
        return self.outcome is None or entry.get("action") == self.outcome


def is_ok(entry: Mapping[str, Any]) -> bool:
    """All went as it should: nothing is said, and nothing was reported to Slurm."""
    return not entry.get("outcome") and not entry.get("exit")


def describe_entry(entry: Mapping[str, Any]) -> str:
    """One run of a hook in a few words."""
    words = f"{entry.get('hook')}: {entry.get('action')}"
    return words if is_ok(entry) else f"{words}, {entry.get('outcome') or 'failed'}"


def list_log_files(path: str) -> list[str]:
    """The log and its rotated parts, oldest first."""
    rotated = []
    for name in glob.glob(f"{glob.escape(path)}.*"):
        match = _ROTATED.search(name)
        if match and _ROTATED.sub("", name) == path:
            rotated.append((int(match[1]), name))
    files = [name for _, name in sorted(rotated, reverse=True)]
    return [*files, path] if os.path.lexists(path) else files


def read_entries(path: str, wanted: AuditFilter) -> tuple[list[dict[str, Any]], int]:
    """Read the log.

    Args:
        path: The newest file.
        wanted: Which lines.

    Returns:
        The lines, oldest first, and how many could not be read.

    Raises:
        NotFound: There is no log yet.
        StateError: It cannot be read.
    """
    files = list_log_files(path)
    if not files:
        raise NotFound(
            f"there is no log at {path}", hint="it begins with the first job that asks for MPS"
        )
    entries, damaged = [], 0
    for name in files:
        for line in _read_lines(name):
            entry = parse_entry(line)
            if entry is None:
                damaged += 1
            elif wanted.matches(entry):
                entries.append(entry)
    return entries, damaged


def _read_lines(name: str) -> Iterator[str]:
    opener: Any = gzip.open if name.endswith(".gz") else open
    try:
        with opener(name, "rt", encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if line.strip())
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "only root and its group may" if isinstance(error, PermissionError) else ""
        raise StateError(f"cannot read {name}: {reason}", hint=hint) from error


def parse_entry(line: str) -> dict[str, Any] | None:
    """Read one line; None where it is damaged."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_user(text: str) -> int:
    """A user's number, by number or name.

    Raises:
        UsageProblem: There is no such user.
    """
    if text.isdigit():
        return int(text)
    import pwd

    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise UsageProblem(f"there is no user {text!r} on this machine") from None


def render_entries(entries: Iterable[Mapping[str, Any]]) -> str:
    """Lines for people; what a line lacks is a hyphen."""
    rows = [[name.upper() for name in COLUMNS]]
    rows += [
        [*(_show(entry.get(name)) for name in COLUMNS[:-1]), _show(entry.get("outcome") or "ok")]
        for entry in entries
    ]
    widths = [max(len(row[number]) for row in rows) for number in range(len(COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


def _show(value: Any) -> str:
    """One cell: no line break or escape sequence of a user's text reaches the terminal."""
    if value in (None, ""):
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text)
