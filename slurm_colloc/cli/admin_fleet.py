"""`csub admin fleet`: what packs of all users report, collected, summed up, exported."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from slurm_colloc.administration.fleet_spool import Accepted, collect, remove_done
from slurm_colloc.administration.fleet_sums import (
    FleetGpuPace,
    FleetRow,
    add_refused,
    build_blob,
    build_fleet_families,
    choose_day,
    compare_gpus,
    keep,
    may_replace,
    read_days,
    read_refused,
    sum_fleet,
)
from slurm_colloc.cli.admin_hooks import require_prom, say, say_json, warn, write_prom
from slurm_colloc.errors import CollocError, NodeError, UsageProblem
from slurm_colloc.model.printable import align_columns, escape_controls
from slurm_colloc.model.quantities import parse_age_s
from slurm_colloc.report.terminal_tables import format_part
from slurm_colloc.slurm.accounting import AccountedJob, read_accounts, set_admin_comment

_GPU_AGE = "30d"
_TABLE_AGE = "7d"


def collect_reports(options: argparse.Namespace) -> int:
    """Take reports out of the spool, keep those that agree with Slurm, and export.

    Raises:
        CollocError: Slurm cannot be asked, or a file cannot be read or written.
    """
    require_prom(options.metrics)
    found = collect(options.spool, read_accounts)
    if not options.dry_run:
        # First what is kept: a report that is read twice counts once.
        keep(options.store, found.accepted)
        add_refused(options.store, found.rejected)
        left = remove_done(options.spool, found.done)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            warn(
                f"{left[0]}{more} cannot be removed from {options.spool}: the spool is another "
                "user's, or these are directories with something in them, which root can remove"
            )
    if found.uncounted:
        warn(
            f"{found.uncounted} reports name a GPU, and Slurm's accounting none for their jobs; "
            "they wait for a day: AccountingStorageTRES needs gres/gpu"
        )
    refused = ", ".join(f"{count} by {name}" for name, count in sorted(found.rejected.items()))
    say(
        f"{len(found.accepted)} reports {'would be kept' if options.dry_run else 'kept'}, "
        f"{found.rejected.total()} refused{f' ({refused})' if refused else ''}, "
        f"{found.waiting} wait for Slurm's accounting"
    )
    if options.admin_comment and not options.dry_run:
        say(f"{write_comments(found.accepted)} comments written")
    if options.metrics and not options.dry_run:
        _write_metrics(options.store, options.metrics)
    return 0


def write_comments(accepted: Sequence[Accepted]) -> int:
    """Give jobs an AdminComment in jobstats' form, where they have none; how many.

    Whether they have one is asked again just before: Slurm has no way to write only then.
    """
    last = {entry.job.raw_id: entry for entry in accepted}
    fresh = read_accounts(sorted(entry.job.job_id for entry in last.values())) if last else {}
    written = 0
    for entry in last.values():
        job = fresh.get(entry.job.job_id)
        if job is None or not may_replace(job.admin_comment):
            continue
        blob = build_blob(entry.record, job)
        if not blob or blob == job.admin_comment:
            continue
        try:
            write_comment(job, blob)
        except CollocError as problem:
            warn(f"the AdminComment of job {job.job_id} was not written: {problem}")
            return written
        written += 1
    return written


def write_comment(job: AccountedJob, blob: str) -> None:
    """Write a job's AdminComment and look whether it is there as it was written.

    Raises:
        SlurmError: Slurm refuses it.
        NodeError: Slurm has changed it; it was taken away again.
    """
    set_admin_comment(job.raw_id, blob)
    after = read_accounts([job.job_id]).get(job.job_id)
    if after is None or after.admin_comment == blob:
        return
    if after.admin_comment == blob.lower():
        set_admin_comment(job.raw_id, job.admin_comment)
        raise NodeError(
            "this Slurm's sacctmgr makes comments lower case (seen on 22.05)",
            hint="jobstats' form needs a later release; leave --admin-comment out",
        )


def _write_metrics(store: str, path: str) -> None:
    packs = read_days(store)
    now = time.time()
    recent = choose_day(now - parse_age_s(_GPU_AGE))
    families = build_fleet_families(
        sum_fleet(packs, by_day=False),
        compare_gpus([pack for pack in packs if pack.day >= recent]),
        read_refused(store),
        now,
    )
    write_prom(path, families)


def show_table(options: argparse.Namespace) -> int:
    """Print sums by day, account and partition.

    Raises:
        CollocError: They cannot be read, or `--since` is not an age.
    """
    rows = sum_fleet(read_days(options.store, _choose_since(options.since or _TABLE_AGE)))
    if options.json:
        say_json({"schema": 1, "rows": [_build_object(row) for row in rows]})
        return 0
    head = ("DAY", "ACCOUNT", "PARTITION", "PACKS", "MEMBERS", "FAILED", "GPU_HOURS",
            "HOURS_SAVED", "HOURS_WASTED", "SLOWDOWN", "SM_ACTIVE", "KWH")  # fmt: skip
    _say_table(
        head,
        [
            (row.day, row.account, row.partition, str(row.packs), str(row.members),
             str(row.failed), f"{row.gpu_hours:.1f}",
             _format_some(row.saved_hours, "{:.1f}", row.saved_of, row.shared),
             f"{row.wasted_hours:.1f}",
             _format_some(row.slowdown, "{:.2f}", row.slowdowns_of, row.members),
             _format(row.sm_active, "{:.0%}"), _format(row.energy_kwh, "{:.2f}"))
            for row in rows
        ],
    )  # fmt: skip
    return 0


def show_gpus(options: argparse.Namespace) -> int:
    """Print GPUs by their pace, the slowest first.

    Raises:
        CollocError: They cannot be read, or `--since` is not an age.
    """
    paces = compare_gpus(read_days(options.store, _choose_since(options.since or _GPU_AGE)))
    if options.json:
        say_json({"schema": 1, "gpus": [_build_gpu(pace) for pace in paces]})
        return 0
    _say_table(
        ("NODE", "GPU", "MODEL", "RATE", "JOBS", "USERS", "THROTTLED", "SLOW"),
        [
            (pace.node, pace.uuid, pace.model, _format(pace.rate, "{:.3f}"), str(pace.jobs),
             str(pace.users), _format(pace.throttled, "{:.0%}"), "yes" if pace.is_slow else "")
            for pace in paces
        ],
    )  # fmt: skip
    return 0


def _choose_since(age: str) -> str:
    try:
        return choose_day(time.time() - parse_age_s(age))
    except ValueError as error:
        raise UsageProblem(f"--since: {error}") from error


def _build_object(row: FleetRow) -> dict[str, Any]:
    return {
        "day": row.day, "account": row.account, "partition": row.partition, "packs": row.packs,
        "members": row.members, "failed_members": row.failed, "gpu_hours": row.gpu_hours,
        "gpu_hours_saved": row.saved_hours, "gpu_hours_saved_of_packs": row.saved_of,
        "packs_shared": row.shared, "gpu_hours_wasted": row.wasted_hours,
        "mean_slowdown": row.slowdown, "mean_slowdown_of_members": row.slowdowns_of,
        "sm_active": row.sm_active,
        "energy_kwh": row.energy_kwh, "kwh_saved": row.saved_kwh,
    }  # fmt: skip


def _build_gpu(pace: FleetGpuPace) -> dict[str, Any]:
    return {
        "node": pace.node, "uuid": pace.uuid, "model": pace.model, "normalised_rate": pace.rate,
        "jobs": pace.jobs, "users": pace.users, "throttled": pace.throttled,
        "slow": pace.is_slow,
    }  # fmt: skip


def _format(value: float | None, form: str) -> str:
    return "unknown" if value is None else form.format(value)


def _format_some(value: float | None, form: str, known: int, count: int) -> str:
    """`1.00 (2 of 77)`: of how many a figure is, where that is some of them only."""
    return format_part(_format(value, form), known, count)


def _say_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose first three columns are texts."""
    table = [head, *(tuple(map(escape_controls, row)) for row in rows)]
    for line in align_columns(table, range(3, len(head))):
        say(line)


