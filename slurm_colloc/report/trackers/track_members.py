"""Giving the members of packs to a tracker, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from slurm_colloc.errors import NodeError
from slurm_colloc.report.summary.sample_tables import read_table
from slurm_colloc.report.summary.summary_shape import Summary
from slurm_colloc.report.trackers.tracker_values import TrackerValues, build_values
from slurm_colloc.store.pack.kept_tracker_runs import TrackerRun, read_tracker_runs
from slurm_colloc.store.pack.sample_files import GPU_COLUMNS, MEMBER_COLUMNS, list_sample_files

Rows = list[dict[str, Any]]


class MemberRefused(NodeError):
    """A tracker does not take one member; it may take others."""


class Tracker(Protocol):
    """Something that takes members."""

    def track(self, values: TrackerValues, own: TrackerRun | None, stamp: str) -> str:
        """Take one; what was done, for people.

        Raises:
            MemberRefused: It does not take this one.
            CollocError: It takes none now.
        """


def track_pack(
    tracker: Tracker, kind: str, pack: Path, summary: Summary, numbers: frozenset[int] | None
) -> Iterator[tuple[str, str | MemberRefused]]:
    """Give the members of a pack that have run to a tracker; those that still run only are named.

    Args:
        tracker: It.
        kind: `mlflow` or `wandb`: of these, members' own runs are looked for.
        pack: The pack's directory.
        summary: Its summary, complete.
        numbers: The members that are meant; None for all.

    Yields:
        A member's id, and what was done, or why the tracker does not take it.

    Raises:
        CollocError: The tracker takes none now.
    """
    own: dict[int, TrackerRun] = {}
    for run in read_tracker_runs(pack):
        # Of several the last: one that was started again has opened another.
        if run.tracker == kind:
            own[run.member] = run
    problems: list[str] = []
    members = _read(pack, "members", MEMBER_COLUMNS, problems)
    gpu = [
        row
        for row in _read(pack, "gpu", GPU_COLUMNS, problems)
        if row["uuid"] == summary["gpu"]["uuid"]
    ]
    by_number: dict[int, Rows] = {}
    for row in members:
        by_number.setdefault(row["member"], []).append(row)
    stamp = (
        f"{summary['pack_id']}.{summary['attempt']}.{'final' if summary['final'] else 'running'}"
    )
    for member in summary["members"]:
        if member["started_at"] is None or (
            numbers is not None and member["member"] not in numbers
        ):
            continue
        if member["ended_at"] is None:
            # Its own run is being written.
            yield str(member["id"]), "still runs: call it again when it has ended"
            continue
        values = build_values(summary, member, by_number.get(member["member"], []), gpu)
        try:
            done: str | MemberRefused = tracker.track(values, own.get(member["member"]), stamp)
        except MemberRefused as problem:
            done = problem
        yield values.name, done


def _read(
    pack: Path, table: str, columns: tuple[tuple[str, str], ...], problems: list[str]
) -> Rows:
    names = [name for name, _ in columns]
    rows, _ = read_table(
        list_sample_files(pack, table),
        lambda _files: ((lambda batch: batch), names, 0.0),
        problems,
    )
    if rows is None:
        return []
    found: Rows = rows.sort_by("at").to_pylist()
    return found
