"""What the choice of a MIG layout takes, over all models and numbers of members."""

from __future__ import annotations

import time

from benchmarks.measuring import Section, Series, format_value
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.choose_layout import choose_layout, list_layouts
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.planned_gpu import choose_planned_gpu

RUNS = 20
_TARGET_MS = 10.0
_GPUS = {"A100 40GB": 40_960, "A100 80GB": 81_920, "A30": 24_576, "H100": 81_559, "H200": 143_771}
_HEADER = ("GPU", "members", "layouts", "target", "median", "quartiles", "runs")
_ABOUT = (
    "Members that all differ, on the best of all layouts; nothing is kept from one choice to the "
    "next. Layouts are those in which no instance could be larger."
)


def measure_layouts() -> Section:
    """Choose layouts, each time anew."""
    rows = []
    for name, memory_mb in _GPUS.items():
        gpu = choose_planned_gpu(memory_mb, (f"NVIDIA {name}",))
        for count in (2, 4, 7):
            if count > gpu.slices:
                continue
            subjects = [
                Subject(
                    number, 1, None, 2000 + 300 * number, 100.0 + 10 * number,
                    Load(0.3, 0.1 + 0.1 * number, 0.1), 3.0, 0.08,
                )
                for number in range(count)
            ]  # fmt: skip
            found = []
            for _ in range(RUNS):
                list_layouts.cache_clear()
                begun = time.perf_counter()
                choose_layout(subjects, gpu)
                found.append((time.perf_counter() - begun) * 1000)
            series = Series(tuple(found))
            low, high = series.quartiles
            verdict = "met" if series.median <= _TARGET_MS else "MISSED"
            rows.append(
                (
                    name,
                    str(count),
                    str(len(list_layouts(gpu.profiles, count))),
                    f"{_TARGET_MS:g} ms: {verdict}",
                    f"{format_value(series.median)} ms",
                    f"{format_value(low)} to {format_value(high)} ms",
                    str(RUNS),
                )
            )
    return Section("MIG layouts", _HEADER, tuple(rows), (_ABOUT,))
