"""When members of a pack started, were paused, joined and ended: bands to draw, and in words.

Also: the MIG instances of a pack as its page draws them: which, their names, their curves; what the
page of a submission is made from, and the figures that it tells first; one time line of all GPUs of
a submission: which packs had them, with how many members.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.headline import ENDS
from slurm_colloc.report.page.series import PackSeries, Stay
from slurm_colloc.report.show_view import name_gpu, read_events
from slurm_colloc.report.summary_file import (
    Summary,
    SummaryGpu,
    SummaryMember,
    SummaryWindow,
    choose_members,
)
from slurm_colloc.report.terminal_tables import format_span
from slurm_colloc.store.member_states import AT_DOOR, MEASURED, MemberPause

RUNS, MEASURING, PARKED, LOADED = 0, 1, 2, 3
_KINDS = {MEASURED: MEASURING, AT_DOOR: LOADED}
"""What a band says: it ran, was paused so that others could be measured, or was parked."""

Band = tuple[float, float, int]
"""From and to in seconds since the pack's first start, and what it says."""

_EVENTS_MOST = 200
_SHORT_S = 0.05


Moment = tuple[float, str]
"""When something happened, in seconds since the pack's first start; and what, in words, with names
as the user wrote them."""


def build_bands(
    summary: Summary,
    stays: Mapping[int, Sequence[Stay]],
    pauses: Sequence[MemberPause],
) -> dict[int, list[Band]]:
    """By member: when it ran and when it was paused.

    Args:
        summary: The pack's summary.
        stays: The starts that its monitor has seen.
        pauses: When its members were paused.
    """
    if summary["window"] is None:
        return {}
    begin, end = summary["window"]["from"], summary["window"]["to"]
    found = {}
    for member in summary["members"]:
        number = member["member"]
        spans = _find_spans(member, stays.get(number, ()), end)
        bands: list[Band] = [(_since(begin, low), _since(begin, high), RUNS) for low, high in spans]
        for pause in pauses:
            if pause.member != number:
                continue
            kind = _KINDS.get(pause.reason, PARKED)
            for low, high in spans:
                since, until = max(low, pause.begin), min(high, pause.end or high)
                if until - since >= _SHORT_S:
                    bands.append((_since(begin, since), _since(begin, until), kind))
        found[number] = bands
    return found


def _find_spans(
    member: SummaryMember, stays: Sequence[Stay], last: float
) -> list[tuple[float, float]]:
    """Its starts: as its monitor saw them; the first and last edge as its runner wrote them."""
    started, ended = member["started_at"], member["ended_at"]
    spans = sorted((low, high) for _, _, low, high in stays)
    if started is None:
        return spans
    if not spans:
        return [(started, ended or last)] if (ended or last) > started else []
    low, high = spans[0]
    spans[0] = (min(low, started), high)
    if ended is not None:
        low, high = spans[-1]
        spans[-1] = (low, max(high, ended))
    return spans


def _since(begin: float, at: float) -> float:
    return round(at - begin, 1)


def list_moments(summary: Summary, bands: Mapping[int, Sequence[Band]], pack: Path) -> list[Moment]:
    """What happened, in order: for those who read the time line as a list.

    Args:
        summary: The pack's summary.
        bands: Its members' bands.
        pack: Its directory.
    """
    if summary["window"] is None:
        return []
    begin = summary["window"]["from"]
    moments: list[Moment] = []
    for member in summary["members"]:
        moments += _list_of_member(member, bands.get(member["member"], ()), begin)
    for decision in summary["degree"]["decisions"] if summary["degree"] else ():
        if decision["reason"]:
            text = f"{decision['degree']} may run at once: {decision['reason']}"
            moments.append((decision["at"] - begin, text))
    ids = {member["member"]: member["id"] for member in summary["members"]}
    for at, number in _read_taken_over(pack):
        if number in ids:
            moments.append((at - begin, f"{ids[number]} was taken over from another pack"))
    return sorted(moments, key=lambda moment: moment[0])[:_EVENTS_MOST]


