"""What the suite has measured so far: kept in measuring.json, and told as it goes on."""

from __future__ import annotations

import time
from typing import Any

from .comparison import compute_error
from .gpu_node import GpuNode

STARTED_S = time.monotonic()
RESULTS: dict[str, Any] = {}


def keep(bed: GpuNode, value: Any, *path: str) -> None:
    """Write a result under names from outside to inside, before it is judged."""
    place = RESULTS
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    bed.write("measuring.json", RESULTS)


def tell(text: str) -> None:
    """Print a line, with the time since the suite began."""
    print(f"\n{time.monotonic() - STARTED_S:5.0f} s  {text}", end="")


def round_error(value: float | None, truth: float | None) -> float | None:
    """Relative error of a value; None where one of them is unknown or the truth is 0."""
    error = compute_error(value, truth)
    return None if error is None else round(error, 5)
