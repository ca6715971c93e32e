"""Which metrics there are of a node's hooks; pure.

Also: how often hooks ran, with which outcome and for how long, added up from the audit log's lines;
the totals of hooks, kept in a file, and how far the audit log is counted in them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Literal

from slurm_colloc.administration.node_files import opened_directory, write_whole
from slurm_colloc.administration.verify_hooks import list_log_files, parse_entry
from slurm_colloc.errors import StateError, failed_to
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.records import is_number

# ----
# How often hooks ran, with which outcome and for how long, added up from the audit log's lines.
#
# No text of a line becomes a name here: hooks and outcomes are of a closed vocabulary, and what is
# not in it counts as `other`. Pure.

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
    return value / 1000 if is_number(value) and value >= 0 else None


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


# ---- Which metrics there are of a node's hooks; pure ---------------------------------------------


@dataclass(frozen=True)
class NodeFacts:
    """What is so right now.

    Args:
        jobs_prepared: Jobs that have something prepared on this node.
        is_policy_valid: The hooks can use the policy.
        is_enabled: It is turned on.
        version: Of slurm_colloc.
    """

    jobs_prepared: int
    is_policy_valid: bool
    is_enabled: bool
    version: str


def build_families(totals: HookTotals, facts: NodeFacts) -> list[MetricFamily]:
    """All metrics of a node."""
    families: list[MetricFamily] = []

    def declare(name: str, kind: Kind, description: str) -> MetricFamily:
        families.append(MetricFamily(f"slurm_colloc_{name}", kind, description))
        return families[-1]

    runs = declare("hook_runs_total", "counter", "Runs of hooks that are in the audit log.")
    for (hook, outcome), count in sorted(totals.runs.items()):
        runs.add(count, hook=hook, outcome=outcome)
    durations = declare("hook_duration_seconds", "histogram", "How long runs of hooks took.")
    for hook, found in sorted(totals.durations.items()):
        durations.add_histogram(BUCKETS_S, found.counts, found.sum_s, hook=hook)
    told = "When a hook ran last, Unix time."
    last_run = declare("hook_last_run_timestamp_seconds", "gauge", told)
    for hook, at in sorted(totals.last_run_s.items()):
        last_run.add(at, hook=hook)
    told = "Runs of hooks that found the node not fit for the next job."
    declare("hook_unsafe_ends_total", "counter", told).add(totals.unsafe_ends)
    told = "Damaged lines of the audit log."
    declare("audit_unreadable_lines_total", "counter", told).add(totals.unreadable_lines)
    told = "Jobs that have something prepared on this node."
    declare("jobs_prepared", "gauge", told).add(facts.jobs_prepared)
    told = "1 where hooks can use the node's policy."
    declare("policy_valid", "gauge", told).add(int(facts.is_policy_valid))
    told = "1 where the node's policy lets prologs prepare."
    declare("policy_enabled", "gauge", told).add(int(facts.is_enabled))
    told = "1, with the version of slurm_colloc on this node."
    declare("info", "gauge", told).add(1, version=facts.version)
    return [family for family in families if family.samples]


# Prometheus' text exposition format, version 0.0.4, for node_exporter's textfile collector; pure.
#
# Written by hand, because nodes have Python's standard library alone.

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

Labels = Mapping[str, str]
Kind = Literal["counter", "gauge", "histogram"]


@dataclass
class MetricFamily:
    """All samples of one metric.

    Args:
        name: Its name; a counter's ends with `_total`.
        kind: What it is.
        description: What it means, in one sentence.
        samples: Suffix of the name, labels and value of each.
    """

    name: str
    kind: Kind
    description: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add a sample of a counter or a gauge."""
        self.samples.append(("", labels, value))

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """Add a histogram.

        Args:
            bounds: Upper bounds, rising, without the infinite one.
            counts: How many were at most that and above the bound before, one more than bounds.
            total: The sum of all that was observed.
            labels: Labels of all of its samples.
        """
        so_far = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            so_far += count
            self.samples.append(("_bucket", {**labels, "le": format_value(bound)}, so_far))
        self.samples.append(("_sum", labels, total))
        self.samples.append(("_count", labels, so_far))


