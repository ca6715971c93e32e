"""A probe window is long enough for the usage profile that it is there for."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_colloc.metrics.presence import Stay, compute_phases, find_alone
from slurm_colloc.metrics.rates import CounterReadings, compute_rate, select_within, settle
from slurm_colloc.model.measurement import BY_ITSELF, ProbeProgress, judge_window
from slurm_colloc.monitor.latest_figures import LatestFigures
from slurm_colloc.report.solo_rates import ALONE_LEAST_S

BEGIN = 1000.0
UNEVEN = Path(__file__).parents[1] / "recordings" / "h200" / "uneven.csv"


def build_progress(elapsed_s: float, seen: Mapping[str, Any]) -> ProbeProgress:
    return ProbeProgress(
        elapsed_s,
        seen["steps"],
        seen["steady"],
        seen["settled_s"],
        seen["steps_per_s"],
        seen["mean_steps_per_s"],
        seen["mean_error"],
    )


@pytest.mark.parametrize("training", ["small", "medium"])
def test_a_window_is_over_in_good_time_on_a_host_that_is_fast_and_slow_by_turns(
    training: str,
) -> None:
    with UNEVEN.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["training"] == training]
    latest, reason = LatestFigures(), ""
    for line in lines:
        numbers = {
            key: float(line[key]) if line[key] else None for key in line if key != "training"
        }
        at = float(line["at"])
        steps = int(line["steps"]) if line["steps"] else None
        row = {"member": 1, "start": 1, "cpu_s": 0.0, "host_memory_mb": None, "gpu_memory_mb": None}
        latest.update([{**row, **numbers, "steps": steps}])
        progress = build_progress(at, latest.build()["1"])
        reason = judge_window(progress, BY_ITSELF)
        if reason:
            break
    assert reason.startswith("the mean of its rate is known to")
    assert at < 60
    last = lines[-1]
    whole = int(last["steps"]) / (float(last["last_step_at"]) - float(last["first_step_at"]))
    assert progress.rate_alone == pytest.approx(whole, rel=0.12)


# Two steps in one tick, which lie across the end of the window.
@example(step_s=0.9921875, first_s=0.53125, tick=0.5234375, later_s=0.5)
@given(
    step_s=st.floats(0.004, 6.0),
    first_s=st.floats(0.5, 60.0),
    tick=st.floats(0.0, 1.0),
    later_s=st.floats(0.05, 2.0),
)
def test_whose_window_ends_because_it_is_steady_has_a_rate_alone(
    step_s: float, first_s: float, tick: float, later_s: float
) -> None:
    latest = LatestFigures()
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
        reason = judge_window(build_progress(at - BEGIN, seen), BY_ITSELF)
        if reason:
            # Of an even rate either may be seen first.
            assert reason in {"its rate is steady", "the mean of its rate is known to 0 %"}
            # A neighbour starts then.
            over_at = at + later_s
    series = CounterReadings(
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
