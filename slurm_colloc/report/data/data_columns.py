"""The columns of members and packs: names with units, kinds, and where in a summary each stands.

CSV, Parquet and pandas have these columns, under these names (docs/data.md). Columns are only ever
added, at the end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ColumnKind(enum.Enum):
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
    kind: ColumnKind
    path: tuple[str, ...]


def _column(name: str, kind: ColumnKind, *path: str) -> DataColumn:
    return DataColumn(name, kind, path or (name,))


MEMBER_COLUMNS: tuple[DataColumn, ...] = (
    _column("member", ColumnKind.TEXT, "id"),
    _column("name", ColumnKind.TEXT),
    _column("state", ColumnKind.TEXT),
    _column("started_at", ColumnKind.TIME),
    _column("ended_at", ColumnKind.TIME),
    _column("starts", ColumnKind.WHOLE),
    _column("steps", ColumnKind.WHOLE),
    _column("skipped", ColumnKind.WHOLE),
    _column("samples", ColumnKind.WHOLE),
    _column("progress", ColumnKind.TEXT),
    _column("steps_per_s", ColumnKind.NUMBER, "rate", "steps_per_s"),
    _column("samples_per_s", ColumnKind.NUMBER, "rate", "samples_per_s"),
    _column("rate_window_s", ColumnKind.NUMBER, "rate", "window_s"),
    _column("rate_spread", ColumnKind.NUMBER, "rate", "spread"),
    _column("solo_steps_per_s", ColumnKind.NUMBER, "solo", "steps_per_s"),
    _column("solo_source", ColumnKind.TEXT, "solo", "source"),
    _column("slowdown", ColumnKind.NUMBER),
    _column("gpu_memory_peak_mb", ColumnKind.NUMBER, "gpu_memory_mb", "peak"),
    _column("gpu_memory_attribution", ColumnKind.TEXT, "gpu_memory_mb", "attribution"),
    _column("sm_share", ColumnKind.NUMBER, "sm_share", "value"),
    _column("sm_share_attribution", ColumnKind.TEXT, "sm_share", "attribution"),
    _column("energy_j", ColumnKind.NUMBER, "energy_j", "value"),
    _column("energy_attribution", ColumnKind.TEXT, "energy_j", "attribution"),
    _column("cpu_s", ColumnKind.NUMBER),
    _column("cpu_cores", ColumnKind.NUMBER),
    _column("host_memory_peak_mb", ColumnKind.NUMBER),
    _column("read_bytes", ColumnKind.WHOLE),
    _column("written_bytes", ColumnKind.WHOLE),
    _column("data_wait_share", ColumnKind.NUMBER, "stall", "data"),
    _column("host_share", ColumnKind.NUMBER, "stall", "host"),
    _column("device_share", ColumnKind.NUMBER, "stall", "device"),
    _column("predicted_slowdown", ColumnKind.NUMBER),
    _column("together_slowdown", ColumnKind.NUMBER),
    _column("gpu_memory_by", ColumnKind.TEXT, "gpu_memory_mb", "by"),
    _column("script", ColumnKind.TEXT),
    _column("arguments", ColumnKind.WORDS),
    _column("directory", ColumnKind.TEXT),
    _column("node", ColumnKind.TEXT),
    _column("gpu_uuid", ColumnKind.WORDS, "gpu_uuids"),
    _column("gpu_model", ColumnKind.TEXT, "pack", "gpu", "model"),
    _column("mode", ColumnKind.TEXT),
    _column("exit_code", ColumnKind.WHOLE),
    _column("exit_signal", ColumnKind.WHOLE),
    _column("cause", ColumnKind.TEXT),
    _column("solo_time_s", ColumnKind.NUMBER),
    _column("stopped_s", ColumnKind.NUMBER),
    _column("job", ColumnKind.TEXT, "pack", "job"),
    _column("pack_id", ColumnKind.TEXT, "pack", "pack_id"),
)

PACK_COLUMNS: tuple[DataColumn, ...] = (
    _column("pack_id", ColumnKind.TEXT),
    _column("job", ColumnKind.TEXT),
    _column("name", ColumnKind.TEXT),
    _column("node", ColumnKind.TEXT),
    _column("gpu_uuid", ColumnKind.TEXT, "gpu", "uuid"),
    _column("gpu_model", ColumnKind.TEXT, "gpu", "model"),
    _column("gpu_memory_mb", ColumnKind.NUMBER, "gpu", "memory_mb"),
    _column("mode", ColumnKind.TEXT, "setup", "mode"),
    _column("started_at", ColumnKind.TIME, "window", "from"),
    _column("ended_at", ColumnKind.TIME, "window", "to"),
    _column("final", ColumnKind.FLAG),
    _column("members", ColumnKind.WHOLE, "pack", "members"),
    _column("members_most", ColumnKind.WHOLE, "pack", "members_most"),
    _column("overlap_s", ColumnKind.NUMBER, "pack", "overlap_s"),
    _column("shared_s", ColumnKind.NUMBER, "pack", "shared_s"),
    _column("serial_s", ColumnKind.NUMBER, "pack", "serial_s"),
    _column("gpu_hours_saved", ColumnKind.NUMBER, "pack", "gpu_hours_saved"),
    _column("stp", ColumnKind.NUMBER, "pack", "stp"),
    _column("antt", ColumnKind.NUMBER, "pack", "antt"),
    _column("energy_j", ColumnKind.NUMBER),
    _column("kwh_saved", ColumnKind.NUMBER, "pack", "kwh_saved"),
    _column("idle_power_w", ColumnKind.NUMBER, "pack", "idle_power_w"),
    _column("sm_active_mean", ColumnKind.NUMBER, "gpu_use", "sm_active", "mean"),
    _column("utilization_mean", ColumnKind.NUMBER, "gpu_use", "utilization", "mean"),
    _column("gpu_memory_used_max_mb", ColumnKind.NUMBER, "gpu_use", "gpu_memory_mb", "max"),
    _column("power_mean_w", ColumnKind.NUMBER, "gpu_use", "power_w", "mean"),
    _column("coverage_share", ColumnKind.NUMBER, "coverage", "share"),
)
