"""A probe window is long enough for the usage profile that it is there for."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.presence import Stay, compute_phases, find_alone
from slurm_colloc.metrics.rates import Progress, compute_rate, select_within, settle
from slurm_colloc.model.probing import BY_ITSELF, ProbeProgress, judge_window
from slurm_colloc.monitor.latest import Latest
from slurm_colloc.report.solo import ALONE_LEAST_S

BEGIN = 1000.0


@given(
    step_s=st.floats(0.004, 6.0),
    first_s=st.floats(0.5, 60.0),
    tick=st.floats(0.0, 1.0),
    later_s=st.floats(0.05, 2.0),
)
def test_whose_window_ends_because_it_is_steady_has_a_rate_alone(
    step_s: float, first_s: float, tick: float, later_s: float
) -> None:
    latest = Latest()
    rows: list[dict[str, Any]] = []
    over_at = math.inf
    for second in range(1500):
        at = BEGIN + tick + second
        since = at - BEGIN - first_s
        steps = int(since / step_s) + 1 if since >= 0 else None
        row = {
            "at": at,
            "member": 1,
            "start": 1,
            "cpu_s": 0.0,
            "host_memory_mb": None,
            "gpu_memory_mb": None,
            "steps": steps,
            "first_step_at": None if steps is None else BEGIN + first_s,
            "last_step_at": None if steps is None else BEGIN + first_s + (steps - 1) * step_s,
        }
        rows.append(row)
        latest.update([row])
        if over_at < math.inf:
            continue
        seen = latest.build()["1"]
        progress = ProbeProgress(
            at - BEGIN, seen["steps"], seen["steady"], seen["settled_s"], seen["steps_per_s"]
        )
        reason = judge_window(progress, BY_ITSELF)
        if reason:
            assert reason == "its rate is steady"
            # A neighbour starts then.
            over_at = at + later_s
    series = Progress(
        at=[row["at"] for row in rows],
        steps=[row["steps"] for row in rows],
        samples=[None for _ in rows],
        wait_s=[None for _ in rows],
        last_step_at=[row["last_step_at"] for row in rows],
        first_step_at=BEGIN + first_s,
    )
    phases = compute_phases([Stay(BEGIN, BEGIN + 1500, 1), Stay(over_at, BEGIN + 1500, 2)])
    intervals = select_within(settle(series).intervals, find_alone(phases, 1))
    assert compute_rate(intervals, ALONE_LEAST_S).steps_per_s is not None
