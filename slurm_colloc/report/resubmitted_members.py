"""A member that was submitted again: in its new pack, or in one that has taken it over there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurm_colloc.model.member import MemberId
from slurm_colloc.store.pack.pack_directory import read_slurm_job_id

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import MemberView, PackView
    from slurm_colloc.store.pack_reading import StateReader


def list_packs_to_follow(state: StateReader, pack_id: str) -> list[str]:
    """The pack in which members were submitted again, and others in which they may be by now.

    Raises:
        StateError: Its job id cannot be read.
    """
    job_id = read_slurm_job_id(state.pack_path(pack_id)) or ""
    return [pack_id, *state.list_takers(job_id.partition("_")[0])]


def find_again(member: MemberView, views: Iterable[PackView]) -> tuple[PackView, MemberView] | None:
    """A member as it was submitted again; None where that is in none of these packs.

    It has its number still. So may a member of another submission that is in its new pack.

    Args:
        member: It, in its first pack.
        views: The packs of `list_packs_to_follow`, and any others.
    """
    packs = {view.record.pack_id: view for view in views}
    new = packs.get(member.moved_to or "")
    if new is None:
        return None
    name = MemberId(new.shown_id, member.member.number)
    found = ((view, one) for view in packs.values() for one in view.members if one.member == name)
    return next(found, None)
