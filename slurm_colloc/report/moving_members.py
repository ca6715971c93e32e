"""Members that went from one pack of their submission to another while both were looked at; pure.

Packs are looked at one after the other. So a member may be seen in both, or in none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import (
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
    # A pack alone cannot have given one away.
    missed = {name for name in missed if names.count(name) > 1}
    return [place for place, name in enumerate(names) if name in missed]


def show_once(views: Sequence[PackView]) -> list[PackView]:
    """The packs, each member only in the one where it was seen last.

    Args:
        views: The packs in the order in which they were looked at.
    """
    last, names = _find_last(views), _name_submissions(views)
    shown = []
    for place, (name, view) in enumerate(zip(names, views, strict=True)):
        kept = tuple(m for m in view.members if last[name, m.member.number] == place)
        is_whole = len(kept) == len(view.members)
        shown.append(view if is_whole else dataclasses.replace(view, members=kept))
    return shown


def _find_last(views: Sequence[PackView]) -> dict[tuple[str, int], int]:
    names = _name_submissions(views)
    return {
        (name, member.member.number): place
        for place, (name, view) in enumerate(zip(names, views, strict=True))
        for member in view.members
    }


def _name_submissions(views: Sequence[PackView]) -> list[str]:
    """What is the same for the packs of one call: the name of its first Slurm job."""
    first = {name: view.record.submission for view in views for name, _ in view.record.parts}
    return [first.get(view.record.submission, view.record.submission) for view in views]
