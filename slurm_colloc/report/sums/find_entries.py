"""The entries of all packs of a user that have ended within a time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.report.summary.summary_file import read_summary
from slurm_colloc.report.sums.pack_entry import PackEntry, build_entry, read_entry
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.learned.due_summaries import list_due
from slurm_colloc.store.pack.member_states import read_attempt
from slurm_colloc.store.pack_reading import StateReader
from slurm_colloc.store.summary_index import append_entries, keep_entries, read_index


@dataclass(frozen=True)
class FoundEntries:
    """Entries, and for how many packs there are none.

    Attributes:
        entries: The packs that have ended within the time.
        running: Packs that are not over.
        without: Packs that began, have ended within the time and have no summary.
    """

    entries: list[PackEntry]
    running: int
    without: int


def find_entries(state: StateReader, since: float) -> FoundEntries:
    """The packs that have ended since a moment.

    What the index lacks is read from summaries, and written into it where the state is the
    caller's own.

    Args:
        state: The state directory.
        since: In seconds since the epoch.

    Raises:
        StateError: The state directory cannot be read.
    """
    index = read_index(state.root)
    are_open = set(state.list_open())
    known = [pack_id for pack_id in state.list_all() if pack_id not in are_open]
    found: dict[str, PackEntry | None] = {}
    for pack_id in known:
        if pack_id in index:
            # A line that this csub cannot read is made anew.
            with contextlib.suppress(ValueError):
                found[pack_id] = read_entry(index[pack_id])
    fresh: list[dict[str, Any]] = []
    missing = [pack_id for pack_id in known if pack_id not in found]
    due = list_due(state.root) if missing else {}
    without = [entry["end"] for entry in index.values() if entry.get("none") is True]
    for pack_id in missing:
        entry = _read_entry(state, pack_id)
        if entry is not None:
            found[pack_id] = read_entry(entry)
            fresh.append(entry)
            continue
        end = _read_end(state, pack_id)
        without.append(end)
        if pack_id not in due:
            # It never gets one: it is looked at once.
            fresh.append({"pack": pack_id, "none": True, "end": end})
    if isinstance(state, State):
        append_entries(state.root, fresh)
        if len(index) > len(known):
            keep_entries(state.root, [*known, *are_open])
    entries = [entry for entry in found.values() if entry is not None and entry.ended_at >= since]
    return FoundEntries(
        sorted(entries, key=lambda entry: entry.ended_at),
        len(are_open),
        sum(end >= since for end in without),
    )


def _read_end(state: StateReader, pack_id: str) -> float:
    """When a pack ended; 0 where it never began, as one that was cancelled or emptied first."""
    path = state.pack_path(pack_id)
    try:
        # The last thing that happens to a pack changes its directory.
        return path.stat().st_mtime if read_attempt(path) else 0.0
    except (OSError, StateError):
        return 0.0


def _read_entry(state: StateReader, pack_id: str) -> dict[str, Any] | None:
    """A pack's entry by its summary; None where it has none that can be read."""
    summary = read_summary(state.pack_path(pack_id))
    if summary is None:
        return None
    try:
        return build_entry(summary)
    except (CollocError, KeyError, TypeError, AttributeError):
        return None