def render_families(families: Sequence[MetricFamily]) -> str:
    """The text of some metrics.

    Raises:
        ValueError: A name is none that the format allows.
    """
    lines = []
    for family in families:
        if not _NAME.fullmatch(family.name):
            raise ValueError(f"no name of a metric: {family.name!r}")
        lines.append(f"# HELP {family.name} {_escape(family.description)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            shown = _render_labels(labels)
            lines.append(f"{family.name}{suffix}{shown} {format_value(value)}")
    return "".join(f"{line}\n" for line in lines)


def format_value(value: float) -> str:
    """A number as the format has it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _render_labels(labels: Labels) -> str:
    if not labels:
        return ""
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"no name of a label: {name!r}")
    pairs = [f'{name}="{_escape(value, quote=True)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}"


def _escape(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


# ---- The totals of hooks, kept in a file, and how far the audit log is counted in them -----------
#
# A counter that was computed from the log alone would fall each time that logrotate removes a file.
# Prometheus takes a fall for a restart from 0, and would count all that is left once more.


@dataclass(frozen=True)
class Position:
    """How far the log is counted.

    Args:
        device: Of the file that was read last.
        inode: Its number. It keeps it when it is rotated, until it is compressed.
        offset: The first of its bytes that is not counted yet.
        newest_s: The time of the newest line that is counted (seconds since 1970).
    """

    device: int = 0
    inode: int = 0
    offset: int = 0
    newest_s: float = 0.0


@dataclass(frozen=True)
class CountedLog:
    """What is known of all runs so far.

    Args:
        totals: The sums.
        position: What of the log is in them; None for nothing.
    """

    totals: HookTotals = field(default_factory=HookTotals)
    position: Position | None = None


def read_totals(path: str) -> CountedLog:
    """Read the kept totals; empty ones where there are none, or they are damaged."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
        position = value["position"]
        return CountedLog(
            parse_value(value["totals"]),
            None
            if position is None
            else Position(
                int(position["device"]),
                int(position["inode"]),
                int(position["offset"]),
                float(position["newest_s"]),
            ),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return CountedLog()


def write_totals(path: str, counted: CountedLog) -> None:
    """Keep the totals for the next time.

    Raises:
        NodeError: Another user could exchange what is written.
        StateError: It cannot be written.
    """
    position = None if counted.position is None else vars(counted.position)
    value = {"totals": build_value(counted.totals), "position": position}
    directory, name = os.path.split(os.path.dirname(path))
    with failed_to("write", path):
        with opened_directory(directory) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        write_whole(path, json.dumps(value).encode() + b"\n", 0o644)


def count_log(path: str, before: CountedLog) -> CountedLog:
    """Add what the log has got since; changes `before.totals`.

    Args:
        path: The newest file of the log; empty where none is kept.
        before: What is counted already.

    Raises:
        StateError: The log cannot be read.
    """
    files = list_log_files(path) if path else []
    start, position = _find_start(files, before.position)
    totals, newest_s = before.totals, position.newest_s
    # Where the file that was read last is gone, only the time tells what is new.
    counted_until_s = newest_s if before.position is not None and start is None else None
    for number, name in enumerate(files[start or 0 :]):
        opened = _open(name)
        with opened as file:
            status = os.stat(name)
            offset = position.offset if start is not None and number == 0 else 0
            file.seek(offset)
            for line in _whole_lines(file):
                offset += len(line)
                if not line.strip():
                    continue
                entry = parse_entry(line.decode("utf-8", "replace"))
                at = None if entry is None else parse_time(entry)
                if counted_until_s is not None and (at is None or at <= counted_until_s):
                    continue
                totals.add(entry)
                newest_s = max(newest_s, at or 0.0)
        position = Position(status.st_dev, status.st_ino, offset, newest_s)
    return CountedLog(totals, position if files or before.position else None)


def _find_start(files: list[str], position: Position | None) -> tuple[int | None, Position]:
    """Which file to go on with, None for the oldest."""
    if position is None:
        return None, Position()
    for number, name in enumerate(files):
        with contextlib.suppress(OSError):
            status = os.stat(name)
            is_same = (status.st_dev, status.st_ino) == (position.device, position.inode)
            if is_same and not name.endswith(".gz") and status.st_size >= position.offset:
                return number, position
    return None, position


def _open(name: str) -> Any:
    import gzip

    with failed_to("read", name):
        return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")


def _whole_lines(file: BinaryIO) -> Iterable[bytes]:
    """Lines up to their end: the last may just be written."""
    try:
        for line in file:
            if line.endswith(b"\n"):
                yield line
    except (OSError, EOFError) as error:
        # A compressed file that is damaged has lost its rest.
        raise StateError(f"cannot read {file.name}: {error}") from error
