"""How fast a member that shares a GPU is against alone, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.store.pack.degree_record import DegreeRecord

STALE_S = 15.0
"""A monitor that has not written for longer has gone, or its file system hangs."""

_AHEAD_S = 5.0
_WINDOW_LEAST_S = 5.0
_LEAST, _MOST = 1e-6, 1e15
"""No figure of a monitor is smaller or larger."""
_EVEN = 1.01
"""Below it a member does not count as slower."""


def describe_pace(
    view: PackView,
    member: MemberView,
    latest: Mapping[str, Any] | None,
    degree: DegreeRecord | None,
    now: float,
) -> str:
    """How much slower than alone a running member is; empty where nothing is known of that.

    What is measured now counts; where nothing is, what its plan has predicted. Time in which its
    runner had paused it is left out.

    Args:
        view: Its pack.
        member: It.
        latest: The content of its pack's latest.json; None where there is none.
        degree: What its runner has measured of its rate alone; None where nothing.
        now: Seconds since the epoch.
    """
    plan = member.spec.plan
    solo = plan.solo_steps_per_s or _find_rate_alone(member, degree)
    figures = find_figures(member, latest, now)
    rate, window_s = (_read_positive(figures.get(key)) for key in ("steps_per_s", "window_s"))
    if rate is not None and window_s is not None:
        end = now if latest is None else float(latest["at"])
        end -= _read_positive(figures.get("last_step_age_s")) or 0.0
        steps = rate * window_s
        window_s -= view.count_paused_s(member, end - window_s, end)
        rate = steps / window_s if window_s > 0 else None
    if solo and rate is not None and window_s is not None and window_s >= _WINDOW_LEAST_S:
        return (
            f"{_describe(solo / rate)} ({rate:.3g} of {solo:.3g} steps/s, over the last "
            f"{window_s:.0f} s)"
        )
    if plan.predicted_slowdown:
        return f"predicted to be {_describe(plan.predicted_slowdown)} while all run"
    return ""


def _describe(slowdown: float) -> str:
    return "as fast as alone" if slowdown < _EVEN else f"{slowdown:.2f} times slower than alone"


def _find_rate_alone(member: MemberView, degree: DegreeRecord | None) -> float | None:
    """The newest rate alone that its runner knows."""
    found = [
        rate
        for rate in (() if degree is None else degree.rates_alone)
        if rate.member == member.place and rate.steps_per_s > 0
    ]
    return max(found, key=lambda rate: rate.at).steps_per_s if found else None


def find_figures(
    member: MemberView, latest: Mapping[str, Any] | None, now: float
) -> Mapping[str, Any]:
    """The monitor's figures of the member's present start; empty without any that are new."""
    value = latest or {}
    at, members = _read_positive(value.get("at")), value.get("members")
    if at is None or not now - STALE_S <= at <= now + _AHEAD_S or not isinstance(members, dict):
        return {}
    found = members.get(str(member.place))
    starts = member.record.starts if member.record is not None else None
    return found if isinstance(found, dict) and found.get("start") == starts else {}


def _read_positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if _LEAST <= value <= _MOST else None
