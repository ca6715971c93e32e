"""One line of the doctor's: what was looked at, how it is, what is lost or to be done; values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How something is."""

    GREEN = "green"
    YELLOW = "yellow"
    """csub works, but less well."""
    RED = "red"
    """csub does not work before something is done."""
    UNKNOWN = "unknown"
    """It was not looked at, or could not be."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What, as one word.
        level: How it is.
        what: What was seen, as a clause.
        lost: What does not work because of it; a yellow one always says it.
        advice: What to do; a red one always says it.
        values: The same for programs; see docs/json.md.
    """

    check: str
    level: Level
    what: str
    lost: str = ""
    advice: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def green(check: str, what: str, **values: object) -> Finding:
    """It is as it should be."""
    return Finding(check, Level.GREEN, what, values=values)


def yellow(check: str, what: str, lost: str, advice: str = "", **values: object) -> Finding:
    """It could be better."""
    return Finding(check, Level.YELLOW, what, lost, advice, values)


def red(check: str, what: str, advice: str, **values: object) -> Finding:
    """It must be changed."""
    return Finding(check, Level.RED, what, "", advice, values)


def unknown(check: str, why: str) -> Finding:
    """It was not looked at."""
    return Finding(check, Level.UNKNOWN, why)


def compute_exit_status(findings: Iterable[Finding]) -> int:
    """1 where anything is red."""
    return int(any(finding.level is Level.RED for finding in findings))
