"""How slow members were while all those ran with which they were planned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slurm_colloc.metrics.presence import find_together
from slurm_colloc.metrics.rates import compute_rate, select_within
from slurm_colloc.metrics.series import Window
from slurm_colloc.metrics.slowdown import compute_slowdown
from slurm_colloc.report.summary.member_figures import Figures
from slurm_colloc.report.summary.pack_run import PackRun

_WARM_UP_S = 10.0
"""How long a member that reports no step is taken to need for its start."""


def measure_together(run: PackRun, figures: Sequence[Figures]) -> dict[int, float]:
    """Slowdowns over the time that a plan speaks of, by number, of those that it predicted.

    What a member did alone, in the tail or while members were added or parked is not what was
    predicted.

    Args:
        run: The pack.
        figures: What its samples tell of its members.

    Returns:
        Those that are known; none where all were never there at the same time.
    """
    groups = find_groups(run)
    spans = {entry.member.number: find_spans(entry) for entry in figures}
    found = {}
    for entry in figures:
        number = entry.member.number
        partners = groups[number] - {number}
        if entry.predicted_slowdown is None or entry.slowdown is None:
            continue
        if entry.solo is None or not partners:
            continue
        windows = entry.member.own_time.bridge(find_settled(run, number, partners, spans))
        intervals = [interval for start in entry.member.settle() for interval in start.intervals]
        rate = compute_rate(select_within(intervals, windows)).steps_per_s
        slowdown = compute_slowdown(entry.solo.steps_per_s, rate)
        if slowdown is not None:
            found[number] = slowdown
    return found


def find_groups(run: PackRun) -> dict[int, frozenset[int]]:
    """The members with which each was planned, itself among them.

    A member that joined before the pack began was planned with all that were in it; a later one was
    planned with those that were there then, and they were planned without it.
    """
    begin = min((stay.begin for member in run.members for stay in member.stays), default=math.inf)
    first = frozenset(
        member.number
        for member in run.members
        if not member.view.spec.joined or member.view.spec.joined_at < begin
    )
    groups = {}
    for member in run.members:
        at = member.view.spec.joined_at
        there = frozenset(
            other.number
            for other in run.members
            if any(stay.begin <= at < stay.end for stay in other.stays)
        )
        groups[member.number] = first if member.number in first else there | {member.number}
    return groups


def find_spans(entry: Figures) -> tuple[Window, ...]:
    """When a member did what it is for."""
    if entry.spans:
        return entry.spans
    return tuple((stay.begin + _WARM_UP_S, stay.end) for stay in entry.member.stays)


def find_settled(
    run: PackRun, number: int, partners: frozenset[int], spans: Mapping[int, Sequence[Window]]
) -> list[Window]:
    """When a member and its partners were together, all of them warmed up.

    Where members wait for a place, their partners change, and no more than their number counts.
    """
    degree = run.view.record.degree
    windows = find_together(run.phases, number, partners, degree)
    for partner in partners if degree > len(partners) else ():
        windows = [
            (max(begin, low), min(end, high))
            for begin, end in windows
            for low, high in spans.get(partner, ())
            if min(end, high) > max(begin, low)
        ]
    return windows
