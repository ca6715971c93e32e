"""Members that went from one pack to another while both were looked at; pure.

Packs are looked at one after the other. So a member may be seen in both, or in none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_colloc.model.member import is_guest

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import (
        MemberView,
        PackView,
    )


def find_stale(views: Sequence[PackView]) -> list[int]:
    """Positions of the packs to look at again, because a member of theirs is seen in none.

    Args:
        views: The packs in the order in which they were looked at.
    """
    seen = _find_last(views)
    names = _name_submissions(views)
    missed = {
        name
        for name, view in zip(names, views, strict=True)
        if any((name, number) not in seen for number in view.record.members)
    }
    # A pack alone cannot have given one away, unless to one that has members of others.
    mixed = {p for p, view in enumerate(views) if any(map(_is_guest, view.members))}
    missed = {name for name in missed if names.count(name) > 1 or mixed}
    return [
        place for place, name in enumerate(names) if missed and (name in missed or place in mixed)
    ]


def show_once(views: Sequence[PackView]) -> list[PackView]:
    """The packs, each member only in the one where it was seen last.

    Args:
        views: The packs in the order in which they were looked at.
    """
    last, names = _find_last(views), _name_submissions(views)
    calls = _name_calls(views, names)
    shown = []
    for place, (name, view) in enumerate(zip(names, views, strict=True)):
        kept = tuple(m for m in view.members if last[_key(m, name, calls)] == place)
        is_whole = len(kept) == len(view.members)
        shown.append(view if is_whole else dataclasses.replace(view, members=kept))
    return shown


def _find_last(views: Sequence[PackView]) -> dict[tuple[str, int], int]:
    names = _name_submissions(views)
    calls = _name_calls(views, names)
    return {
        _key(member, name, calls): place
        for place, (name, view) in enumerate(zip(names, views, strict=True))
        for member in view.members
    }


def _is_guest(member: MemberView) -> bool:
    return is_guest(member.place)


def _key(member: MemberView, name: str, calls: Mapping[str, str]) -> tuple[str, int]:
    """What is the same for a member wherever it is: its call and its number there."""
    if _is_guest(member):
        name = calls.get(member.member.job, member.member.job)
    return name, member.member.number


def _name_calls(views: Sequence[PackView], names: Sequence[str]) -> dict[str, str]:
    """The name of each call by the id after which its members are named."""
    return {view.shown_id: name for name, view in zip(names, views, strict=True)}


def _name_submissions(views: Sequence[PackView]) -> list[str]:
    """What is the same for the packs of one call: the name of its first Slurm job."""
    first = {
        name: view.record.submission
        for view in views
        if not view.record.shown_id
        for name, _ in view.record.parts
    }
    return [first.get(view.record.submission, view.record.submission) for view in views]
