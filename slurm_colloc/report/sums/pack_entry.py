"""What sums need of one pack: an entry of the index of summaries; pure."""

from __future__ import annotations

import dataclasses
import math
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.report.sharing_gain import has_shared

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
        summary: From `complete_summary`, or of this csub.
    """
    pack_id, window = str(summary["pack_id"]), summary.get("window")
    if window is None:
        return {"pack": pack_id}
    pack, setup = summary["pack"], summary.get("setup")
    members = [member for member in summary["members"] if member["started_at"] is not None]
    gpus = {uuid for member in members for uuid in member.get("gpu_uuids") or ()}
    mode = (setup or {}).get("mode") or next(
        (member["mode"] for member in members if member.get("mode")), "exclusive"
    )
    sm = (summary.get("gpu_use") or {}).get("sm_active")
    hours = pack["gpu_hours_saved"]
    return {
        "pack": pack_id,
        "end": window["to"],
        "gpu": summary["gpu"]["model"],
        "mode": "exclusive" if len(members) == 1 else mode,
        "shared": has_shared([dict(summary)]),
        "gpu_s": (window["to"] - window["from"]) * max(1, len(gpus)),
        "saved_s": None if hours is None else hours * 3600,
        "j": summary["energy_j"],
        "kwh": pack["kwh_saved"],
        "sm": None if sm is None else sm["mean"],
        "parts": [list(dataclasses.astuple(part)) for part in _divide(members)],
    }


def _divide(members: list[Mapping[str, Any]]) -> Iterator[ScriptPart]:
    found: dict[str, ScriptPart] = {}
    for member in members:
        script = _name_script(member)
        part = found.get(script, ScriptPart(script))
        ended = member["ended_at"]
        present_s = 0.0
        if ended is not None:
            present_s = max(0.0, ended - member["started_at"] - (member.get("stopped_s") or 0.0))
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
    script = member.get("script") or member["name"]
    return posixpath.normpath(posixpath.join(member.get("directory") or "", script))


def read_entry(value: Mapping[str, Any]) -> PackEntry | None:
    """An entry of the index; None for a pack in which nothing has run.

    Raises:
        ValueError: It is none.
    """
    if "parts" not in value:
        return None
    try:
        return PackEntry(
            pack=value["pack"],
            ended_at=_number(value["end"]),
            gpu=value["gpu"],
            mode=str(value["mode"]),
            shared=bool(value["shared"]),
            gpu_s=_number(value["gpu_s"]),
            saved_s=_number_or_none(value["saved_s"]),
            energy_j=_number_or_none(value["j"]),
            saved_kwh=_number_or_none(value["kwh"]),
            sm_active=_number_or_none(value["sm"]),
            parts=tuple(
                ScriptPart(
                    script=str(script),
                    members=int(members),
                    present_s=_number(present_s),
                    wasted_s=_number(wasted_s),
                    slowdowns=_number(slowdowns),
                    known=int(known),
                )
                for script, members, present_s, wasted_s, slowdowns, known in value["parts"]
            ),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"it is not an entry ({error})") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)
