"""`csub history`: members that have ended, newest first, from the state directory alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.quantities import format_moment
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.report.queue_rows import (
    Found,
    Shown,
    build_member_json,
    insert_column,
    list_argument_words,
    read_fields,
)
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.pack_directory import read_end_limit, read_end_time

HEADER = ("MEMBER", "NAME", "STATE", "EXIT", "MODE", "NODE", "TIME", "ENDED")
_SHOWN = ("JobID", "JobName", "State", "ExitCode", "Mode", "NodeList", "Elapsed")
"""All but the last of them, as `--format` calls them."""


@dataclass(frozen=True)
class Ended:
    """A member that has ended.

    Attributes:
        view: Its pack.
        member: The member.
        by: When it ended, or the latest moment at which it can have ended.
        is_exact: It is when it ended.
    """

    view: PackView
    member: MemberView
    by: float
    is_exact: bool


def list_changed_since(state: StateReader, since: float) -> list[str]:
    """Packs in which a member can have ended since then: open ones, and by their time stamps.

    The last thing that happens to a pack changes its directory: its runner closes the inbox, or
    csub writes Slurm's last word.
    """
    is_open = set(state.list_open())
    found = []
    for pack_id in state.list_all():
        try:
            if pack_id in is_open or os.stat(f"{state.packs}/{pack_id}").st_mtime >= since:  # noqa: PTH116
                found.append(pack_id)
        except FileNotFoundError:
            continue
        except OSError:
            # It is named where its files are read.
            found.append(pack_id)
    return found


def collect_ended(state: StateReader, found: Found, since: float) -> list[Ended]:
    """Members that have ended since then, newest first."""
    ended = []
    for view, members in found:
        by, pack_end = _read_latest_end(state, view)
        for member in members:
            if member.is_final:
                record = member.record
                at = None if record is None else record.ended_at
                if at is None and (record is None or not record.starts):
                    # What never started has ended with its pack.
                    at = pack_end
                ended.append(Ended(view, member, by if at is None else at, at is not None))
    ended = [entry for entry in ended if entry.by >= since]
    return sorted(ended, key=lambda entry: (-entry.by, entry.member.member))


def _read_latest_end(state: StateReader, view: PackView) -> tuple[float, float | None]:
    """The latest moment at which a pack can have ended, and when it did, where that is known."""
    path = state.pack_path(view.record.pack_id)
    with contextlib.suppress(OSError, StateError):
        limit = read_end_limit(path)
        return path.stat().st_mtime if limit is None else limit, read_end_time(path)
    return view.record.created_at, None


def build_table(
    ended: Sequence[Ended], now: float
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header, and one row per member; a column of arguments where a member has such.

    Where only the latest time at which it can have ended is known, `by` stands before that.
    """
    words = list_argument_words([(entry.view, entry.member) for entry in ended])
    rows = [
        (
            *read_fields(_SHOWN, Shown(entry.view, entry.member, now)),
            f"{'' if entry.is_exact else 'by '}{format_moment(entry.by)}",
        )
        for entry in ended
    ]
    return insert_column(HEADER, rows, HEADER[-1], "ARGS", words)


def build_json(ended: Iterable[Ended], now: float) -> list[dict[str, Any]]:
    """Members with the fields that docs/json.md describes."""
    return [
        {**build_member_json(entry.view, entry.member, now), "ended_by": entry.by}
        for entry in ended
    ]
