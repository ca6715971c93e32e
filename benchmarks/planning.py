"""What the search for packs takes: time from start to partition, and peak memory.

`python -m benchmarks.planning COUNT KIND` divides once, in this process, and prints what it took.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from typing import Any

from benchmarks.measuring import Section, Series, format_series, run_in_new_processes
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.pack_pricing import Pricing
from slurm_colloc.planning.pack_search import partition
from tests.planning.coefficients import CALIBRATION, LIMITS

RUNS = 5
_CASES = (
    ("16", "light", 1000.0),
    ("16", "distinct", 1000.0),
    ("100", "distinct", None),
    ("1000", "distinct", None),
    ("10000", "alike", 5000.0),
    ("10000", "forty", 5000.0),
    ("10000", "distinct", 5000.0),
    ("10000", "light", 5000.0),
)
"""Jobs, their kinds, and the target in milliseconds."""
_TARGET_MB = 500
_HEADER = ("jobs", "kinds", "target", "median", "quartiles", "runs", "peak memory", "GPU time")
_ABOUT = (
    "`light`: all differ, and all subsets are legal; `distinct`: all differ, loads are random, "
    "lengths lognormal; `forty`: 40 kinds; `alike`: one. Time is that of the search with all that "
    "it imports, without Python's start. GPU time is that of the packs over one after the other. "
    "Coefficients are plausible ones, not fitted."
)


def measure_planning() -> Section:
    """Divide jobs of several numbers and kinds, each time in a new process."""
    rows = []
    for count, kind, target_ms in _CASES:
        found = run_in_new_processes("benchmarks.planning", (count, kind), RUNS)
        series = Series(tuple(one["ms"] for one in found))
        peak_mb = max(one["peak_mb"] for one in found)
        enough = "met" if peak_mb <= _TARGET_MB else "MISSED"
        rows.append(
            (
                count,
                kind,
                *format_series(series, "ms", target=target_ms),
                f"{peak_mb:.0f} MB ({_TARGET_MB} MB: {enough})",
                f"{found[0]['share']:.3f}",
            )
        )
    return Section("The search for packs", _HEADER, tuple(rows), (_ABOUT,))


def _build_subjects(count: int, kind: str) -> list[Subject]:
    chance = random.Random(count)
    kinds = {"alike": 1, "forty": 40}.get(kind, count)
    made = [_build_subject(chance, index, light=kind == "light") for index in range(kinds)]
    return [made[index % kinds] for index in range(count)]


def _build_subject(chance: random.Random, index: int, *, light: bool) -> Subject:
    sm = chance.uniform(0.005, 0.015) if light else 0.02 + 0.75 * chance.random() ** 2
    load = Load(
        engine=sm**0.55,
        sm=sm,
        dram=sm * chance.uniform(0.2, 0.9),
        tensor=sm * chance.random(),
        pcie=0.1 * chance.random(),
        power_w=500 * sm,
    )
    run_s = chance.lognormvariate(7, 0.3 if light else 1.0)
    gpu_memory_mb = 1500 if light else chance.randint(1000, 30_000)
    cpus = 1 if light else chance.randint(1, 4)
    return Subject(index, cpus, None, gpu_memory_mb, run_s, load, 100.0 if light else 2.0, 0.05)


def _divide(count: int, kind: str) -> dict[str, Any]:
    subjects = _build_subjects(count, kind)
    begun = time.perf_counter()
    pricing = Pricing(subjects, LIMITS, CALIBRATION, modes=(SharingMode.MPS, SharingMode.TIMESLICE))
    packs = partition(pricing)
    took_ms = (time.perf_counter() - begun) * 1000
    priced = [pricing.price(pack) for pack in packs]
    return {
        "ms": took_ms,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "share": sum(one.cost for one in priced if one) / sum(s.run_s for s in subjects),
    }


if __name__ == "__main__":
    print(json.dumps(_divide(int(sys.argv[1]), sys.argv[2])))
