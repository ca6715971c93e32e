"""The other GPU sets of a Slurm job: what Slurm does to the job is done to their members, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.cli.session import Session
from slurm_colloc.errors import StateError
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.store.pack_reading import list_gpu_set_packs

Chosen = Mapping[str, Collection[int]]
"""By pack id the numbers of the members that were named."""


def list_chosen(found: Sequence[tuple[PackView, Sequence[MemberView]]]) -> dict[str, set[int]]:
    """The members that a call names, by pack."""
    return {view.record.pack_id: {member.place for member in members} for view, members in found}


def list_others(session: Session, view: PackView, chosen: Chosen) -> list[MemberView]:
    """The members of the other GPU sets of a pack's Slurm job that were not named.

    Args:
        session: The session.
        view: The pack.
        chosen: What was named.

    Raises:
        StateError: Of one of the sets it cannot be read who is in it.
    """
    own = view.record.pack_id
    names = [name for name in list_gpu_set_packs(view.record) if name != own]
    damaged: list[StateError] = []
    others = survey_packs(session.state, names, None, damaged)
    if damaged:
        raise damaged[0]
    return [
        member
        for other in others
        for member in other.members
        if member.place not in chosen.get(other.record.pack_id, ())
    ]
