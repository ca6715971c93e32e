"""A pack's summary for readers: the one that its end has left, else one made now."""

from __future__ import annotations

from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.summary.member_identity import complete_summary
from slurm_colloc.report.summary.pack_summary import Summary, build_summary, read_summary
from slurm_colloc.store.pack_reading import StateReader


def find_summary(state: StateReader, view: PackView) -> Summary:
    """The summary of a pack, with what those of an older csub lack; nothing is written.

    Args:
        state: The state directory that has the pack and the usage profiles.
        view: The pack.

    Raises:
        NotFound: There is no such pack.
        StateError: It is damaged, or its samples cannot be read at all.
    """
    path = state.pack_path(view.record.pack_id)
    left = read_summary(path) if all(member.is_final for member in view.members) else None
    return complete_summary(build_summary(path, state.root, view) if left is None else left, view)
