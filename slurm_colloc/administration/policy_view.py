"""The policy of a node as it holds, and where each value comes from."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.host.policy import Policy, read_policy


@dataclass(frozen=True)
class PolicyRow:
    """One value.

    Args:
        name: Its name.
        value: What holds.
        source: `built-in`, or the file's path.
        line: Its line there; None for a built-in value.
    """

    name: str
    value: Any
    source: str
    line: int | None


def describe_policy(path: str) -> list[PolicyRow]:
    """All values, in the order in which they are declared.

    Raises:
        StateError: The hooks cannot use the file, so they do nothing; with the reason.
    """
    policy = read_policy(path)
    try:
        with open(path, encoding="utf-8") as file:
            lines = find_lines(file.read())
    except OSError as error:
        raise StateError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    rows = []
    for field in dataclasses.fields(Policy):
        line = lines.get(field.name)
        value = getattr(policy, field.name)
        if isinstance(value, tuple):
            value = list(value)
        rows.append(PolicyRow(field.name, value, "built-in" if line is None else path, line))
    return rows


def find_lines(text: str) -> dict[str, int]:
    """The line on which each key of a TOML file without tables begins."""
    found: dict[str, int] = {}
    known = {field.name for field in dataclasses.fields(Policy)}
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"""\s*["']?(\w+)["']?\s*=""", line)
        if match and match[1] in known:
            found.setdefault(match[1], number)
    return found


def render_value(value: Any) -> str:
    """A value as the file would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(f'"{word}"' for word in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
