"""The user's newest submission."""

from __future__ import annotations

import os

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.model.member import Selection
from slurm_colloc.report.member_survey import (
    survey_packs,
)
from slurm_colloc.report.member_views import (
    PackView,
)
from slurm_colloc.store.pack_reading import StateReader

SKEW_S = 60.0
"""How far the clocks of a file server and of this machine may be apart."""


def find_last(state: StateReader) -> Selection:
    """The newest submission: a whole job, or the members that joined a pack together.

    Every submission makes a directory in the `members` folder of its pack, so that one look at
    each pack's folder tells where the newest ones can be.

    Raises:
        NotFound: Nothing was submitted yet.
    """
    changed = []
    for pack_id in state.list_all():
        try:
            changed.append((os.stat(f"{state.packs}/{pack_id}/members").st_mtime, pack_id))  # noqa: PTH116
        except OSError:
            continue
    newest: tuple[float, Selection] | None = None
    for changed_at, pack_id in sorted(changed, reverse=True):
        if newest is not None and changed_at < newest[0] - SKEW_S:
            break
        damaged: list[StateError] = []
        for view in survey_packs(state, [pack_id], None, damaged):
            found = None if state.is_of_another(view.record) else _find_newest(view)
            if found is not None and (newest is None or found[0] > newest[0]):
                newest = found
    if newest is None:
        raise NotFound(
            f"there is no submission in {state.root}", hint="csub train.sh makes the first one"
        )
    return newest[1]


def _find_newest(view: PackView) -> tuple[float, Selection] | None:
    """The newest submission of one pack; what csub submitted again by itself is none."""
    if not view.job_id:
        return None
    joined: dict[str, list[tuple[float, int]]] = {}
    for member in view.members:
        # One that was taken over from another submission is of that one.
        if member.spec.joined and member.member.job == view.shown_id:
            number = member.member.number
            joined.setdefault(member.spec.joined, []).append((member.spec.joined_at, number))
    found = [] if view.record.resubmissions else [
        (view.record.created_at, Selection(view.shown_id))
    ]  # fmt: skip
    for members in joined.values():
        chosen = Selection.of(view.shown_id, (number for _, number in members))
        found.append((max(members)[0], chosen))
    return max(found, key=lambda entry: entry[0], default=None)