def _list_of_member(member: SummaryMember, bands: Sequence[Band], begin: float) -> list[Moment]:
    name = member["id"]
    runs = [band for band in bands if band[2] == RUNS]
    moments = []
    for place, (low, high, _) in enumerate(runs):
        again = "started again" if place else "started"
        moments.append((low, f"{name} {again}"))
        if place < len(runs) - 1:
            moments.append((high, f"{name} was interrupted"))
    if member["joined_at"]:
        moments.append((member["joined_at"] - begin, f"{name} joined the pack"))
    if runs and member["ended_at"] is not None:
        code = member["exit_code"]
        told = f", exit code {code}" if code else ""
        moments.append((runs[-1][1], f"{name} ended: {member['state']}{told}"))
    parked = [band for band in bands if band[2] == PARKED]
    for low, high, _ in parked:
        moments.append((low, f"{name} was parked for {format_span(high - low)}"))
    for low, high, kind in bands:
        if kind == LOADED:
            moments.append((low, f"{name} waited at the door for {format_span(high - low)}"))
    measured = [band for band in bands if band[2] == MEASURING]
    if measured:
        total = format_span(sum(high - low for low, high, _ in measured))
        times = "once" if len(measured) == 1 else f"{len(measured)} times"
        text = f"{name} was paused {times}, {total} in all, so that others could be measured"
        moments.append((measured[0][0], text))
    return moments


def _read_taken_over(pack: Path) -> list[tuple[float, int]]:
    """When members of other packs were taken over, from the runner's log for people."""
    found: list[tuple[float, int]] = []
    for event in read_events(pack, b'"took_over"'):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if event["event"] == "took_over":
                found.append((float(event["at"]), int(event["member"])))
    return found


# ---- The MIG instances of a pack as its page draws them: which, their names, their curves --------

_INSTANCES_MOST = 16
"""That are drawn: seven at a time, and those that were made anew."""
_NAMES_MOST = 4


def name_instances(summary: Summary) -> dict[str, str]:
    """The instances that are drawn, by UUID: profile, memory, and who had it at the last start."""
    found: dict[str, tuple[str, float | None]] = {}
    for one in summary["layout"]["came"] if summary["layout"] else ():
        found[one["uuid"]] = one["profile"], one["memory_mb"]
    users: dict[str, list[str]] = {}
    for member in summary["members"]:
        mig = member["mig"]
        if mig and mig["uuid"] and mig["profile"]:
            # A member of an earlier attempt had an instance that is not among the last ones.
            found.setdefault(mig["uuid"], (mig["profile"], mig["memory_mb"]))
            users.setdefault(mig["uuid"], []).append(f"/{member['member']}")
    names = {}
    for uuid, (profile, memory_mb) in [*found.items()][:_INSTANCES_MOST]:
        of = f" of {memory_mb / 1024:.3g} GB" if memory_mb else ""
        who = users.get(uuid, [])
        told = ", ".join(who[:_NAMES_MOST]) or "no member"
        more = f" and {len(who) - _NAMES_MOST} more" if len(who) > _NAMES_MOST else ""
        names[uuid] = escape_controls(f"{profile}{of}: {told}{more}")
    return names


def build_instance_drawings(summary: Summary, series: PackSeries) -> list[dict[str, Any]]:
    """What the page's script draws of them."""
    return [
        {
            "label": name,
            "gpu": {metric: found.build_mapping() for metric, found in metrics.items()},
        }
        for uuid, name in name_instances(summary).items()
        if (metrics := series.instances.get(uuid))
    ]


# ----
# What the page of a submission is made from, and the figures that it tells first.


@dataclass(frozen=True)
class PageSource:
    """A pack that is to be on the page.

    Attributes:
        summary: Its summary.
        path: Its directory.
        chosen: The numbers of the members to show; None for all.
        last_lines: The last line of output of members that did not end well, by number.
    """

    summary: Summary
    path: Path
    chosen: Collection[int] | None = None
    last_lines: Mapping[int, str] = field(default_factory=dict)

    @property
    def members(self) -> list[SummaryMember]:
        """The members to show."""
        return choose_members(self.summary, self.chosen)


