"""Measuring side by side, and tables of what was measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc_lab.sandbox.installation import find_installation

_ROOT = Path(__file__).resolve().parents[1]

HEADER = ("what", "target", "median", "quartiles", "runs", "ratio", "command")


@dataclass(frozen=True)
class Series:
    """Values of one thing, in the order in which they were measured.

    Attributes:
        values: At least one value.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between which the middle half of the values lies."""
        if len(self.values) < 3:
            return min(self.values), max(self.values)
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Section:
    """One table.

    Attributes:
        title: What it is about.
        header: Names of its columns.
        rows: Its cells.
        notes: Sentences below it.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass
class Figures:
    """Rows of one table with the columns of HEADER, collected one after the other."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(
        self,
        what: str,
        series: Series,
        unit: str,
        *,
        target: float | None = None,
        ratio: str = "",
        command: str = "",
    ) -> None:
        """Add a row.

        Args:
            what: What was measured.
            series: The values, in `unit`.
            unit: Unit of the values and of the target.
            target: The median should be at most this; None where nothing was promised.
            ratio: What it was compared with, and the outcome.
            command: What was run.
        """
        cells = format_series(series, unit, target=target)
        self.rows.append((what, *cells, ratio, f"`{command}`" if command else ""))

    def build_section(self, title: str, notes: Iterable[str] = ()) -> Section:
        """The finished table."""
        return Section(title, HEADER, tuple(self.rows), tuple(notes))


def format_value(value: float) -> str:
    """Three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def format_series(series: Series, unit: str, *, target: float | None = None) -> tuple[str, ...]:
    """A series as cells: target, median, quartiles, runs.

    Args:
        series: The values, in `unit`.
        unit: Unit of the values and of the target.
        target: The median should be at most this; None where nothing was promised.
    """
    verdict = ""
    if target is not None:
        met = "met" if series.median <= target else "MISSED"
        verdict = f"{target:g} {unit}: {met}"
    low, high = series.quartiles
    return (
        verdict,
        f"{format_value(series.median)} {unit}",
        f"{format_value(low)}-{format_value(high)}",
        str(len(series.values)),
    )


def interleave(
    actions: Mapping[str, Callable[[], float]], runs: int, *, warm_ups: int = 1
) -> dict[str, Series]:
    """Run every action once per round, in turn, so that a change of load meets all of them.

    Args:
        actions: Each returns one value.
        runs: Number of rounds that count.
        warm_ups: Rounds before them, which fill the file cache and compile Python's modules.
    """
    values: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warm_ups + runs):
        for name, action in actions.items():
            value = action()
            if number >= warm_ups:
                values[name].append(value)
    return {name: Series(tuple(measured)) for name, measured in values.items()}


def compute_ratio(of: Series, to: Series) -> float:
    """Median over the rounds of one series' value divided by the other's of the same round."""
    return statistics.median(a / b for a, b in zip(of.values, to.values, strict=True))


def format_ratio(of: Series, to: Series, name: str) -> str:
    """The ratio as a cell: `0.84 x submitit`."""
    return f"{compute_ratio(of, to):.2f} x {name}"


def run_timed(
    argv: Sequence[str], *, environment: Mapping[str, str], directory: Path
) -> tuple[float, str]:
    """Run a program to its end.

    Returns:
        Wall time in milliseconds, and its standard output.

    Raises:
        RuntimeError: It failed.
    """
    started = time.perf_counter()
    ended = subprocess.run(
        list(argv),
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_ms = (time.perf_counter() - started) * 1000
    if ended.returncode != 0:
        raise RuntimeError(f"{list(argv)}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return wall_ms, ended.stdout


def run_in_new_processes(module: str, words: Sequence[str], runs: int) -> list[dict[str, float]]:
    """Run a module of this folder several times, each in a new process.

    Args:
        module: Its name, `benchmarks.planning`.
        words: Its arguments.
        runs: How many times.

    Returns:
        What each has printed, a JSON object of numbers.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    program = [sys.executable, "-m", module, *words]
    found = []
    for _ in range(runs):
        ended = subprocess.run(program, cwd=_ROOT, capture_output=True, text=True, check=True)
        found.append(dict(json.loads(ended.stdout)))
    return found


def build_environment(home: Path, python_folder: Path) -> dict[str, str]:
    """A small environment, the same on every machine: nothing of the caller's slows Python."""
    return {
        "PATH": f"{python_folder}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": str(home / "state"),
    }


def describe_machine() -> str:
    """Cores, Python and Slurm, in one sentence."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    try:
        slurm = find_installation(os.environ).version_text
    except SlurmUnreachable:
        slurm = "no Slurm"
    return (
        f"{len(os.sched_getaffinity(0))} cores ({model}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, {slurm}"
    )


def describe_load() -> str:
    """The load average of the last minute."""
    return f"load average {os.getloadavg()[0]:.2f}"


def render_plain(section: Section) -> str:
    """The table for a terminal."""
    table = [section.header, *(tuple(c.replace("`", "") for c in row) for row in section.rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(section.header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join([section.title, *(f"  {line}" for line in [*lines, *section.notes])]) + "\n"


def render_markdown(section: Section) -> str:
    """The table in Markdown."""
    rows = [section.header, tuple("---" for _ in section.header), *section.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    notes = [f"- {note}" for note in section.notes]
    return "\n".join([f"### {section.title}", "", *lines, *([""] if notes else []), *notes]) + "\n"
