"""What the instrument costs a member: each step, each batch, and each start of Python."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import (
    Figures,
    Section,
    Series,
    build_environment,
    format_ratio,
    interleave,
    run_timed,
)
from slurm_colloc.runtime.pack_monitor import injected_environment

RUNS = 11
ROUNDS = 400
STARTS = 30
STEP_TARGET_NS = 2000

# Prints nanoseconds for one turn in each round, without and with. Both are measured in one
# process, where all else is the same, and in turn, so that a change of load meets both. A round
# is shorter than the kernel lets a process run.
_TIMER = f"""
import json, time
def measure(without, with_it, turns, prepare=lambda counted: None):
    spent = [], []
    for number in range({ROUNDS}):
        for counted in (number % 2, 1 - number % 2):
            prepare(counted)
            turn = with_it if counted else without
            turn()
            begun = time.perf_counter_ns()
            for _ in range(turns): turn()
            spent[counted].append((time.perf_counter_ns() - begun) / turns)
    print(json.dumps(spent))
"""
_STEP = f"""{_TIMER}
import torch
from torch.optim import optimizer as module
torch.set_num_threads(1)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
optimizer.param_groups[0]["params"][0].grad = torch.ones(4)
optimizer.step()
hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
ours = [dict(each) for each in hooks]
assert all(ours)
def prepare(counted):
    for each, added in zip(hooks, ours):
        each.clear()
        each.update(added if counted else {{}})
measure(optimizer.step, optimizer.step, 40, prepare)
"""
_BATCH = f"""{_TIMER}
import torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.zeros(100000, 1))
without, with_it = (iter(torch.utils.data.DataLoader(data, batch_size=4)) for _ in range(2))
kind = type(without)
without.__class__ = type("Uncounted", (kind,), {{"__next__": kind.__next__.__wrapped__}})
with_it.__class__ = type("Counted", (kind,), {{"__next__": kind.__next__}})
measure(lambda: next(without), lambda: next(with_it), 30)
"""
_BY_HAND = f"""{_TIMER}
from slurm_colloc import progress
measure(lambda: None, lambda: progress.step(samples=128), 200)
"""


def measure_instrument() -> Section:
    """One step and one batch with and without, and the start of an interpreter."""
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=_find_memory()) as folder:
        home = Path(folder)
        plain = build_environment(home, Path(sys.executable).parent) | {"OMP_NUM_THREADS": "1"}
        counted = plain | injected_environment(plain, folder)
        _measure_turns(figures, counted, home)
        _measure_starts(figures, plain, counted, home)
    notes = [
        f"Turns: {ROUNDS} rounds without and {ROUNDS} with, in turn, in each of {RUNS} processes.",
        "The quickest rounds of each process are what the code costs; the rest is the machine's.",
        "`all rounds` are the differences of all pairs of rounds.",
        "The step is SGD on four numbers, about the smallest there is; the batch has four samples.",
    ]
    return figures.build_section("Instrument", notes)


def _find_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _measure_turns(figures: Figures, counted: dict[str, str], home: Path) -> None:
    programs = {"`progress.step()` by hand": _BY_HAND}
    if importlib.util.find_spec("torch") is not None:
        programs = {"`optimizer.step()`": _STEP, "`next(loader)`": _BATCH, **programs}
    # The programs in turn too, so that a loaded minute does not meet one alone.
    runs = [
        {name: _run(code, counted, home) for name, code in programs.items()} for _ in range(RUNS)
    ]
    for name in programs:
        measured = [run[name] for run in runs]
        without = Series(tuple(min(base) for base, _ in measured))
        with_it = Series(tuple(min(series) for _, series in measured))
        figures.add(f"{name} without", without, "ns")
        ratio = "" if "by hand" in name else format_ratio(with_it, without, "without")
        figures.add(f"{name} counted", with_it, "ns", ratio=ratio)
        pairs = zip(with_it.values, without.values, strict=True)
        added = Series(tuple(one - other for one, other in pairs))
        figures.add(f"{name} added", added, "ns", target=STEP_TARGET_NS)
        rounds = itertools.chain.from_iterable(
            zip(series, base, strict=True) for base, series in measured
        )
        figures.add(
            f"{name} added, all rounds", Series(tuple(one - other for one, other in rounds)), "ns"
        )


def _run(code: str, environment: dict[str, str], home: Path) -> tuple[list[float], list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    without, with_it = json.loads(done.stdout)
    return without, with_it


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
