"""How long it takes from Python: importing the package, and a map of a hundred calls."""

from __future__ import annotations

import sys

from benchmarks.bed import Bed
from benchmarks.measuring import Figures, Section, Series, format_ratio, interleave
from benchmarks.submission import installed_submitit

RUNS = 15
CALLS = 100
IMPORT_TARGET_MS = 30
MAP_TARGET_MS = 2000
_IMPORT = """
import time
begun = time.perf_counter()
import slurm_colloc
print((time.perf_counter() - begun) * 1000)
"""
# From the first import to the ids of all jobs; submitit is given the same names of options.
_MAP = """
import sys, time
begun = time.perf_counter()
from {module} import {name}
executor = {name}({folder!r}, {options})
jobs = executor.map_array(abs, range(int(sys.argv[1])))
assert len({{job.job_id for job in jobs}}) == int(sys.argv[1])
print((time.perf_counter() - begun) * 1000)
"""
_OURS = _MAP.format(
    module="slurm_colloc", name="Executor", folder="csub_calls", options='gres="gpu:1", time=60'
)
_THEIRS = _MAP.format(
    module="submitit", name="AutoExecutor", folder="submitit", options=""
).replace("jobs =", "executor.update_parameters(gpus_per_node=1, timeout_min=60)\njobs =")


def measure_executor(bed: Bed) -> Section:
    """Import and map, and submitit's; jobs are taken and not started."""

    def run(python: str, program: str, *words: str) -> float:
        before = set(bed.state.list_open())
        shown = float(bed.run([python, "-c", program, *words]).splitlines()[-1])
        for pack_id in set(bed.state.list_open()) - before:
            bed.state.forget_open(pack_id)
        return shown

    with bed.paused(), installed_submitit() as (python, version):
        actions = {
            "import": lambda: run(sys.executable, _IMPORT),
            "one": lambda: run(sys.executable, _OURS, "1"),
            "map": lambda: run(sys.executable, _OURS, str(CALLS)),
        }
        if python is not None:
            theirs = python
            actions["submitit"] = lambda: run(theirs, _THEIRS, str(CALLS))
        measured = interleave(actions, RUNS)
    figures = Figures()
    figures.add("import slurm_colloc", measured["import"], "ms", target=IMPORT_TARGET_MS)
    figures.add("one call, imports included", measured["one"], "ms", command="Executor.map_array")
    other: Series | None = measured.get("submitit")
    figures.add(
        f"{CALLS} calls, imports included",
        measured["map"],
        "ms",
        target=MAP_TARGET_MS,
        ratio="" if other is None else format_ratio(measured["map"], other, "submitit"),
        command="Executor.map_array",
    )
    notes = ["Within a fresh interpreter, whose own start is not counted."]
    if other is not None:
        figures.add(f"submitit, {CALLS} calls", other, "ms", command="AutoExecutor.map_array")
        notes.append(f"submitit {version} in an empty venv.")
    return figures.build_section("From Python", notes)
