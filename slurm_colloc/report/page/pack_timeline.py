"""When members of a pack started, were paused, joined and ended: bands to draw, and in words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc.report.page.read_series import Stay
from slurm_colloc.report.terminal_tables import format_span
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.pack.member_pauses import AT_DOOR, MEASURED, MemberPause

RUNS, MEASURING, PARKED, LOADED = 0, 1, 2, 3
_KINDS = {MEASURED: MEASURING, AT_DOOR: LOADED}
"""What a band says: it ran, was paused so that others could be measured, or was parked."""

Band = tuple[float, float, int]
"""From and to in seconds since the pack's first start, and what it says."""

_LOG_BYTES_MOST = 64 << 20
_EVENTS_MOST = 200
_SHORT_S = 0.05


@dataclass(frozen=True)
class Moment:
    """Something that happened.

    Attributes:
        at_s: When, in seconds since the pack's first start.
        text: What, in words; names in it are as the user wrote them.
    """

    at_s: float
    text: str


def build_bands(
    summary: Mapping[str, Any],
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
    member: Mapping[str, Any], stays: Sequence[Stay], last: float
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


def list_moments(
    summary: Mapping[str, Any], bands: Mapping[int, Sequence[Band]], pack: Path
) -> list[Moment]:
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
    for decision in (summary["degree"] or {"decisions": ()})["decisions"]:
        if decision["reason"]:
            text = f"{decision['degree']} may run at once: {decision['reason']}"
            moments.append(Moment(decision["at"] - begin, text))
    ids = {member["member"]: member["id"] for member in summary["members"]}
    for at, number in _read_taken_over(pack):
        if number in ids:
            moments.append(Moment(at - begin, f"{ids[number]} was taken over from another pack"))
    return sorted(moments, key=lambda moment: moment.at_s)[:_EVENTS_MOST]


def _list_of_member(member: Mapping[str, Any], bands: Sequence[Band], begin: float) -> list[Moment]:
    name = member["id"]
    runs = [band for band in bands if band[2] == RUNS]
    moments = []
    for place, (low, high, _) in enumerate(runs):
        again = "started again" if place else "started"
        moments.append(Moment(low, f"{name} {again}"))
        if place < len(runs) - 1:
            moments.append(Moment(high, f"{name} was interrupted"))
    if member["joined_at"]:
        moments.append(Moment(member["joined_at"] - begin, f"{name} joined the pack"))
    if runs and member["ended_at"] is not None:
        code = member["exit_code"]
        told = f", exit code {code}" if code else ""
        moments.append(Moment(runs[-1][1], f"{name} ended: {member['state']}{told}"))
    parked = [band for band in bands if band[2] == PARKED]
    for low, high, _ in parked:
        moments.append(Moment(low, f"{name} was parked for {format_span(high - low)}"))
    for low, high, kind in bands:
        if kind == LOADED:
            moments.append(Moment(low, f"{name} waited at the door for {format_span(high - low)}"))
    measured = [band for band in bands if band[2] == MEASURING]
    if measured:
        total = format_span(sum(high - low for low, high, _ in measured))
        times = "once" if len(measured) == 1 else f"{len(measured)} times"
        text = f"{name} was paused {times}, {total} in all, so that others could be measured"
        moments.append(Moment(measured[0][0], text))
    return moments


def _read_taken_over(pack: Path) -> list[tuple[float, int]]:
    """When members of other packs were taken over, from the runner's log for people."""
    found: list[tuple[float, int]] = []
    try:
        # What lies there may be another user's, and no file at all.
        lines = read_bytes(pack / "events.jsonl", _LOG_BYTES_MOST).splitlines()
    except OSError:
        return found
    for line in lines:
        if b'"took_over"' not in line:
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError):
            event = json.loads(line)
            if event["event"] == "took_over":
                found.append((float(event["at"]), int(event["member"])))
    return found
