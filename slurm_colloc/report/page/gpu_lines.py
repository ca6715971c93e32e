"""One time line of all GPUs of a submission: which packs had them, with how many members; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.gpu_views import name_gpu
from slurm_colloc.report.member_remarks import ENDS
from slurm_colloc.report.page.pack_timeline import RUNS, Band
from slurm_colloc.report.page.page_shape import GpuLine, GpuStay, PageSource, Summary, TimeLine
from slurm_colloc.report.terminal_tables import format_span

LINES_MOST = 200
_CORNERS_MOST = 200
_MARKS = 4

Bands = Mapping[int, Sequence[Band]]
"""By member: when it ran, in seconds since its pack's first start."""


@dataclass
class _Lane:
    """A line of the picture; a GPU has several where packs had it at the same time."""

    name: str
    end: float = float("-inf")
    stays: list[GpuStay] = field(default_factory=list)


def build_time_line(sources: Sequence[PageSource], bands: Sequence[Bands]) -> TimeLine | None:
    """The time line; None where there is one GPU and one pack, which has a picture of its own.

    Args:
        sources: The packs.
        bands: Of each.
    """
    begun = [(n, s, b) for n, (s, b) in enumerate(zip(sources, bands, strict=True), 1)
             if s.summary["window"] is not None]  # fmt: skip
    parts = [
        (number, source, gpu, _count_present(source, own, gpu[2]))
        for number, source, own in begun
        for gpu in _list_gpus(number, source.summary)
    ]
    if len(parts) < 2:
        return None
    windows = [source.summary["window"] for _, source, _ in begun]
    first, last = min(w["from"] for w in windows), max(w["to"] for w in windows)
    length = max(last - first, 1e-3)
    most = max((count for *_, edges in parts for _, count in edges), default=0)
    lanes: dict[str, list[_Lane]] = {}
    for number, source, (key, name, numbers), edges in sorted(
        parts, key=lambda part: part[1].summary["window"]["from"]
    ):
        window = source.summary["window"]
        own = lanes.setdefault(key, [])
        lane = next((one for one in own if one.end <= window["from"]), None)
        if lane is None:
            lane = _Lane(name)
            own.append(lane)
        lane.end = window["to"]
        lane.stays.append(
            _build_stay(number, source, numbers, edges, (first, length, max(1, most)))
        )
    lines = [GpuLine(lane.name, lane.stays) for own in lanes.values() for lane in own]
    return TimeLine(
        marks=[
            (100 * n / _MARKS, format_span(length * n / _MARKS) if n else "start")
            for n in range(_MARKS + 1)
        ],
        most=most,
        lines=lines[:LINES_MOST],
        left_out=max(0, len(lines) - LINES_MOST),
    )


_Gpu = tuple[str, str, frozenset[int] | None]
"""What tells a GPU from others, its name, and the members that used it; None for all."""


def _list_gpus(number: int, summary: Summary) -> list[_Gpu]:
    node = f"{summary['node']} " if summary["node"] else ""
    gpus = summary["gpus"]
    found: list[_Gpu] = [
        (
            one["uuid"],
            escape_controls(f"{node}{_name(one)}"),
            frozenset(one["members"]) if len(gpus) > 1 else None,
        )
        for one in gpus
    ]
    if found:
        return found
    uuid = summary["gpu"]["uuid"]
    name = "no GPU" if uuid is None else name_gpu(uuid, None)
    return [(uuid or f"pack {number}", escape_controls(f"{node}{name}"), None)]


def _name(gpu: Mapping[str, Any]) -> str:
    """By its index on the node, which is short; the UUID is in the pack's own part."""
    index = gpu["index"]
    return name_gpu(gpu["uuid"], None) if index is None else f"GPU {index}"


def _count_present(
    source: PageSource, bands: Bands, numbers: frozenset[int] | None
) -> list[tuple[float, int]]:
    """How many members ran from when on, in seconds since the pack's first start."""
    changes: dict[float, int] = {}
    for member in source.members:
        if numbers is not None and member["member"] not in numbers:
            continue
        for low, high, kind in bands.get(member["member"], ()):
            if kind == RUNS:
                changes[low] = changes.get(low, 0) + 1
                changes[high] = changes.get(high, 0) - 1
    count, found = 0, []
    for at, change in sorted(changes.items()):
        count += change
        found.append((at, count))
    return found


def _build_stay(
    number: int,
    source: PageSource,
    numbers: frozenset[int] | None,
    edges: Sequence[tuple[float, int]],
    scale: tuple[float, float, int],
) -> GpuStay:
    first, length, most = scale
    window = source.summary["window"]
    span = max(window["to"] - window["from"], 1e-3)
    members = [m for m in source.members if numbers is None or m["member"] in numbers]
    bad = [member for member in members if member["state"] in ENDS]
    count = f"{len(members)} member{'' if len(members) == 1 else 's'}"
    told = f", {len(bad)} did not end well" if bad else ""
    at = format_span(max(0.0, window["from"] - first))
    return GpuStay(
        pack=number,
        left=round(100 * (window["from"] - first) / length, 3),
        width=round(100 * span / length, 3),
        label=f"Pack {number}: {len(members)}",
        title=f"Pack {number}: {count}{told}, from {at} on for {format_span(span)}",
        outline=_build_outline(edges, span, most),
        ends=[
            round(100 * min(1.0, max(0.0, (member["ended_at"] - window["from"]) / span)), 2)
            for member in bad
            if member["ended_at"] is not None
        ],
    )


def _build_outline(
    edges: Sequence[tuple[float, int]], span: float, most: int
) -> list[tuple[float, float]]:
    """The corners of the area; of very many edges each n-th."""
    stride = -(-len(edges) // _CORNERS_MOST) or 1
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for at, count in edges[::stride]:
        x = min(1.0, max(0.0, at / span))
        corners += [(x, corners[-1][1]), (x, count / most)]
    corners += [(1.0, corners[-1][1]), (1.0, 0.0)]
    return [(round(x, 4), round(y, 4)) for x, y in corners]