def add_fleet(commands: Any) -> None:
    """Declare the commands."""
    parser = commands.add_parser(
        "fleet",
        help="what packs of all users report, collected and summed up",
        description="What packs of all users report to the site (setting fleet_spool): collected "
        "from the spool, compared with Slurm's accounting, kept by day.",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    collecting = parts.add_parser("collect", help="take reports out of the spool")
    collecting.add_argument("--spool", metavar="DIR", required=True, help="users put them there")
    collecting.add_argument(
        "--metrics", metavar="FILE", default="", help="write Prometheus metrics, as FILE.prom"
    )
    collecting.add_argument(
        "--admin-comment",
        action="store_true",
        help="give jobs without an AdminComment one in jobstats' form; Slurm must let you",
    )
    collecting.add_argument("--dry-run", action="store_true", help="only say what would be done")
    collecting.set_defaults(run=collect_reports)
    table = parts.add_parser("table", help="GPU hours by day, account and partition")
    table.set_defaults(run=show_table)
    gpus = parts.add_parser("gpus", help="GPUs that are slower than others of their model")
    gpus.set_defaults(run=show_gpus)
    for part, age in ((table, _TABLE_AGE), (gpus, _GPU_AGE)):
        part.add_argument("--since", metavar="AGE", default="", help=f"{age} where not said")
        part.add_argument("--json", action="store_true", help="print one JSON value")
    for part in (collecting, table, gpus):
        part.add_argument("--store", metavar="DIR", required=True, help="where they are kept")
