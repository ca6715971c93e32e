"""How often hooks ran, with which outcome and for how long, added up from the audit log's lines.

No text of a line becomes a name here: hooks and outcomes are of a closed vocabulary, and what is
not in it counts as `other`. Pure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OTHER = "other"
FAILED = "failed"
OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "prolog": ("prepared", "told", "none", FAILED),
    "epilog": ("undone", "none", FAILED),
    "recover": ("recovered", "none", FAILED),
}
"""What each hook can end with; these are told also where they have never happened."""

KNOWN_OUTCOMES = frozenset(outcome for outcomes in OUTCOMES.values() for outcome in outcomes)

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds; the built-in deadline of a hook is 20 s."""

SCHEMA = 1
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


@dataclass
class Durations:
    """How long the runs of one hook took.

    Attributes:
        counts: Runs by the first bound of BUCKETS_S that they did not exceed; the last: longer.
        sum_s: All together, in seconds.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Count one run."""
        place = sum(duration_s > bound for bound in BUCKETS_S)
        self.counts[place] += 1
        self.sum_s += duration_s


@dataclass
class HookTotals:
    """Sums over all lines that were ever counted.

    Attributes:
        runs: By hook and outcome.
        durations: By hook.
        last_run_s: By hook, when the newest run ended (seconds since 1970).
        unsafe_ends: Runs that found the node not fit for the next job.
        unreadable_lines: Lines that are damaged.
    """

    runs: dict[tuple[str, str], int] = field(
        default_factory=lambda: {
            (hook, outcome): 0 for hook, outcomes in OUTCOMES.items() for outcome in outcomes
        }
    )
    durations: dict[str, Durations] = field(
        default_factory=lambda: {hook: Durations() for hook in OUTCOMES}
    )
    last_run_s: dict[str, float] = field(default_factory=dict)
    unsafe_ends: int = 0
    unreadable_lines: int = 0

    def add(self, entry: Mapping[str, Any] | None) -> None:
        """Count one line; None for one that is damaged."""
        if entry is None:
            self.unreadable_lines += 1
            return
        hook = name_hook(entry)
        key = (hook, name_outcome(entry))
        self.runs[key] = self.runs.get(key, 0) + 1
        duration_s = _read_duration_s(entry)
        if duration_s is not None:
            self.durations.setdefault(hook, Durations()).add(duration_s)
        at = parse_time(entry)
        if at is not None:
            self.last_run_s[hook] = max(at, self.last_run_s.get(hook, 0.0))
        self.unsafe_ends += is_unsafe(entry)


def name_hook(entry: Mapping[str, Any]) -> str:
    """Which hook a line is of; `other` for none that is known."""
    hook = entry.get("hook")
    return hook if isinstance(hook, str) and hook in OUTCOMES else OTHER


def name_outcome(entry: Mapping[str, Any]) -> str:
    """What a run did; `failed` where Slurm was told that the node is not fit for jobs."""
    if entry.get("exit"):
        return FAILED
    action = entry.get("action")
    return action if isinstance(action, str) and action in KNOWN_OUTCOMES else OTHER


def is_unsafe(entry: Mapping[str, Any]) -> bool:
    """The run found the node not fit for the next job, be it after another job."""
    others = entry.get("jobs")
    found = [entry, *(others if isinstance(others, list) else ())]
    return any(isinstance(one, Mapping) and bool(one.get("unsafe")) for one in found)


def parse_time(entry: Mapping[str, Any]) -> float | None:
    """When a line was written, in seconds since 1970; None where it does not say."""
    try:
        parsed = time.strptime(str(entry.get("time")), _TIME_FORMAT)
    except ValueError:
        return None
    import calendar

    return float(calendar.timegm(parsed) - (parsed.tm_gmtoff or 0))


def _read_duration_s(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("ms")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        duration_s = value / 1000
    except OverflowError:
        return None
    return duration_s if math.isfinite(duration_s) and duration_s >= 0 else None


def build_value(totals: HookTotals) -> dict[str, Any]:
    """The totals as a JSON value."""
    return {
        "schema": SCHEMA,
        "buckets_s": list(BUCKETS_S),
        "runs": [[hook, outcome, count] for (hook, outcome), count in totals.runs.items()],
        "durations": {
            hook: {"counts": found.counts, "sum_s": found.sum_s}
            for hook, found in totals.durations.items()
        },
        "last_run_s": totals.last_run_s,
        "unsafe_ends": totals.unsafe_ends,
        "unreadable_lines": totals.unreadable_lines,
    }


def parse_value(value: Mapping[str, Any]) -> HookTotals:
    """Read what `build_value` made.

    Raises:
        ValueError: It is of another version, or damaged.
    """
    try:
        if value["schema"] != SCHEMA or tuple(value["buckets_s"]) != BUCKETS_S:
            raise ValueError("another version")
        totals = HookTotals()
        known, outcomes = (*OUTCOMES, OTHER), (*KNOWN_OUTCOMES, OTHER)
        for hook, outcome, count in value["runs"]:
            if hook not in known or outcome not in outcomes:
                raise ValueError("an unknown name")
            totals.runs[hook, outcome] = int(count)
        for hook, found in value["durations"].items():
            counts = [int(count) for count in found["counts"]]
            if hook not in known or len(counts) != len(BUCKETS_S) + 1:
                raise ValueError("an unknown name")
            totals.durations[hook] = Durations(counts, float(found["sum_s"]))
        for hook, at in value["last_run_s"].items():
            if hook not in known:
                raise ValueError("an unknown name")
            totals.last_run_s[hook] = float(at)
        totals.unsafe_ends = int(value["unsafe_ends"])
        totals.unreadable_lines = int(value["unreadable_lines"])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(str(error)) from error
    return totals
