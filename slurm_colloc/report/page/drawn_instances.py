"""The MIG instances of a pack as its page draws them: which, their names, their curves."""

from __future__ import annotations

from typing import Any

from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.page.read_series import INSTANCE_SHOWN, PackSeries

_INSTANCES_MOST = 16
"""That are drawn: seven at a time, and those that were made anew."""
_NAMES_MOST = 4


def name_instances(summary: dict[str, Any]) -> dict[str, str]:
    """The instances that are drawn, by UUID: profile, memory, and who had it at the last start."""
    found: dict[str, tuple[str, float | None]] = {}
    for one in (summary["layout"] or {}).get("came", ()):
        found[one["uuid"]] = one["profile"], one["memory_mb"]
    users: dict[str, list[str]] = {}
    for member in summary["members"]:
        mig = member["mig"] or {}
        if mig.get("uuid") and mig.get("profile"):
            # What was cut anew for another is not among those that stand.
            found.setdefault(mig["uuid"], (mig["profile"], mig.get("memory_mb")))
            users.setdefault(mig["uuid"], []).append(f"/{member['member']}")
    names = {}
    for uuid, (profile, memory_mb) in [*found.items()][:_INSTANCES_MOST]:
        of = f" of {memory_mb / 1024:.3g} GB" if memory_mb else ""
        who = users.get(uuid, [])
        told = ", ".join(who[:_NAMES_MOST]) or "no member"
        more = f" and {len(who) - _NAMES_MOST} more" if len(who) > _NAMES_MOST else ""
        names[uuid] = escape_controls(f"{profile}{of}: {told}{more}")
    return names


def count_instance_series(summary: dict[str, Any]) -> int:
    """How many curves its instances have."""
    return len(INSTANCE_SHOWN) * len(name_instances(summary))


def build_instance_drawings(summary: dict[str, Any], series: PackSeries) -> list[dict[str, Any]]:
    """What the page's script draws of them."""
    return [
        {
            "label": name,
            "gpu": {metric: found.build_mapping() for metric, found in metrics.items()},
        }
        for uuid, name in name_instances(summary).items()
        if (metrics := series.instances.get(uuid))
    ]
