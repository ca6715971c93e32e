"""How long a submission takes, and sbatch's and submitit's; jobs are taken and not started."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.bed import Bed
from benchmarks.finished import make_finished_packs
from benchmarks.measuring import Figures, Section, Series, format_ratio, interleave, run_timed
from benchmarks.startup import measure_imports

RUNS = 30
ARRAY_RUNS = 10
GROWTH_RUNS = 3
FINISHED_PACKS = 1000
OPEN_PACKS = 10
ONE_TARGET_MS = 200
FINISHED_TARGET_MS = 300
ARRAY_TARGET_MS = 1000

ONE = ("--gres=gpu:1", "x.sh")
FOUR = ("--array=0-3", "--gres=gpu:1", "x.sh")
SUBMITIT_JOB = Path(__file__).with_name("submitit_job.py")
# The same call in an interpreter that has imported everything already.
_WARM = (
    "import sys, time\n"
    "import slurm_colloc.cli.submit_command\n"
    "from slurm_colloc.__main__ import run\n"
    "begun = time.perf_counter()\n"
    "status = run(sys.argv[1:])\n"
    "print((time.perf_counter() - begun) * 1000)\n"
    "sys.exit(status)\n"
)


def measure_submissions(bed: Bed) -> Iterator[Section]:
    """One job and a small array, as with sbatch and submitit, then large arrays and old states."""
    with bed.paused():
        yield _measure_beside(bed)
        yield _measure_old_states(bed)
        yield _measure_growth(bed)
        yield measure_imports(bed)


def _measure_beside(bed: Bed) -> Section:
    notes = ["The jobs wait in the queue, so that nothing but the submission uses the machine."]
    with installed_submitit() as (python, version):
        actions: dict[str, Callable[[], float]] = {}
        parts: dict[str, list[float]] = {"import": [], "one": [], "four": []}
        actions["sbatch"] = lambda: bed.time_ms(["sbatch", *ONE])
        actions["csub"] = lambda: time_csub(bed, ONE)
        actions["csub in process"] = lambda: time_csub_in_process(bed, ONE)
        if python is None:
            notes.append("submitit could not be installed and is not compared.")
        else:
            actions["submitit"] = lambda: _time_submitit(
                bed, python, 1, parts["import"], parts["one"]
            )
        actions["sbatch --array"] = lambda: bed.time_ms(["sbatch", *FOUR])
        actions["csub --array"] = lambda: time_csub(bed, FOUR)
        actions["csub --array in process"] = lambda: time_csub_in_process(bed, FOUR)
        if python is not None:
            actions["submitit --array"] = lambda: _time_submitit(bed, python, 4, [], parts["four"])
        measured = interleave(actions, RUNS)
    figures = Figures()
    for suffix, words, count in (("", ONE, 1), (" --array", FOUR, 4)):
        csub, sbatch = measured[f"csub{suffix}"], measured[f"sbatch{suffix}"]
        other = measured.get(f"submitit{suffix}")
        jobs = "one job" if count == 1 else f"an array of {count}"
        call = " ".join(words)
        figures.add(
            f"csub, {jobs}",
            csub,
            "ms",
            target=ONE_TARGET_MS,
            ratio="; ".join(
                [format_ratio(csub, sbatch, "sbatch")]
                + ([format_ratio(csub, other, "submitit")] if other else [])
            ),
            command=f"csub {call}",
        )
        figures.add(f"sbatch, {jobs}", sbatch, "ms", command=f"sbatch {call}")
        if other:
            figures.add(
                f"csub over submitit, {jobs}",
                Series(tuple(a / b for a, b in zip(csub.values, other.values, strict=True))),
                "x",
                target=1,
            )
            target = "AutoExecutor.submit" if count == 1 else "AutoExecutor.map_array"
            figures.add(
                f"submitit, {jobs}", other, "ms", command=f"python submitit_job.py ({target})"
            )
        figures.add(f"csub, {jobs}, without imports", measured[f"csub{suffix} in process"], "ms")
        if other:
            figures.add(
                f"submitit, {jobs}, without imports",
                Series(tuple(parts["one" if count == 1 else "four"][1:])),
                "ms",
            )
    if parts["import"]:
        figures.add("import submitit", Series(tuple(parts["import"][1:])), "ms")
        notes.append(f"submitit {version}, in a fresh interpreter as csub is, in an empty venv.")
    return figures.build_section("One submission", notes)


def _measure_old_states(bed: Bed) -> Section:
    old = bed.with_state("old")
    make_finished_packs(old.state, FINISHED_PACKS, str(bed.home))
    busy = bed.with_state("busy")
    for _ in range(OPEN_PACKS):
        busy.run([busy.csub, *ONE])
    numbers = itertools.count()
    measured = interleave(
        {
            "first": lambda: time_csub(bed.with_state(f"first{next(numbers)}"), ONE),
            "fresh": lambda: time_csub(bed, ONE),
            "busy": lambda: time_csub(busy, ONE),
            "old": lambda: time_csub(old, ONE),
            "old array": lambda: time_csub(old, FOUR),
            "queue": lambda: bed.time_ms([bed.csub, "queue"]),
            "busy queue": lambda: busy.time_ms([busy.csub, "queue"]),
            "old queue": lambda: old.time_ms([old.csub, "queue"]),
        },
        RUNS,
    )
    whole = interleave({"all": lambda: old.time_ms([old.csub, "queue", "--all"])}, GROWTH_RUNS)
    figures = Figures()
    one, many = f"csub {' '.join(ONE)}", f"csub {' '.join(FOUR)}"
    fresh, queue = measured["fresh"], measured["queue"]
    figures.add(
        "one job, the user's first: nothing is kept yet",
        measured["first"],
        "ms",
        target=ONE_TARGET_MS,
        ratio=format_ratio(measured["first"], fresh, "no open pack"),
        command=one,
    )
    figures.add("one job, no open pack", fresh, "ms", target=ONE_TARGET_MS, command=one)
    figures.add(
        f"one job, {OPEN_PACKS} packs waiting in Slurm",
        measured["busy"],
        "ms",
        target=ONE_TARGET_MS,
        ratio=format_ratio(measured["busy"], fresh, "no open pack"),
        command=one,
    )
    for what, name, command in (("one job", "old", one), ("an array of 4", "old array", many)):
        figures.add(
            f"{what}, {FINISHED_PACKS} finished packs",
            measured[name],
            "ms",
            target=FINISHED_TARGET_MS,
            ratio=format_ratio(measured[name], fresh, "one job, no open pack"),
            command=command,
        )
    figures.add("queue, no open pack", queue, "ms", command="csub queue")
    for what, name in (
        (f"queue, {OPEN_PACKS} packs waiting", "busy queue"),
        (f"queue, {FINISHED_PACKS} finished packs", "old queue"),
    ):
        figures.add(
            what, measured[name], "ms", ratio=format_ratio(measured[name], queue, "no open pack"),
            command="csub queue",
        )  # fmt: skip
    figures.add(
        f"queue of all, {FINISHED_PACKS} finished packs of 4 members",
        whole["all"],
        "ms",
        command="csub queue --all",
    )
    return figures.build_section("Submission and queue with packs in the state directory")


def _measure_growth(bed: Bed) -> Section:
    figures = Figures()
    for count, runs in ((200, ARRAY_RUNS), (2000, GROWTH_RUNS)):
        words = (f"--array=0-{count - 1}", "--gres=gpu:1", "x.sh")
        sbatch_words = ["sbatch", *words]
        measured = interleave(
            {
                "csub": lambda words=words: time_csub(bed, words),  # type: ignore[misc]
                "sbatch": lambda argv=sbatch_words: bed.time_ms(argv),  # type: ignore[misc]
            },
            runs,
        )
        figures.add(
            f"{count} tasks, {count // 4} packs",
            measured["csub"],
            "ms",
            target=ARRAY_TARGET_MS if count == 200 else None,
            ratio=format_ratio(measured["csub"], measured["sbatch"], "sbatch"),
            command=f"csub {' '.join(words)}",
        )
    return figures.build_section("Large arrays in one call")


def time_csub(bed: Bed, words: Sequence[str]) -> float:
    """Submit with csub and make it forget the packs again; wall time in milliseconds."""
    before = set(bed.state.list_open())
    wall_ms = bed.time_ms([bed.csub, *words])
    _forget(bed, before)
    return wall_ms


def time_csub_in_process(bed: Bed, words: Sequence[str]) -> float:
    """The same without the interpreter's start and the imports."""
    before = set(bed.state.list_open())
    wall_ms = float(bed.run([sys.executable, "-c", _WARM, *words]).splitlines()[-1])
    _forget(bed, before)
    return wall_ms


