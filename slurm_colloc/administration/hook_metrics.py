"""Which metrics there are of a node's hooks; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slurm_colloc.administration.hook_totals import BUCKETS_S, HookTotals


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
    runs = MetricFamily(
        "slurm_colloc_hook_runs_total", "counter", "Runs of hooks that are in the audit log."
    )
    for (hook, outcome), count in sorted(totals.runs.items()):
        runs.add(count, hook=hook, outcome=outcome)
    durations = MetricFamily(
        "slurm_colloc_hook_duration_seconds", "histogram", "How long runs of hooks took."
    )
    for hook, found in sorted(totals.durations.items()):
        durations.add_histogram(BUCKETS_S, found.counts, found.sum_s, hook=hook)
    last_run = MetricFamily(
        "slurm_colloc_hook_last_run_timestamp_seconds", "gauge", "When a hook ran last, Unix time."
    )
    for hook, at in sorted(totals.last_run_s.items()):
        last_run.add(at, hook=hook)
    unsafe = MetricFamily(
        "slurm_colloc_hook_unsafe_ends_total",
        "counter",
        "Runs of hooks that found the node not fit for the next job.",
    )
    unsafe.add(totals.unsafe_ends)
    unreadable = MetricFamily(
        "slurm_colloc_audit_unreadable_lines_total", "counter", "Damaged lines of the audit log."
    )
    unreadable.add(totals.unreadable_lines)
    jobs = MetricFamily(
        "slurm_colloc_jobs_prepared", "gauge", "Jobs that have something prepared on this node."
    )
    jobs.add(facts.jobs_prepared)
    valid = MetricFamily(
        "slurm_colloc_policy_valid", "gauge", "1 where hooks can use the node's policy."
    )
    valid.add(int(facts.is_policy_valid))
    enabled = MetricFamily(
        "slurm_colloc_policy_enabled", "gauge", "1 where the node's policy lets prologs prepare."
    )
    enabled.add(int(facts.is_enabled))
    info = MetricFamily(
        "slurm_colloc_info", "gauge", "1, with the version of slurm_colloc on this node."
    )
    info.add(1, version=facts.version)
    families = [runs, durations, last_run, unsafe, unreadable, jobs, valid, enabled, info]
    return [family for family in families if family.samples]


# Prometheus' text exposition format, version 0.0.4, for node_exporter's textfile collector; pure.
#
# Written by hand, because nodes have Python's standard library alone.

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

Labels = Mapping[str, str]


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
    kind: Literal["counter", "gauge", "histogram"]
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
