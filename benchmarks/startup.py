"""How long csub takes from start to end where there is little to do, and what it imports."""

from __future__ import annotations

import collections
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bed import Bed, forget_packs
from benchmarks.finished import make_finished_packs
from benchmarks.measuring import Figures, Section, Series, format_value

RUNS = 30
IMPORT_RUNS = 7
TOP = 14
BARE = "a bare start"
TIMES_BARE_MOST = {"csub --help": 6, "csub x.sh": 7, "csub queue": 7, "csub report": 10}
ONE = ("--gres=gpu:1", "x.sh")
TWO = ("--gres=gpu:1", "--array=1-2", "port.sh")
READ, UNREAD, SKIPPED = (f"csub --array=1-2 port.sh, {how}" for how in (
    "read before", "read first", "not read (--share=exclusive)"))  # fmt: skip
"""A call whose jobs may share: its script is checked (docs/decisions/0064)."""
HEAVY = ("pandas", "numpy", "torch", "pyarrow", "typer", "click", "rich", "pydantic",
         "importlib.metadata", "asyncio", "logging", "email")  # fmt: skip
# Run a submission in this interpreter, then tell what it had loaded.
_LIST_MODULES = (
    "import sys, json\n"
    "from slurm_colloc.__main__ import run\n"
    "run(sys.argv[1:])\n"
    "print(json.dumps(sorted(sys.modules)))\n"
)


@dataclass(frozen=True)
class Took:
    """What one run of a program took, in milliseconds: by the clock, and of processors."""

    wall_ms: float
    cpu_ms: float


def measure_startup(bed: Bed) -> Section:
    """Four commands against the start of a bare interpreter, each round one after the other."""
    waiting, ended = bed.with_state("waiting"), bed.with_state("ended")
    make_finished_packs(ended.state, 1, str(bed.home))
    (pack_id,) = ended.state.list_all()
    ended.run([bed.csub, "report", "--write", str(ended.state.pack_path(pack_id))])
    python = sys.executable
    runs: dict[str, Callable[[], Took]] = {
        BARE: lambda: take(bed, [python, "-I", "-c", "pass"]),
        "csub --version": lambda: take(bed, [bed.csub, "--version"]),
        "csub --help": lambda: take(bed, [bed.csub, "--help"]),
        "csub x.sh": lambda: _submit(bed, *ONE),
        SKIPPED: lambda: _submit(bed, "--share=exclusive", *TWO),
        UNREAD: lambda: _submit_unread(bed),
        READ: lambda: _submit(bed, *TWO),
        "csub queue": lambda: take(waiting, [bed.csub, "queue"]),
        "csub report": lambda: take(ended, [bed.csub, "report"]),
        "import typer": lambda: take(bed, [python, "-I", "-c", "import typer"]),
    }
    took: dict[str, list[Took]] = {name: [] for name in runs}
    (bed.home / "port.sh").write_text("#!/bin/bash\nexport MASTER_PORT=29500\npython t.py\n")
    (bed.home / "t.py").write_text("import time\nprint(time.time())\n")
    with bed.paused():
        waiting.run([bed.csub, *ONE])
        for number in range(RUNS + 1):
            for name, run in runs.items():
                one = run()
                if number:
                    took[name].append(one)
    figures = Figures()
    for name, series in took.items():
        figures.add(name, Series(tuple(one.wall_ms for one in series)), "ms", command=name)
    for what in ("wall_ms", "cpu_ms"):
        for name, target in {**TIMES_BARE_MOST, READ: 7, UNREAD: None, SKIPPED: None}.items():
            ratios = [
                getattr(one, what) / getattr(bare, what)
                for one, bare in zip(took[name], took[BARE], strict=True)
            ]
            told = "wall time" if what == "wall_ms" else "processor time"
            figures.add(f"{name} over {BARE}, {told}", Series(tuple(ratios)), "x", target=target)
    return figures.build_section(
        "Start",
        [
            f"`{BARE}` is `python -I -c pass`; modules are compiled; a ratio is that of one round.",
            "The queue has one job that waits, the report one pack that has ended, with a summary.",
            "Processor time is that of the process and of Slurm's commands that it calls.",
        ],
    )


def take(bed: Bed, argv: list[str]) -> Took:
    """Run a program to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_ms = bed.time_ms(argv)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_ms, 1000 * used_s)


def _submit_unread(bed: Bed) -> Took:
    """Submit a script that is read first."""
    (bed.state.root / "waits" / "checked.json").unlink(missing_ok=True)
    return _submit(bed, *TWO)


def _submit(bed: Bed, *words: str) -> Took:
    """Submit with no open pack."""
    before = set(bed.state.list_open())
    took = take(bed, [bed.csub, *words])
    forget_packs(bed, before)
    return took


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
