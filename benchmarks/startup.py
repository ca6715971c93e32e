"""How long csub takes from start to end where it only answers, and what it imports."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.bed import Bed
from benchmarks.measuring import (
    Figures,
    Section,
    Series,
    build_environment,
    format_ratio,
    format_value,
    interleave,
    run_timed,
)

RUNS = 30
IMPORT_RUNS = 7
TOP = 14
HELP_TARGET_MS = 120
HEAVY = ("pandas", "numpy", "torch", "pyarrow", "typer", "click", "rich", "pydantic",
         "importlib.metadata", "asyncio", "logging", "email")  # fmt: skip
# Run a submission in this interpreter, then tell what it had loaded.
_LIST_MODULES = (
    "import sys, json\n"
    "from slurm_colloc.__main__ import run\n"
    "run(sys.argv[1:])\n"
    "print(json.dumps(sorted(sys.modules)))\n"
)


def measure_startup() -> Section:
    """Wall time of commands that ask no one."""
    csub = str(Path(sys.executable).with_name("csub"))
    commands = {
        "a bare interpreter": [sys.executable, "-c", "pass"],
        "csub --version": [csub, "--version"],
        "csub --help": [csub, "--help"],
        "csub submit --help": [csub, "submit", "--help"],
        "import typer": [sys.executable, "-c", "import typer"],
    }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = build_environment(home, Path(sys.executable).parent)

        def make(argv: list[str]) -> Callable[[], float]:
            return lambda: run_timed(argv, environment=environment, directory=home)[0]

        measured = interleave({name: make(argv) for name, argv in commands.items()}, RUNS)
    figures = Figures()
    bare = measured["a bare interpreter"]
    for name, argv in commands.items():
        series = measured[name]
        figures.add(
            name,
            series,
            "ms",
            target=HELP_TARGET_MS if name == "csub --help" else None,
            ratio="" if series is bare else format_ratio(series, bare, "bare"),
            command=" ".join(["csub" if argv[0] == csub else "python", *argv[1:]]),
        )
    return figures.build_section("Start", ["Wall time of the whole process; modules are compiled."])


def measure_imports(bed: Bed) -> Section:
    """The dearest imports of one submission, by Python's own account."""
    costs: dict[str, list[float]] = collections.defaultdict(list)
    totals = []
    for number in range(IMPORT_RUNS + 1):
        ended = subprocess.run(
            [sys.executable, "-X", "importtime", bed.csub, "--gres=gpu:1", "x.sh"],
            env=bed.environment,
            cwd=bed.home,
            capture_output=True,
            text=True,
            check=True,
        )
        rows = parse_import_times(ended.stderr)
        if number == 0:
            continue
        totals.append(sum(rows.values()))
        for name, own_ms in rows.items():
            costs[name].append(own_ms)
    series = {name: Series(tuple(values)) for name, values in costs.items()}
    ranking = sorted(series, key=lambda name: -series[name].median)
    rows_out = [
        (
            "all modules",
            f"{format_value(Series(tuple(totals)).median)} ms",
            "{}-{}".format(*map(format_value, Series(tuple(totals)).quartiles)),
        ),
        *(
            (
                f"`{name}`",
                f"{format_value(series[name].median)} ms",
                "{}-{}".format(*map(format_value, series[name].quartiles)),
            )
            for name in ranking[:TOP]
        ),
    ]
    listed = bed.run([sys.executable, "-c", _LIST_MODULES, "--gres=gpu:1", "x.sh"])
    modules = set(json.loads(listed.splitlines()[-1]))
    heavy = [name for name in HEAVY if name in modules]
    notes = [
        (
            f"`python -X importtime csub --gres=gpu:1 x.sh`, {IMPORT_RUNS} runs, modules compiled; "
            "the measurement itself makes imports dearer."
        ),
        (
            f"{len(modules)} modules are loaded at the end of a submission. Of {', '.join(HEAVY)}: "
            f"{', '.join(heavy) or 'none'}."
        ),
    ]
    return Section(
        "Imports of one submission",
        ("module", "own time, median", "quartiles"),
        tuple(rows_out),
        tuple(notes),
    )


def parse_import_times(text: str) -> dict[str, float]:
    """Own time of each module in milliseconds, from what `-X importtime` writes."""
    costs = {}
    for line in text.splitlines():
        if not line.startswith("import time:") or "[us]" in line:
            continue
        own_us, _, name = line.removeprefix("import time:").split("|")
        costs[name.strip()] = int(own_us) / 1000
    return costs
