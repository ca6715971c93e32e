"""`csub report --since`: sums as a table, as JSON and as CSV.

Also: GPU hours, energy, slowdown and waste over many packs, by script, user, GPU or mode; the
entries of all packs of a user that have ended within a time.
"""

from __future__ import annotations

import contextlib
import enum
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.fleet_record import SharingSums
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.printable import render_csv_lines
from slurm_colloc.report.data_tables import write_cell
from slurm_colloc.report.pack_entry import PackEntry, ScriptPart, build_entry, read_entry
from slurm_colloc.report.summary_file import read_summary
from slurm_colloc.report.terminal_tables import (
    Column,
    build_lines,
    build_table,
    format_figure,
    format_part,
    format_share,
    format_slowdown,
    render,
)
from slurm_colloc.store.all_packs import State, StateReader
from slurm_colloc.store.indexes import append_entries, keep_entries, list_due, read_index
from slurm_colloc.store.member_states import read_attempt

if TYPE_CHECKING:
    from rich.console import RenderableType


# ---- GPU hours, energy, slowdown and waste over many packs, by script, user, GPU or mode; pure ---


class Grouping(enum.StrEnum):
    """What a row of sums is of."""

    SCRIPT = "script"
    USER = "user"
    GPU = "gpu"
    MODE = "mode"


UNKNOWN_GPU = "unknown"


@dataclass
class PackSums(SharingSums):
    """Sums of some packs, or of parts of them.

    A part of a pack has the share of its GPU time, of what was saved and of its energy that its
    members had of the time of all members there.

    Attributes:
        name: What they are of.
        interruption_s: Between the links of chains.
        overlap_s: For how long two links of chains held an allocation.
    """

    name: str
    interruption_s: float = 0.0
    overlap_s: float = 0.0

    def add(self, entry: PackEntry, parts: Sequence[ScriptPart]) -> None:
        """Add some parts of a pack."""
        whole_s = sum(part.present_s for part in entry.parts)
        own_s = sum(part.present_s for part in parts)
        share = own_s / whole_s if whole_s > 0 else len(parts) / len(entry.parts)
        gpu_s = entry.gpu_s * share
        self.add_use(gpu_s, entry.sm_active, entry.energy_j and entry.energy_j * share)
        self.add_saving(
            entry.saved_s and entry.saved_s * share,
            entry.saved_kwh and entry.saved_kwh * share,
            shared=entry.shared,
        )
        self.members += sum(part.members for part in parts)
        if own_s > 0:
            self.wasted_s += gpu_s * sum(part.wasted_s for part in parts) / own_s
        self.interruption_s += entry.interruption_s * share
        self.overlap_s += entry.overlap_s * share
        self.slowdowns += sum(part.slowdowns for part in parts)
        self.slowdowns_of += sum(part.known for part in parts)


def sum_packs(
    entries: Iterable[tuple[str, PackEntry]], grouping: Grouping
) -> tuple[list[PackSums], PackSums]:
    """Sums by group, the one with most GPU hours first, and of all.

    Args:
        entries: Packs, each with the name of its user.
        grouping: What a row is of.
    """
    groups: dict[str, PackSums] = {}
    total = PackSums("all")
    for user, entry in entries:
        if not entry.parts:
            continue
        total.add(entry, entry.parts)
        for name, parts in _divide(user, entry, grouping):
            groups.setdefault(name, PackSums(name)).add(entry, parts)
    found = sorted(groups.values(), key=lambda sums: (-sums.gpu_hours, sums.name))
    if grouping is Grouping.SCRIPT:
        _shorten(found)
    return found, total


def _divide(
    user: str, entry: PackEntry, grouping: Grouping
) -> list[tuple[str, tuple[ScriptPart, ...]]]:
    if grouping is Grouping.SCRIPT:
        return [(part.script, (part,)) for part in entry.parts]
    names = {
        Grouping.USER: user,
        Grouping.GPU: entry.gpu or UNKNOWN_GPU,
        Grouping.MODE: entry.mode,
    }
    return [(names[grouping], entry.parts)]


def _shorten(found: Sequence[PackSums]) -> None:
    """Call scripts by their file's name, where no other has the same."""
    counts = Counter(posixpath.basename(sums.name) for sums in found)
    for sums in found:
        base = posixpath.basename(sums.name)
        if counts[base] == 1:
            sums.name = base


# ---- `csub report --since`: sums as a table, as JSON and as CSV ----------------------------------

_HEADS = ("PACKS", "MEMBERS", "GPU\nHOURS", "HOURS\nSAVED", "HOURS\nWASTED", "MEAN\nSLOWDOWN",
          "SM\nACTIVE", "ENERGY\nKWH", "KWH\nSAVED")  # fmt: skip
