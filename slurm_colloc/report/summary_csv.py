"""`csub report --csv`: one line for each member, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from typing import Any

from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.summary import Summary

_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("member", ("id",)),
    ("name", ("name",)),
    ("state", ("state",)),
    ("started_at", ("started_at",)),
    ("ended_at", ("ended_at",)),
    ("starts", ("starts",)),
    ("steps", ("steps",)),
    ("skipped", ("skipped",)),
    ("samples", ("samples",)),
    ("progress", ("progress",)),
    ("steps_per_s", ("rate", "steps_per_s")),
    ("samples_per_s", ("rate", "samples_per_s")),
    ("rate_window_s", ("rate", "window_s")),
    ("rate_spread", ("rate", "spread")),
    ("solo_steps_per_s", ("solo", "steps_per_s")),
    ("solo_source", ("solo", "source")),
    ("slowdown", ("slowdown",)),
    ("gpu_memory_peak_mb", ("gpu_memory_mb", "peak")),
    ("gpu_memory_attribution", ("gpu_memory_mb", "attribution")),
    ("sm_share", ("sm_share", "value")),
    ("sm_share_attribution", ("sm_share", "attribution")),
    ("energy_j", ("energy_j", "value")),
    ("energy_attribution", ("energy_j", "attribution")),
    ("cpu_s", ("cpu_s",)),
    ("cpu_cores", ("cpu_cores",)),
    ("host_memory_peak_mb", ("host_memory_peak_mb",)),
    ("read_bytes", ("read_bytes",)),
    ("written_bytes", ("written_bytes",)),
    ("data_wait_share", ("stall", "data")),
    ("host_share", ("stall", "host")),
    ("device_share", ("stall", "device")),
    ("predicted_slowdown", ("predicted_slowdown",)),
    ("together_slowdown", ("together_slowdown",)),
)
# What a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@")


def render_csv(found: Iterable[tuple[Summary, Collection[int] | None]]) -> str:
    """Members as CSV with a head; what is unknown is empty.

    Args:
        found: Summaries, and the numbers of the members of each to show; None for all.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([name for name, _ in _FIELDS])
    for summary, chosen in found:
        for member in summary["members"]:
            if chosen is None or member["member"] in chosen:
                writer.writerow([_read(member, path) for _, path in _FIELDS])
    return file.getvalue()


def _read(member: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = member
    for key in path:
        if value is None:
            return ""
        # A summary of an older csub lacks what has come since.
        value = value.get(key)
    if isinstance(value, str):
        text = escape_controls(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else value