def _forget(bed: Bed, before: set[str]) -> None:
    """Each run finds the same state: its packs no longer count as open."""
    for pack_id in set(bed.state.list_open()) - before:
        bed.state.forget_open(pack_id)


def _time_submitit(
    bed: Bed, python: str, count: int, imports: list[float], calls: list[float]
) -> float:
    wall_ms, output = run_timed(
        [python, str(SUBMITIT_JOB), str(bed.home / "submitit"), str(count)],
        environment=bed.environment,
        directory=bed.home,
    )
    import_ms, call_ms = (float(word) for word in output.split())
    imports.append(import_ms)
    calls.append(call_ms)
    return wall_ms


@contextlib.contextmanager
def installed_submitit() -> Iterator[tuple[str | None, str]]:
    """A virtual environment with submitit alone; its interpreter, None where there is none."""
    with tempfile.TemporaryDirectory(prefix="csb", dir="/var/tmp") as folder:
        python = str(Path(folder, "venv/bin/python"))
        steps = (
            [sys.executable, "-m", "venv", str(Path(folder, "venv"))],
            [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "submitit"],
        )
        for argv in steps:
            if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
                yield None, ""
                return
        show = "import importlib.metadata as m; print(m.version('submitit'))"
        yield (
            python,
            subprocess.run(
                [python, "-c", show], capture_output=True, text=True, check=True
            ).stdout.strip(),
        )
