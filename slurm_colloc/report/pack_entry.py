"""What sums need of one pack: an entry of the index of summaries.

Also: what a pack tells the site: made of its summary, without names, arguments and paths.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.rates import sum_known
from slurm_colloc.model.fleet_record import (
    RATES_MOST,
    FleetRecord,
    build_mapping,
    parse_fleet_record,
)
from slurm_colloc.model.late_definitions import asdict, dataclass
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.records import build_record
from slurm_colloc.report.headline import has_shared
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.solo_rates import ALONE, PAUSING, THIS_RUN
from slurm_colloc.report.summary_file import Summary, SummaryMember
from slurm_colloc.store.atomic_files import drop_file, read_bytes
from slurm_colloc.store.profiles import compute_signature

WASTED = frozenset(
    {
        MemberState.FAILED,
        MemberState.LOST,
        MemberState.NODE_FAIL,
        MemberState.OUT_OF_MEMORY,
        MemberState.TIMEOUT,
    }
)
"""Ends after which the work counts as lost."""


@dataclass(frozen=True)
class ScriptPart:
    """What the members of one script had of a pack.

    Attributes:
        script: Its path, made whole where the directory is known.
        members: How many ran.
        present_s: Their time there, summed.
        wasted_s: That of those that failed.
        slowdowns: The sum of the slowdowns that are known.
        known: How many are known.
    """

    script: str
    members: int = 0
    present_s: float = 0.0
    wasted_s: float = 0.0
    slowdowns: float = 0.0
    known: int = 0


@dataclass(frozen=True)
class PackEntry:
    """A pack that has ended, as sums take it; None stands for what is not known.

    Attributes:
        pack: Its id.
        ended_at: Its last end, in seconds since the epoch.
        gpu: Model of its GPU.
        mode: How its members shared the GPU; `exclusive` for one alone.
        shared: Members of it were there at the same time.
        gpu_s: From its first start to its last end, once for each of its GPUs.
        saved_s: GPU time that sharing saved.
        energy_j: Of its GPU.
        saved_kwh: Energy that sharing saved.
        sm_active: Mean activity of the GPU's SMs, 0 to 1.
        parts: Its members by script.
        interruption_s: Of a chain, between its links, as far as known.
        overlap_s: Of a chain, for how long two links held an allocation, as far as known.
    """

    pack: str
    ended_at: float
    gpu: str | None
    mode: str
    shared: bool
    gpu_s: float
    saved_s: float | None
    energy_j: float | None
    saved_kwh: float | None
    sm_active: float | None
    parts: tuple[ScriptPart, ...]
    interruption_s: float = 0.0
    overlap_s: float = 0.0


def build_entry(summary: Summary) -> dict[str, Any]:
    """The entry of a pack's summary, as JSON; one without `parts` where no member has run.

    Args:
        summary: It.
    """
    entry = _build_entry(summary)
    return {"pack": summary["pack_id"]} if entry is None else asdict(entry)


def _build_entry(summary: Summary) -> PackEntry | None:
    pack, window = summary["pack"], summary["window"]
    if window is None:
        return None
    members = [member for member in summary["members"] if member["started_at"] is not None]
    gpus = {uuid for member in members for uuid in member["gpu_uuids"]}
    sm = summary["gpu_use"].get("sm_active")
    hours, chain = pack["gpu_hours_saved"], summary["chain"]
    return PackEntry(
        pack=summary["pack_id"],
        ended_at=window["to"],
        gpu=summary["gpu"]["model"],
        mode=_find_mode(summary, members),
        shared=has_shared([summary]),
        gpu_s=(window["to"] - window["from"]) * max(1, len(gpus)),
        saved_s=None if hours is None else hours * 3600,
        energy_j=summary["energy_j"],
        saved_kwh=pack["kwh_saved"],
        sm_active=None if sm is None else sm["mean"],
        parts=tuple(_divide(members)),
        interruption_s=(chain["interruption_s"] if chain else None) or 0.0,
        overlap_s=(chain["overlap_s"] if chain else None) or 0.0,
    )


def _find_mode(summary: Summary, members: list[SummaryMember]) -> str:
    """How those that ran shared the GPU: as the node was prepared, else as the first says."""
    told = [summary["setup"]["mode"] if summary["setup"] else "", *(m["mode"] for m in members)]
    return next(filter(None, told), "exclusive") if len(members) != 1 else "exclusive"


def _divide(members: list[SummaryMember]) -> Iterator[ScriptPart]:
    found: dict[str, ScriptPart] = {}
    for member in members:
        script = _name_script(member)
        part = found.get(script, ScriptPart(script))
        present_s = _count_present_s(member)
        slowdown = member["slowdown"]
        found[script] = ScriptPart(
            script,
            part.members + 1,
            part.present_s + present_s,
            part.wasted_s + (present_s if member["state"] in WASTED else 0.0),
            part.slowdowns + (slowdown or 0.0),
            part.known + (slowdown is not None),
        )
    yield from found.values()


def _name_script(member: SummaryMember) -> str:
    script = member["script"] or member["name"]
    return posixpath.normpath(posixpath.join(member["directory"] or "", script))


def read_entry(value: Mapping[str, Any]) -> PackEntry | None:
    """An entry of the index; None for a pack in which nothing has run.

    Raises:
        ValueError: It is none.
    """
    return build_record(PackEntry, value) if "parts" in value else None


# ---- What a pack tells the site: made of its summary, without names, arguments and paths ---------

_MEASURED = frozenset({ALONE, PAUSING, THIS_RUN})


def report_to_site(spool: Path, summary: Summary, view: PackView) -> bool:
    """Put what the site is to know of a pack into its spool.

    Args:
        spool: The site's directory.
        summary: The pack's, complete.
        view: The pack.

    Returns:
        False where there is nothing to tell: no member ran, or without Slurm.

    Raises:
        StateError: It cannot be written.
    """
    record = build_fleet_record(summary, view)
    if record is None:
        return False
    value = build_mapping(record)
    try:
        parse_fleet_record(json.loads(json.dumps(value)))
    except ValueError as error:
        raise StateError(f"the site would not take it: {error}") from error
    drop_file(spool, json.dumps(value, separators=(",", ":")).encode())
    return True


def build_fleet_record(summary: Summary, view: PackView) -> FleetRecord | None:
    """The record of a pack; None where there is nothing to tell."""
    window, entry = summary["window"], _build_entry(summary)
    members = [member for member in summary["members"] if member["started_at"] is not None]
    if window is None or entry is None or not members:
        return None
    if view.record.local or not summary["job"]:
        return None
    present_s, wasted_s = (
        sum(times) for times in zip(*((p.present_s, p.wasted_s) for p in entry.parts), strict=True)
    )
    known = sum(part.known for part in entry.parts)
    busy, memory = map(summary["gpu_use"].get, ("utilization", "gpu_memory_mb"))
    throttled_s = sum_throttled(summary["throttled_s"])
    length_s = window["to"] - window["from"]
    # Those that are known, else as many as its members asked for.
    gpus = len(summary["gpus"]) or int(max(member["request"]["gpus"] for member in members))
    return FleetRecord(
        job_id=summary["job"],
        cluster=view.record.cluster,
        attempt=view.attempt,
        node=summary["node"] or members[0]["node"] or "unknown",
        gpu_model=summary["gpu"]["model"],
        gpu_uuid=summary["gpu"]["uuid"],
        gpu_memory_mb=summary["gpu"]["memory_mb"],
        mode=entry.mode,
        gpus=gpus,
        started_at=window["from"],
        ended_at=window["to"],
        members=len(members),
        failed=sum(member["state"] in WASTED for member in members),
        wasted_share=min(1.0, wasted_s / present_s) if present_s > 0 else 0.0,
        saved_s=entry.saved_s if gpus else None,
        slowdown=sum(part.slowdowns for part in entry.parts) / known if known else None,
        slowdown_of=known,
        energy_j=entry.energy_j,
        saved_kwh=entry.saved_kwh,
        sm_active=entry.sm_active,
        utilization=busy["mean"] if busy else None,
        gpu_memory_used_mb=memory["max"] if memory else None,
        cpus=sum(member.spec.plan.cpus for member in view.members),
        cpu_s=sum_known(cast("float | None", member["cpu_s"]) for member in members),
        host_memory_mb=sum_known(member["host_memory_peak_mb"] for member in members),
        rates=_list_rates(summary, view),
        gpu_set=view.record.gpu_set,
        throttled_share=None
        if throttled_s is None or length_s <= 0
        else min(1.0, throttled_s / length_s),
    )  # fmt: skip


def sum_throttled(throttled_s: Mapping[str, float | None]) -> float | None:
    """For how long clocks were held down by what is wrong with a GPU or its node; not by power."""
    known = [value for name in ("thermal", "brake") if (value := throttled_s[name]) is not None]
    return sum(known) if known else None


def _count_present_s(member: SummaryMember) -> float:
    if member["started_at"] is None or member["ended_at"] is None:
        return 0.0
    return max(0.0, member["ended_at"] - member["started_at"] - (member["stopped_s"] or 0.0))


def _list_rates(summary: Summary, view: PackView) -> tuple[tuple[str, float], ...]:
    """The rates of jobs that were measured alone in this pack, by signature."""
    alone = summary["pack"]["members_most"] == 1
    by_number = {member.place: member for member in view.members}
    found: dict[str, float] = {}
    for entry in summary["members"]:
        solo = entry["solo"]
        rate = entry["rate"]["steps_per_s"] if alone else None
        if rate is None and solo is not None and solo["source"] in _MEASURED:
            rate = solo["steps_per_s"]
        member = by_number.get(entry["member"])
        if not rate or member is None:
            continue
        try:
            script = read_bytes(f"{member.files.path}/script")
            found[compute_signature(script, member.spec.job)] = float(rate)
        except (OSError, StateError):
            continue
    return tuple(found.items())[:RATES_MOST]
