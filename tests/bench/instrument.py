"""What the instrument costs a member: each step, each batch, and each start of Python."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.store.injection import injected_environment
from tests.bench.measuring import (
    Figures,
    Section,
    build_environment,
    format_ratio,
    interleave,
    run_timed,
)

RUNS = 7
STARTS = 30
STEP_TARGET_NS = 2000

# Each prints nanoseconds for one turn. The quickest of many rounds is what the code costs; the
# rest is the machine's. A round is shorter than the kernel lets a process run.
_TIMER = """
import sys, time
def measure(turn, turns, rounds=300):
    best = None
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        for _ in range(turns): turn()
        spent = (time.perf_counter_ns() - begun) / turns
        best = spent if best is None else min(best, spent)
    print(best)
"""
_STEP = f"""{_TIMER}
import torch
torch.set_num_threads(1)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
optimizer.param_groups[0]["params"][0].grad = torch.ones(4)
optimizer.step()
measure(optimizer.step, 40)
"""
_BATCH = f"""{_TIMER}
import torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.zeros(100000, 1))
iterator = iter(torch.utils.data.DataLoader(data, batch_size=4))
measure(lambda: next(iterator), 30)
"""
_BY_HAND = f"""{_TIMER}
from slurm_colloc import progress
measure(lambda: progress.step(samples=128), 200)
"""
_NOTHING = f"{_TIMER}\nmeasure(lambda: None, 200)\n"


def measure_instrument() -> Section:
    """One step and one batch with and without, and the start of an interpreter."""
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=_find_memory()) as folder:
        home = Path(folder)
        plain = build_environment(home, Path(sys.executable).parent) | {"OMP_NUM_THREADS": "1"}
        counted = plain | injected_environment(plain, folder)
        _measure_turns(figures, plain, counted, home)
        _measure_starts(figures, plain, counted, home)
    notes = [
        "Turns: the quickest of 300 rounds in a process; pairs of processes, one after the other.",
        "The step is SGD on four numbers, about the smallest there is; the batch has four samples.",
    ]
    return figures.build_section("Instrument", notes)


def _find_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _measure_turns(
    figures: Figures, plain: dict[str, str], counted: dict[str, str], home: Path
) -> None:
    programs = {"`progress.step()` by hand": (_NOTHING, _BY_HAND)}
    if importlib.util.find_spec("torch") is not None:
        programs = {
            "`optimizer.step()`": (_STEP, _STEP),
            "`next(loader)`": (_BATCH, _BATCH),
            **programs,
        }
    for name, (without, with_it) in programs.items():
        measured = interleave(
            {
                "without": functools.partial(_run, without, plain, home),
                "with": functools.partial(_run, with_it, counted, home),
            },
            RUNS,
        )
        base, series = measured["without"], measured["with"]
        figures.add(f"{name} without", base, "ns")
        ratio = format_ratio(series, base, "without") if name != "`progress.step()` by hand" else ""
        figures.add(f"{name} counted", series, "ns", ratio=ratio)
        # Of each pair, so that a change of load between them does not count.
        pairs = zip(series.values, base.values, strict=True)
        added = type(base)(tuple(one - other for one, other in pairs))
        figures.add(f"{name} added", added, "ns", target=STEP_TARGET_NS)


def _run(code: str, environment: dict[str, str], home: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _measure_starts(
    figures: Figures, plain: dict[str, str], counted: dict[str, str], home: Path
) -> None:
    inert = {name: value for name, value in counted.items() if name != "SLURM_COLLOC_PROGRESS"}

    def start(environment: dict[str, str]) -> Callable[[], float]:
        argv = [sys.executable, "-c", "pass"]
        return lambda: run_timed(argv, environment=environment, directory=home)[0]

    measured = interleave(
        {"without": start(plain), "inert": start(inert), "with": start(counted)}, STARTS
    )
    base = measured["without"]
    figures.add("start of Python without", base, "ms", command="python -c pass")
    for name, title in (("inert", "no directory set"), ("with", "counted")):
        series = measured[name]
        figures.add(
            f"start of Python, {title}", series, "ms", ratio=format_ratio(series, base, "without")
        )
