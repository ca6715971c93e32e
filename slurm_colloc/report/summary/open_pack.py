"""What a pack that was open for others asked for and its members did not: part of summary.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slurm_colloc.report.summary.pack_run import PackRun

_MB_PER_GB = 1024


def build_open(run: PackRun) -> dict[str, Any] | None:
    """Hours of CPUs and host memory, asked of Slurm and by the members' users; None for others.

    Counted from the pack's first start to its last end. Each figure is None where unknown.
    """
    record = run.view.record
    if not record.open_for:
        return None
    request = record.request
    held_h = None if run.window is None else (run.window[1] - run.window[0]) / 3600
    cpus = None if request is None else request.cpus
    memory_mb = None if request is None else request.host_memory_mb
    times = [sum(stay.end - stay.begin for stay in m.stays) / 3600 for m in run.members]
    jobs = [member.view.spec.job for member in run.members]
    return {
        "for": record.open_for,
        "joined": sum(bool(member.view.spec.joined) for member in run.members),
        "cpu_hours": {
            "asked": None if cpus is None or held_h is None else cpus * held_h,
            "used": _add(zip((job.cpus for job in jobs), times, strict=True)),
        },
        "host_memory_gb_hours": {
            "asked": None
            if memory_mb is None or held_h is None
            else memory_mb / _MB_PER_GB * held_h,
            "used": _add(
                (None if job.host_memory_mb is None else job.host_memory_mb / _MB_PER_GB, time_h)
                for job, time_h in zip(jobs, times, strict=True)
                if time_h > 0
            ),
        },
    }


def _add(parts: Iterable[tuple[float | None, float]]) -> float | None:
    """The sum of amounts times hours; None where an amount is unknown."""
    total = 0.0
    for amount, time_h in parts:
        if amount is None:
            return None
        total += amount * time_h
    return total
