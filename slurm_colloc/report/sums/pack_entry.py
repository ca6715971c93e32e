"""What sums need of one pack: an entry of the index of summaries."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.report.sharing_gain import has_shared
from slurm_colloc.store.record_files import build_record

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


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
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


def build_entry(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a pack's summary, as JSON; one without `parts` where no member has run.

    Args:
        summary: It.
    """
    pack_id, window = str(summary["pack_id"]), summary["window"]
    if window is None:
        return {"pack": pack_id}
    pack, setup = summary["pack"], summary["setup"]
    members = [member for member in summary["members"] if member["started_at"] is not None]
    gpus = {uuid for member in members for uuid in member["gpu_uuids"]}
    mode = (setup or {}).get("mode") or next(
        (member["mode"] for member in members if member["mode"]), "exclusive"
    )
    sm = summary["gpu_use"].get("sm_active")
    hours = pack["gpu_hours_saved"]
    entry = PackEntry(
        pack=pack_id,
        ended_at=window["to"],
        gpu=summary["gpu"]["model"],
        mode="exclusive" if len(members) == 1 else mode,
        shared=has_shared([dict(summary)]),
        gpu_s=(window["to"] - window["from"]) * max(1, len(gpus)),
        saved_s=None if hours is None else hours * 3600,
        energy_j=summary["energy_j"],
        saved_kwh=pack["kwh_saved"],
        sm_active=None if sm is None else sm["mean"],
        parts=tuple(_divide(members)),
    )
    return dataclasses.asdict(entry)


def _divide(members: list[Mapping[str, Any]]) -> Iterator[ScriptPart]:
    found: dict[str, ScriptPart] = {}
    for member in members:
        script = _name_script(member)
        part = found.get(script, ScriptPart(script))
        ended = member["ended_at"]
        present_s = 0.0
        if ended is not None:
            present_s = max(0.0, ended - member["started_at"] - (member["stopped_s"] or 0.0))
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


def _name_script(member: Mapping[str, Any]) -> str:
    script = member["script"] or member["name"]
    return posixpath.normpath(posixpath.join(member["directory"] or "", script))


def read_entry(value: Mapping[str, Any]) -> PackEntry | None:
    """An entry of the index; None for a pack in which nothing has run.

    Raises:
        ValueError: It is none.
    """
    return build_record(PackEntry, value) if "parts" in value else None