_WIDE = 100
_LEFT_OUT = 2
"""In a narrow terminal so many columns at the end, those of energy, are left out."""


def render_sums(
    rows: Sequence[PackSums],
    total: PackSums,
    grouping: Grouping,
    notes: Sequence[str],
    width: int,
    *,
    styled: bool = False,
) -> str:
    """The table, with a line for all, and below it what is not in it.

    Args:
        rows: Sums by group.
        total: Of all.
        grouping: What a row is of.
        notes: What else is worth knowing.
        width: Columns of the terminal.
        styled: Heads may be bold.
    """
    columns = [
        Column(grouping.value.upper(), is_number=False, gives_way=True),
        *map(Column, _HEADS),
    ]
    cells = [_build_row(sums) for sums in (*rows, *((total,) if len(rows) > 1 else ()))]
    if width < _WIDE:
        # Figures are never cut; --csv and --json have all.
        columns, cells = columns[:-_LEFT_OUT], [row[:-_LEFT_OUT] for row in cells]
    parts: list[RenderableType] = []
    if cells:
        parts = [build_table(columns, cells, width), ""]
    lines = [("Note", text) for text in (*notes, *_tell_chains(total), *_tell_partial(total))]
    parts.append(build_lines(lines))
    return render(parts, width, styled=styled)


def _build_row(sums: PackSums) -> tuple[str, ...]:
    return (
        sums.name,
        str(sums.packs),
        str(sums.members),
        format_figure(sums.gpu_hours),
        format_part(format_figure(sums.saved_hours), sums.saved_of, sums.shared),
        format_figure(sums.wasted_hours),
        format_part(format_slowdown(sums.slowdown), sums.slowdowns_of, sums.members),
        format_share(sums.sm_active),
        format_part(format_figure(sums.energy_kwh), sums.energy_of, sums.packs),
        format_part(format_figure(sums.saved_kwh), sums.saved_kwh_of, sums.shared),
    )


def _tell_chains(total: PackSums) -> list[str]:
    if not total.interruption_s and not total.overlap_s:
        return []
    interrupted, twice = (
        format_figure(seconds / 3600, 2) for seconds in (total.interruption_s, total.overlap_s)
    )
    return [f"chains were interrupted for {interrupted} h, and held two jobs for {twice} h"]


def _tell_partial(total: PackSums) -> list[str]:
    """What `(2 of 77)` behind a figure means, where it stands behind one."""
    parts = [
        ("hours and kWh saved", min(total.saved_of, total.saved_kwh_of), total.shared,
         "the packs that shared"),
        ("energy", total.energy_of, total.packs, "the packs"),
        ("the mean slowdown", total.slowdowns_of, total.members, "the members"),
    ]  # fmt: skip
    told = [f"{name} of {of}" for name, known, count, of in parts if known < count]
    if not told:
        return []
    return [
        f"what is not known is left out; (2 of 77) says of how many a figure is: {', '.join(told)}"
    ]


def build_sums_json(
    rows: Sequence[PackSums], total: PackSums, grouping: Grouping, notes: Sequence[str]
) -> dict[str, Any]:
    """The sums as JSON; docs/json.md has the fields."""
    return {
        "schema": 1,
        "by": grouping.value,
        "rows": [_build_object(sums) for sums in rows],
        "all": _build_object(total),
        "notes": list(notes),
    }


def _build_object(sums: PackSums) -> dict[str, Any]:
    return {
        "name": sums.name,
        "packs": sums.packs,
        "members": sums.members,
        "gpu_hours": sums.gpu_hours,
        "packs_shared": sums.shared,
        "gpu_hours_saved": sums.saved_hours,
        "gpu_hours_saved_of_packs": sums.saved_of,
        "gpu_hours_wasted": sums.wasted_hours,
        "mean_slowdown": sums.slowdown,
        "mean_slowdown_of_members": sums.slowdowns_of,
        "sm_active": sums.sm_active,
        "energy_kwh": sums.energy_kwh,
        "energy_of_packs": sums.energy_of,
        "kwh_saved": sums.saved_kwh,
        "kwh_saved_of_packs": sums.saved_kwh_of,
        "chain_interruption_hours": sums.interruption_s / 3600,
        "chain_overlap_hours": sums.overlap_s / 3600,
    }


def render_sums_csv(rows: Sequence[PackSums]) -> str:
    """A line for each group, with a head."""
    cells = [[write_cell(value) for value in _build_object(sums).values()] for sums in rows]
    return render_csv_lines([list(_build_object(PackSums(""))), *cells])


# ---- The entries of all packs of a user that have ended within a time ----------------------------


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
        summary = read_summary(state.pack_path(pack_id))
        if summary is not None:
            fresh.append(build_entry(summary))
            found[pack_id] = read_entry(fresh[-1])
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
