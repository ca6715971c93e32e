"""What sharing a GPU brought, defined once for whole packs and for some of their members; pure.

The gain is the time that the jobs would have taken one after the other, each alone on the GPU, over
the time for which their packs had a GPU. Of some members only, that time is their part of it: while
k members are there, each has taken a k-th. The parts of all add up to the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from slurm_colloc.metrics.slowdown import complete_solo_times
from slurm_colloc.report.member_remarks import Member
from slurm_colloc.report.terminal_tables import format_span

EVEN = 1.03
"""A gain or a slowdown of less is none."""

_OVERLAP_LEAST = 0.05
"""Of the packs' time: with less, one was about to end as the next began, and none shared."""


def compute_gain(summaries: Sequence[dict[str, Any]]) -> tuple[float | None, float]:
    """The time that all would have taken one after the other, and the time that they took.

    Returns:
        Seconds; the first is None where it is unknown of a pack.
    """
    ran = [summary for summary in summaries if summary["window"] is not None]
    packs = [summary["pack"] for summary in ran]
    # Of one pack that is time on the clock, of several that of all their GPUs.
    gpus = [1 if len(ran) == 1 else count_gpus(summary) for summary in ran]
    serial = [pack["serial_s"] for pack in packs]
    shared_s = sum((p["shared_s"] or 0.0) * count for p, count in zip(packs, gpus, strict=True))
    if None in serial:
        return None, shared_s
    return sum(one * count for one, count in zip(serial, gpus, strict=True)), shared_s


def has_shared(summaries: Sequence[dict[str, Any]]) -> bool:
    """Whether members of packs that have run were there together, for more than a moment."""
    overlap_s = sum(summary["pack"]["overlap_s"] for summary in summaries)
    shared_s = sum(summary["pack"]["shared_s"] or 0.0 for summary in summaries)
    return bool(overlap_s > _OVERLAP_LEAST * shared_s)


def count_gpus(summary: dict[str, Any]) -> int:
    """How many GPUs a pack had; one where none was seen."""
    return max(1, len(summary["gpus"]))


def compute_part_gain(
    summaries: Sequence[dict[str, Any]], chosen: Sequence[Member]
) -> tuple[float | None, float]:
    """The same for some members that have started.

    Args:
        summaries: The packs in which they ran.
        chosen: The members, out of these summaries.

    Returns:
        Seconds: how long they would have taken one after the other, None where that of one is not
        known; and their part of the time for which their packs had a GPU.
    """
    ids = {member["id"] for member in chosen}
    stayed: list[tuple[float, float | None]] = []
    part_s = 0.0
    for summary in summaries:
        if summary["window"] is None:
            continue
        stays = {
            member["id"]: (member["started_at"], member["ended_at"] or summary["window"]["to"])
            for member in summary["members"]
            if member["started_at"] is not None
        }
        edges = sorted({edge for stay in stays.values() for edge in stay})
        for low, high in itertools.pairwise(edges):
            there = {who for who, (begin, end) in stays.items() if begin <= low and high <= end}
            part_s += (high - low) * len(there & ids) / len(there) if there else 0.0
        for member in summary["members"]:
            if member["id"] in ids and member["id"] in stays:
                begin, end = stays[member["id"]]
                stayed.append((end - begin, member["solo_time_s"]))
    serial = complete_solo_times(stayed)
    known = [time_s for time_s in serial if time_s is not None]
    return (sum(known) if len(known) == len(serial) else None), part_s


def say_span(seconds: float) -> str:
    """`24 s`, `3 min 20 s`: no tenths where they say nothing."""
    return f"{seconds:.0f} s" if 9.95 <= seconds < 59.5 else format_span(seconds)


def tell_gain(serial_s: float, shared_s: float, *, of_gpu_time: bool) -> str:
    """How much more work a GPU did, or how much sooner all was done, by sharing.

    Args:
        serial_s: The time that all would have taken one after the other.
        shared_s: The time that they took.
        of_gpu_time: It is time of GPUs, several of which may have run at once, and not wall time.
    """
    if shared_s <= 0 or serial_s <= 0:
        return "no gain"
    gain = serial_s / shared_s
    if 1 / EVEN < gain < EVEN:
        return "no gain"
    if of_gpu_time:
        times = f"{_round(gain)} times the work per GPU hour"
    else:
        word = "faster" if gain >= EVEN else "slower"
        times = f"{_round(max(gain, 1 / gain))} times {word} in wall time"
    return times if gain >= EVEN else f"{times}: sharing did not pay"


def _round(value: float) -> str:
    """Two digits that are seen to differ from 1."""
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def tell_part_gain(
    summaries: Sequence[dict[str, Any]], ran: Sequence[Member], *, final: bool
) -> str:
    """What sharing brought some members, by their part of the GPU's time; empty where unknown."""
    serial_s, part_s = compute_part_gain(summaries, ran)
    if serial_s is None or part_s <= 0:
        return ""
    instead = "instead of" if final else "for work of"
    if len(ran) == 1:
        verb, alone = "; it took" if final else "; so far it has had", "alone"
    else:
        verb, alone = " and took" if final else " and have taken", "one after the other"
    return (
        f"{verb} {say_span(part_s)} of GPU time {instead} {say_span(serial_s)} {alone} "
        f"({tell_gain(serial_s, part_s, of_gpu_time=True)})"
    )
