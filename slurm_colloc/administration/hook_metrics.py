"""Which metrics there are of a node's hooks; pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.administration.exposition import Family
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


def build_families(totals: HookTotals, facts: NodeFacts) -> list[Family]:
    """All metrics of a node."""
    runs = Family(
        "slurm_colloc_hook_runs_total", "counter", "Runs of hooks that are in the audit log."
    )
    for (hook, outcome), count in sorted(totals.runs.items()):
        runs.add(count, hook=hook, outcome=outcome)
    durations = Family(
        "slurm_colloc_hook_duration_seconds", "histogram", "How long runs of hooks took."
    )
    for hook, found in sorted(totals.durations.items()):
        durations.add_histogram(BUCKETS_S, found.counts, found.sum_s, hook=hook)
    last_run = Family(
        "slurm_colloc_hook_last_run_timestamp_seconds", "gauge", "When a hook ran last, Unix time."
    )
    for hook, at in sorted(totals.last_run_s.items()):
        last_run.add(at, hook=hook)
    unsafe = Family(
        "slurm_colloc_hook_unsafe_ends_total",
        "counter",
        "Runs of hooks that found the node not fit for the next job.",
    )
    unsafe.add(totals.unsafe_ends)
    unreadable = Family(
        "slurm_colloc_audit_unreadable_lines_total", "counter", "Damaged lines of the audit log."
    )
    unreadable.add(totals.unreadable_lines)
    jobs = Family(
        "slurm_colloc_jobs_prepared", "gauge", "Jobs that have something prepared on this node."
    )
    jobs.add(facts.jobs_prepared)
    valid = Family("slurm_colloc_policy_valid", "gauge", "1 where hooks can use the node's policy.")
    valid.add(int(facts.is_policy_valid))
    enabled = Family(
        "slurm_colloc_policy_enabled", "gauge", "1 where the node's policy lets prologs prepare."
    )
    enabled.add(int(facts.is_enabled))
    info = Family("slurm_colloc_info", "gauge", "1, with the version of slurm_colloc on this node.")
    info.add(1, version=facts.version)
    families = [runs, durations, last_run, unsafe, unreadable, jobs, valid, enabled, info]
    return [family for family in families if family.samples]
