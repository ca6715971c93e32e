"""`csub history`: members that have ended, newest first, from the state directory alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.report.queue_rows import (
    Found,
    build_member_json,
    format_elapsed_of,
    insert_column,
    list_argument_words,
)
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.pack_directory import read_end_limit, read_end_time

HEADER = ("MEMBER", "NAME", "STATE", "EXIT", "MODE", "NODE", "TIME", "ENDED")


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
    """The header, and one row per member; a column of arguments where a member has such."""
    words = list_argument_words([(entry.view, entry.member) for entry in ended])
    return insert_column(HEADER, build_rows(ended, now), HEADER[-1], "ARGS", words)


def build_rows(ended: Iterable[Ended], now: float) -> list[tuple[str, ...]]:
    """One row per member."""
    rows: list[tuple[str, ...]] = []
    for entry in ended:
        member = entry.member
        record = member.record
        rows.append(
            (
                str(member.member),
                member.name,
                member.state.value,
                str(record.exit_code) if record and record.exit_code else "",
                entry.view.mode_of(member),
                (record.node or "") if record else "",
                format_elapsed_of(member, now),
                format_ended(entry),
            )
        )
    return rows


def format_ended(entry: Ended) -> str:
    """`2026-11-21T10:01:07`; `by ...` where only its latest time is known."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(entry.by))
    return text if entry.is_exact else f"by {text}"


def build_json(ended: Iterable[Ended], now: float) -> list[dict[str, Any]]:
    """Members with the fields that docs/json.md describes."""
    return [
        {**build_member_json(entry.view, entry.member, now), "ended_by": entry.by}
        for entry in ended
    ]