@dataclass(frozen=True)
class Fact:
    """A figure that is told first; texts are harmless already.

    Attributes:
        label: What it is.
        value: The figure.
        note: What it is of.
        is_bad: It is worse than was accepted.
    """

    label: str
    value: str
    note: str = ""
    is_bad: bool = False


# ----
# One time line of all GPUs of a submission: which packs had them, with how many members; pure.

LINES_MOST = 200
_CORNERS_MOST = 200
_MARKS = 4

Bands = Mapping[int, Sequence[Band]]
"""By member: when it ran, in seconds since its pack's first start."""


def build_time_line(sources: Sequence[PageSource], bands: Sequence[Bands]) -> dict[str, Any] | None:
    """The time line, as the page's template takes it.

    None where there is one GPU and one pack, which has a picture of its own. A GPU has several
    lines where packs had it at the same time. `marks` are moments and where they stand, in per
    cent.

    Args:
        sources: The packs.
        bands: Of each.
    """
    begun = [(n, s, window, b) for n, (s, b) in enumerate(zip(sources, bands, strict=True), 1)
             if (window := s.summary["window"]) is not None]  # fmt: skip
    parts = [
        (number, source, window, gpu, _count_present(source, own, gpu[2]))
        for number, source, window, own in begun
        for gpu in _list_gpus(number, source.summary)
    ]
    if len(parts) < 2:
        return None
    first = min(window["from"] for *_, window, _ in begun)
    last = max(window["to"] for *_, window, _ in begun)
    length = max(last - first, 1e-3)
    most = max((count for *_, edges in parts for _, count in edges), default=0)
    scale = (first, length, max(1, most))
    lanes: dict[str, list[list[tuple[float, str, dict[str, Any]]]]] = {}
    for number, source, window, (key, name, numbers), edges in sorted(
        parts, key=lambda part: part[2]["from"]
    ):
        own = lanes.setdefault(key, [])
        lane = next((one for one in own if one[-1][0] <= window["from"]), None)
        if lane is None:
            own.append(lane := [])
        stay = _build_stay(number, source, window, numbers, edges, scale=scale)
        lane.append((window["to"], name, stay))
    lines = [
        {"name": lane[0][1], "stays": [stay for *_, stay in lane]}
        for own in lanes.values()
        for lane in own
    ]
    return {
        "marks": [
            (100 * n / _MARKS, format_span(length * n / _MARKS) if n else "start")
            for n in range(_MARKS + 1)
        ],
        "most": most,
        "lines": lines[:LINES_MOST],
        "left_out": max(0, len(lines) - LINES_MOST),
    }


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


def _name(gpu: SummaryGpu) -> str:
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
    window: SummaryWindow,
    numbers: frozenset[int] | None,
    edges: Sequence[tuple[float, int]],
    *,
    scale: tuple[float, float, int],
) -> dict[str, Any]:
    """A pack on a GPU: places are per cent of the line, `ends` are those of what did not end well.

    `pack` is its place on the page; `outline` says how many members were there, each corner a share
    of the stay's time and of the most members on any GPU.
    """
    first, length, most = scale
    span = max(window["to"] - window["from"], 1e-3)
    members = [m for m in source.members if numbers is None or m["member"] in numbers]
    bad = [member for member in members if member["state"] in ENDS]
    count = format_count(len(members), "member")
    told = f", {len(bad)} did not end well" if bad else ""
    at = format_span(max(0.0, window["from"] - first))
    return {
        "pack": number,
        "left": round(100 * (window["from"] - first) / length, 3),
        "width": round(100 * span / length, 3),
        "label": f"Pack {number}: {len(members)}",
        "title": f"Pack {number}: {count}{told}, from {at} on for {format_span(span)}",
        "outline": _build_outline(edges, span, most),
        "ends": [
            round(100 * min(1.0, max(0.0, (member["ended_at"] - window["from"]) / span)), 2)
            for member in bad
            if member["ended_at"] is not None
        ],
    }


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
