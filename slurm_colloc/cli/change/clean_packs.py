"""`csub clean`: forgetting packs that are over."""

from __future__ import annotations

import time

from slurm_colloc.cli.look.queue_and_history import parse_age
from slurm_colloc.cli.session import Session, note
from slurm_colloc.report.ended_members import collect_ended, list_changed_since
from slurm_colloc.report.member_views import (
    PackView,
)
from slurm_colloc.store.pack.pack_directory import is_local_alive, read_ended
from slurm_colloc.store.remove_packs import measure_bytes, remove_pack, remove_remains
from slurm_colloc.store.snapshots import FOLDER, remove_snapshots


def clean(session: Session, older_than: str, *, dry_run: bool) -> str:
    """Remove the packs that have been over for so long; what was done, as a line.

    Raises:
        UsageProblem: The age cannot be read.
        StateError: A pack cannot be removed.
    """
    before = time.time() - parse_age("--older-than", older_than)
    changed = {*session.state.list_open(), *list_changed_since(session.state, before)}
    # Slurm is asked and the state swept all the same: what is over may not be marked yet.
    views = session.survey_kept(changed)
    count = members = size = 0
    for view in views:
        if not is_over(session, view, before):
            continue
        path = session.state.pack_path(view.record.pack_id)
        taken = measure_bytes(path)
        if dry_run or remove_pack(session.own_state, view.record.pack_id):
            count += 1
            members += len(view.members)
            size += taken
    if not dry_run:
        remove_remains(session.own_state)
    if (session.state.root / FOLDER).is_dir():
        _clean_snapshots(session, before, dry_run=dry_run)
    what = "would be removed" if dry_run else "removed"
    return (
        f"{count} pack{'s' * (count != 1)} with {members} member{'s' * (members != 1)} {what}, "
        f"{size / 1e6:.1f} MB; kept: {len(session.state.list_all()) - (count if dry_run else 0)}"
    )


def _clean_snapshots(session: Session, before: float, *, dry_run: bool) -> None:
    """Remove copies of projects in which no job that is kept runs or ran."""
    views = session.survey_kept(())
    used = {member.spec.job.snapshot for view in views for member in view.members}
    count, kept = remove_snapshots(session.state.root, used, before, dry_run=dry_run)
    if count:
        what = "would be removed" if dry_run else "removed"
        note(f"{count} snapshot{'s' * (count != 1)} of projects {what}")
    for path in kept:
        note(f"kept, because jobs have written into it: {path}")


def is_over(session: Session, view: PackView, before: float) -> bool:
    """A pack of this cluster whose members have all ended by then, and whose books are closed."""
    path = session.state.pack_path(view.record.pack_id)
    closed = read_ended(path) is not None or not (path / "inbox").exists()
    is_of_another = view.is_elsewhere and bool(view.record.cluster)
    if is_of_another or not closed or not view.job_id or is_local_alive(path):
        return False
    ended = collect_ended(session.state, [(view, view.members)], 0.0)
    return len(ended) == len(view.members) and all(entry.by <= before for entry in ended)
