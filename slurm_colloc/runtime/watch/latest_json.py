"""latest.json: the monitor's newest figures, as the runner reads them.

A process that can write to the pack's directory may have written something else into it, or a
monitor of another version. Figures that are not such as the monitor writes count as none at all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.pack.sample_files import latest_path

RATE_LEAST, RATE_MOST = 1e-6, 1e9
"""Steps per second; what is outside is none's rate."""

AHEAD_S = 5.0
"""Figures of so much later than now are of another clock."""

_USUAL = (0.0, 1e15)
_SHARE = (0.0, 1.5)
"""Of an activity, 0 to 1; hardware counters round."""

_RANGES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "members": {
        "start": _USUAL,
        "steps": _USUAL,
        "steps_per_s": (RATE_LEAST, RATE_MOST),
        "last_step_age_s": _USUAL,
        "settled_s": _USUAL,
        "mean_steps_per_s": (RATE_LEAST, RATE_MOST),
        "mean_error": _USUAL,
        "gpu_memory_mb": _USUAL,
    },
    "gpus": {
        "sm_active": _SHARE,
        "dram_active": _SHARE,
        "engine_active": _SHARE,
        "pcie_rx_mib_s": _USUAL,
        "pcie_tx_mib_s": _USUAL,
    },
}


def read_latest(pack: Path) -> Mapping[str, Any] | None:
    """The monitor's newest figures; None where there are none, or such as no monitor writes."""
    with contextlib.suppress(StateError):
        value = read_json(latest_path(pack))
        if is_sound(value, time.time()):
            return value
    return None


def is_sound(value: Any, now: float) -> bool:
    """Whether figures are such as the monitor writes; pure.

    Args:
        value: What was read.
        now: Seconds since the epoch.
    """
    if not isinstance(value, dict) or not _is_within(value.get("at"), (0.0, now + AHEAD_S)):
        return False
    for name, ranges in _RANGES.items():
        entries = value.get(name)
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            return False
        for entry in entries.values():
            found = ((entry.get(figure), allowed) for figure, allowed in ranges.items())
            if not all(i is None or i == 0 or _is_within(i, allowed) for i, allowed in found):
                return False
    return True


def _is_within(item: object, allowed: tuple[float, float]) -> bool:
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    # Not a number is in no range.
    return allowed[0] <= item <= allowed[1]
