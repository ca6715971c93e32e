"""What csub's measuring costs a training, from the units that paired.py has written."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from .bed import Bed
from .cost import (
    Timeline,
    convert_to_monotonic,
    estimate_instrument,
    estimate_presence,
    estimate_ticks,
    parse_units,
)
from .estimates import TRIMMED, Estimate, add_up
from .figures import keep, tell

GOAL_PERCENT = 0.5
STEPS_IN_UNIT = 4


def judge_pairs(bed: Bed, gpu_rows: list[dict[str, Any]], text: str, told: dict[str, Any]) -> None:
    """Keep and tell what counting and monitor cost, each with its interval.

    Args:
        bed: Where.
        gpu_rows: The pack's samples of its GPU, one at each tick.
        text: The units.
        told: What paired.py has printed: cores, and both clocks at begin and end.
    """
    units = parse_units(text)
    ticks = convert_to_monotonic(
        sorted({float(row["at"]) for row in gpu_rows}), [tuple(pair) for pair in told["clocks"]]
    )
    timeline = Timeline(units, ticks)
    took_ms = [1000 * unit.took_s / STEPS_IN_UNIT for unit in units]
    machine = {
        **told,
        "units": len(units),
        "ticks": len(ticks),
        "segments": len(timeline.find_segments()),
        "step_ms_deciles": [round(value, 4) for value in statistics.quantiles(took_ms, n=10)],
    }
    keep(bed, machine, "pairs")
    trimmed, plain = estimate_instrument(units)
    lost = estimate_ticks(timeline)
    presence = estimate_presence(timeline)
    out = round(100 * TRIMMED)
    _tell_cost(
        bed, "instrument", trimmed, others={"plain_mean": plain}, percent_trimmed_at_each_end=out
    )
    _tell_cost(bed, "ticks", lost.ticks, met=lost.met)
    _tell_cost(bed, "control", lost.control)
    _tell_cost(
        bed, "between ticks", presence.fast_mode, others={"low_quantile": presence.low_quantile}
    )
    total = add_up([trimmed, lost.ticks, presence.fast_mode])
    _tell_cost(bed, "total", total)
    assert trimmed is not None, "no group of units"
    assert lost.met, "no tick of the monitor met the training"
    assert len(told["cpus"]) > 1


def _tell_cost(
    bed: Bed,
    name: str,
    found: Estimate | None,
    others: dict[str, Estimate | None] | None = None,
    **more: int,
) -> None:
    """Keep an estimate, and others of the same thing, and print a line."""
    value: dict[str, Any] = {"goal_percent": GOAL_PERCENT, **_to_json(found), **more}
    told = _describe(found)
    for other, one in (others or {}).items():
        value[other] = _to_json(one)
        told += f"; {other.replace('_', ' ')} {_describe(one)}"
    told += "".join(f"; {key.replace('_', ' ')} {number}" for key, number in more.items())
    keep(bed, value, "results", f"cost, {name}")
    tell(f"cost, {name}: {told}")


def _to_json(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {**dict.fromkeys(field.name for field in dataclasses.fields(Estimate)), "n": 0}
    return dataclasses.asdict(found)


def _describe(found: Estimate | None) -> str:
    if found is None:
        return "unknown"
    ends = f"{_show(found.low)} to {_show(found.high)}"
    return f"{_show(found.mean)} ({ends}), median {_show(found.median)}, n {found.n}"


def _show(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f} %"
