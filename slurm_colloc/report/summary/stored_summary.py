"""A pack's summary for readers: the one that its end has left, else one made now."""

from __future__ import annotations

from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.summary.member_identity import add_times
from slurm_colloc.report.summary.summary_file import read_summary
from slurm_colloc.report.summary.summary_shape import Summary
from slurm_colloc.store.pack_reading import StateReader


def find_summary(state: StateReader, view: PackView) -> Summary:
    """The summary of a pack, with its times for people; nothing is written.

    Args:
        state: The state directory that has the pack and the usage profiles.
        view: The pack.

    Raises:
        NotFound: There is no such pack.
        StateError: It is damaged, or its samples cannot be read at all.
    """
    path = state.pack_path(view.record.pack_id)
    left = read_summary(path) if all(member.is_final for member in view.members) else None
    if left is None:
        # Making one loads twice as much as showing one.
        from slurm_colloc.report.summary.pack_summary import build_summary

        left = build_summary(path, state.root, view)
    return add_times(left)
