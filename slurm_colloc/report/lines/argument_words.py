"""A member's arguments in one column: what differs within its submission stands out; pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.report.differing_arguments import show_arguments

Job = tuple[str, str, tuple[str, ...]]
"""Submission, script and arguments of a member."""


def describe_arguments(jobs: Sequence[Job]) -> list[str]:
    """The arguments of each member, compared with others of its submission and script."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (submission, script, _) in enumerate(jobs):
        groups.setdefault((submission, script), []).append(place)
    texts = [""] * len(jobs)
    for places in groups.values():
        shown = show_arguments([jobs[place][2] for place in places])
        for place, text in zip(places, shown, strict=True):
            texts[place] = text
    return texts
