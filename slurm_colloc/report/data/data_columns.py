"""The columns of members and packs: names with units, kinds, and where in a summary each stands.

CSV, Parquet and pandas have these columns, under these names (docs/data.md). Columns are only ever
added, at the end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What a column holds."""

    TEXT = "string"
    WHOLE = "int64"
    NUMBER = "float64"
    TIME = "timestamp"
    FLAG = "bool"
    WORDS = "words"


@dataclass(frozen=True)
class DataColumn:
    """A column.

    Attributes:
        name: Its name, with the unit.
        kind: What it holds. TIME is seconds since the epoch in a summary, and a moment elsewhere;
            WORDS is a list in a summary, and a line that a shell would read elsewhere.
        path: Where it stands in a member's or a pack's part of a summary.
    """

    name: str
    kind: Kind
    path: tuple[str, ...]


def _column(name: str, kind: Kind, *path: str) -> DataColumn:
    return DataColumn(name, kind, path or (name,))


MEMBER_COLUMNS: tuple[DataColumn, ...] = (
    _column("member", Kind.TEXT, "id"),
    _column("name", Kind.TEXT),
    _column("state", Kind.TEXT),
    _column("started_at", Kind.TIME),
    _column("ended_at", Kind.TIME),
    _column("starts", Kind.WHOLE),
    _column("steps", Kind.WHOLE),
    _column("skipped", Kind.WHOLE),
    _column("samples", Kind.WHOLE),
    _column("progress", Kind.TEXT),
    _column("steps_per_s", Kind.NUMBER, "rate", "steps_per_s"),
    _column("samples_per_s", Kind.NUMBER, "rate", "samples_per_s"),
    _column("rate_window_s", Kind.NUMBER, "rate", "window_s"),
    _column("rate_spread", Kind.NUMBER, "rate", "spread"),
    _column("solo_steps_per_s", Kind.NUMBER, "solo", "steps_per_s"),
    _column("solo_source", Kind.TEXT, "solo", "source"),
    _column("slowdown", Kind.NUMBER),
    _column("gpu_memory_peak_mb", Kind.NUMBER, "gpu_memory_mb", "peak"),
    _column("gpu_memory_attribution", Kind.TEXT, "gpu_memory_mb", "attribution"),
    _column("sm_share", Kind.NUMBER, "sm_share", "value"),
    _column("sm_share_attribution", Kind.TEXT, "sm_share", "attribution"),
    _column("energy_j", Kind.NUMBER, "energy_j", "value"),
    _column("energy_attribution", Kind.TEXT, "energy_j", "attribution"),
    _column("cpu_s", Kind.NUMBER),
    _column("cpu_cores", Kind.NUMBER),
    _column("host_memory_peak_mb", Kind.NUMBER),
    _column("read_bytes", Kind.WHOLE),
    _column("written_bytes", Kind.WHOLE),
    _column("data_wait_share", Kind.NUMBER, "stall", "data"),
    _column("host_share", Kind.NUMBER, "stall", "host"),
    _column("device_share", Kind.NUMBER, "stall", "device"),
    _column("predicted_slowdown", Kind.NUMBER),
    _column("together_slowdown", Kind.NUMBER),
    _column("gpu_memory_by", Kind.TEXT, "gpu_memory_mb", "by"),
    _column("script", Kind.TEXT),
    _column("arguments", Kind.WORDS),
    _column("directory", Kind.TEXT),
    _column("node", Kind.TEXT),
    _column("gpu_uuid", Kind.WORDS, "gpu_uuids"),
    _column("gpu_model", Kind.TEXT, "pack", "gpu", "model"),
    _column("mode", Kind.TEXT),
    _column("exit_code", Kind.WHOLE),
    _column("exit_signal", Kind.WHOLE),
    _column("cause", Kind.TEXT),
    _column("solo_time_s", Kind.NUMBER),
    _column("stopped_s", Kind.NUMBER),
    _column("job", Kind.TEXT, "pack", "job"),
    _column("pack_id", Kind.TEXT, "pack", "pack_id"),
)

PACK_COLUMNS: tuple[DataColumn, ...] = (
    _column("pack_id", Kind.TEXT),
    _column("job", Kind.TEXT),
    _column("name", Kind.TEXT),
    _column("node", Kind.TEXT),
    _column("gpu_uuid", Kind.TEXT, "gpu", "uuid"),
    _column("gpu_model", Kind.TEXT, "gpu", "model"),
    _column("gpu_memory_mb", Kind.NUMBER, "gpu", "memory_mb"),
    _column("mode", Kind.TEXT, "setup", "mode"),
    _column("started_at", Kind.TIME, "window", "from"),
    _column("ended_at", Kind.TIME, "window", "to"),
    _column("final", Kind.FLAG),
    _column("members", Kind.WHOLE, "pack", "members"),
    _column("members_most", Kind.WHOLE, "pack", "members_most"),
    _column("overlap_s", Kind.NUMBER, "pack", "overlap_s"),
    _column("shared_s", Kind.NUMBER, "pack", "shared_s"),
    _column("serial_s", Kind.NUMBER, "pack", "serial_s"),
    _column("gpu_hours_saved", Kind.NUMBER, "pack", "gpu_hours_saved"),
    _column("stp", Kind.NUMBER, "pack", "stp"),
    _column("antt", Kind.NUMBER, "pack", "antt"),
    _column("energy_j", Kind.NUMBER),
    _column("kwh_saved", Kind.NUMBER, "pack", "kwh_saved"),
    _column("idle_power_w", Kind.NUMBER, "pack", "idle_power_w"),
    _column("sm_active_mean", Kind.NUMBER, "gpu_use", "sm_active", "mean"),
    _column("utilization_mean", Kind.NUMBER, "gpu_use", "utilization", "mean"),
    _column("gpu_memory_used_max_mb", Kind.NUMBER, "gpu_use", "gpu_memory_mb", "max"),
    _column("power_mean_w", Kind.NUMBER, "gpu_use", "power_w", "mean"),
    _column("coverage_share", Kind.NUMBER, "coverage", "share"),
)
