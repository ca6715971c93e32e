"""What a tracker is given of a member: parameters, figures, series and how it ended; pure.

What is not known is left out; it is never 0.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_colloc.model.argument_parameters import read_parameters
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut, escape_controls

PREFIX = "system/csub/"
"""How names of figures begin."""
POINTS_MOST = 1000
"""Of a series; a longer one is thinned."""
_VALUE_MOST = 500
_PARAMETERS_MOST = 100
_WRAP = "--wrap"
"""What a job has for its script that is a command."""

_FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("steps", ("steps",)),
    ("steps_per_s", ("rate", "steps_per_s")),
    ("samples_per_s", ("rate", "samples_per_s")),
    ("solo_steps_per_s", ("solo", "steps_per_s")),
    ("slowdown", ("slowdown",)),
    ("gpu_memory_peak_mb", ("gpu_memory_mb", "peak")),
    ("sm_share", ("sm_share", "value")),
    ("energy_j", ("energy_j", "value")),
    ("cpu_s", ("cpu_s",)),
    ("cpu_cores", ("cpu_cores",)),
    ("host_memory_peak_mb", ("host_memory_peak_mb",)),
    ("data_wait_share", ("stall", "data")),
    ("stopped_s", ("stopped_s",)),
)
_OF_MEMBER = ("gpu_memory_mb", "host_memory_mb", "processes")
_OF_GPU = ("sm_active", "utilization", "power_w", "gpu_memory_mb")


@dataclass(frozen=True)
class TrackerValues:
    """A member as trackers take it.

    Attributes:
        name: What its run is called, where it gets one: `4711/3`.
        number: Its number.
        parameters: Its parameters of a sweep or table, and what its arguments set.
        tags: Which member it is, and how it ended.
        figures: Figures over its whole run, by name.
        series: For each moment, what was measured: seconds since its start, and values by name.
        started_at: In seconds since the epoch.
        ended_at: None while it runs.
        state: Its state.
    """

    name: str
    number: int
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    figures: Mapping[str, float]
    series: Sequence[tuple[float, Mapping[str, float]]]
    started_at: float
    ended_at: float | None
    state: str

    @property
    def is_failed(self) -> bool:
        """It ended, and neither well nor because somebody wanted it to."""
        well = (MemberState.COMPLETED, MemberState.CANCELLED, MemberState.PREEMPTED)
        return self.ended_at is not None and self.state not in map(str, well)

    @property
    def is_killed(self) -> bool:
        """It was ended from outside."""
        return self.state in (MemberState.CANCELLED, MemberState.PREEMPTED)


def build_values(
    summary: Mapping[str, Any],
    member: Mapping[str, Any],
    readings: Sequence[Mapping[str, Any]],
    gpu: Sequence[Mapping[str, Any]],
) -> TrackerValues:
    """A member as trackers take it.

    Args:
        summary: Its pack's.
        member: Its part of that; it has started.
        readings: The monitor's of it, in order of time.
        gpu: The monitor's of the pack's GPU, in order of time.
    """
    arguments = [str(word) for word in member["arguments"] or ()]
    own = member["parameters"]
    # The argument of --wrap is a command.
    told = {} if member["script"] == _WRAP else read_parameters(arguments)
    known = {**own, **told, **own}
    parameters = {
        _clean(name): _clean(value) for name, value in list(known.items())[:_PARAMETERS_MOST]
    }
    tags = {
        "csub.member": str(member["id"]),
        "csub.state": str(member["state"]),
        "csub.script": _clean(member["script"] or ""),
        "csub.arguments": _clean(shlex.join(arguments)),
        "csub.node": _clean(member["node"] or ""),
        "csub.gpu_model": _clean(summary["gpu"]["model"] or ""),
        "csub.mode": _clean(member["mode"] or ""),
        "csub.cause": _clean(member["cause"] or ""),
        "csub.exit_code": "" if member["exit_code"] is None else str(member["exit_code"]),
    }
    begin = float(member["started_at"])
    return TrackerValues(
        name=str(member["id"]),
        number=int(member["member"]),
        parameters=parameters,
        tags={name: value for name, value in tags.items() if value},
        figures=dict(_list_figures(summary, member)),
        series=_build_series(begin, member["ended_at"], readings, gpu),
        started_at=begin,
        ended_at=member["ended_at"],
        state=str(member["state"]),
    )


def _clean(text: str) -> str:
    return cut(escape_controls(text), _VALUE_MOST)


def _list_figures(
    summary: Mapping[str, Any], member: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    for name, path in _FIGURES:
        value: Any = member
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if _is_number(value):
            yield f"{PREFIX}{name}", float(value)
    for name in ("gpu_hours_saved", "stp"):
        value = summary["pack"].get(name)
        if _is_number(value):
            yield f"{PREFIX}pack/{name}", float(value)


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value)


def _build_series(
    begin: float,
    end: float | None,
    readings: Sequence[Mapping[str, Any]],
    gpu: Sequence[Mapping[str, Any]],
) -> list[tuple[float, dict[str, float]]]:
    """Values by moment: of the member, and of the whole GPU while it ran."""
    found: dict[float, dict[str, float]] = {}

    def add(at: float, name: str, value: Any) -> None:
        if _is_number(value) and at >= begin and (end is None or at <= end + 1.0):
            found.setdefault(at, {})[f"{PREFIX}{name}"] = float(value)

    before: Mapping[str, Any] | None = None
    for row in _thin(readings):
        for name in _OF_MEMBER:
            add(row["at"], name, row.get(name))
        add(row["at"], "steps_per_s", _compute_rate(before, row))
        before = row
    for row in _thin(gpu):
        for name in _OF_GPU:
            add(row["at"], f"whole_gpu/{name}", row.get(name))
    return [(at - begin, found[at]) for at in sorted(found)]


def _compute_rate(before: Mapping[str, Any] | None, row: Mapping[str, Any]) -> float | None:
    """Steps per second since the row before, of the same start."""
    if before is None or before.get("start") != row.get("start"):
        return None
    first, last = before.get("steps"), row.get("steps")
    elapsed_s = float(row["at"]) - float(before["at"])
    if first is None or last is None or elapsed_s <= 0 or last < first:
        return None
    return (float(last) - float(first)) / elapsed_s


def _thin(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    stride = max(1, math.ceil(len(rows) / POINTS_MOST))
    return rows[::stride]
