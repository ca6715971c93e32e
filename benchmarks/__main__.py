"""Measure csub: `python -m benchmarks [--markdown FILE] [GROUP...]`, see docs/benchmarks.md.

Prints tables; nothing here passes or fails. Slurm is a private cluster of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.bed import Bed, running_bed
from benchmarks.chain import measure_chain
from benchmarks.dividing import measure_dividing
from benchmarks.executor import measure_executor
from benchmarks.hooks import measure_hooks
from benchmarks.instrument import measure_instrument
from benchmarks.joining import measure_joining
from benchmarks.layouts import measure_layouts
from benchmarks.leftovers import measure_leftovers
from benchmarks.loader import measure_loader
from benchmarks.measuring import (
    Section,
    describe_load,
    describe_machine,
    render_markdown,
    render_plain,
)
from benchmarks.own_jobs import measure_own_jobs
from benchmarks.planning import measure_planning
from benchmarks.planning_calls import measure_planning_calls
from benchmarks.planning_gpu_sets import measure_planning_gpu_sets
from benchmarks.questions import measure_questions
from benchmarks.queue import measure_queue
from benchmarks.rpcs import measure_rpcs
from benchmarks.runner import measure_runner
from benchmarks.set_runners import measure_set_runners
from benchmarks.stalls import measure_stalls
from benchmarks.startup import measure_startup
from benchmarks.submission import measure_submissions
from benchmarks.sums import measure_sums
from benchmarks.tables import measure_tables
from slurm_colloc.errors import SlurmUnreachable

GROUPS: dict[str, Callable[[Bed], Iterable[Section]]] = {
    "startup": lambda bed: [measure_startup(bed)],
    "submission": measure_submissions,
    "executor": lambda bed: [measure_executor(bed)],
    "joining": measure_joining,
    "tables": lambda bed: [measure_tables(bed)],
    "queue": lambda bed: [measure_queue(bed)],
    "questions": lambda bed: [measure_questions(bed)],
    "runner": lambda bed: [measure_runner(bed)],
    "rpcs": lambda bed: [measure_rpcs(bed)],
}


def measure(chosen: list[str]) -> Iterator[Section]:
    """Yield one table after the other."""
    if "hooks" in chosen:
        yield measure_hooks()
        yield from measure_own_jobs()
    if "dividing" in chosen:
        yield measure_dividing()
    if "leftovers" in chosen:
        yield measure_leftovers()
    if "instrument" in chosen:
        yield measure_instrument()
    if "planning" in chosen:
        yield measure_planning()
        yield measure_planning_calls()
        yield measure_planning_gpu_sets()
    yield from measure_small(chosen)
    with_slurm = [name for name in GROUPS if name in chosen]
    if not with_slurm:
        return
    with contextlib.ExitStack() as stack:
        try:
            bed = stack.enter_context(running_bed())
        except SlurmUnreachable as problem:
            print(f"bench: left out: {', '.join(with_slurm)}: {problem}", file=sys.stderr)
            return
        for name in with_slurm:
            yield from GROUPS[name](bed)


def measure_small(chosen: list[str]) -> Iterator[Section]:
    """Yield the tables that need no cluster of all groups, or one of their own."""
    if "set_runners" in chosen:
        yield measure_set_runners()
    if "stalls" in chosen:
        yield measure_stalls()
    if "sums" in chosen:
        yield measure_sums()
    if "chain" in chosen:
        yield measure_chain()
    if "layouts" in chosen:
        yield measure_layouts()
    if "loader" in chosen:
        yield measure_loader()


def main() -> None:
    """Measure, print, and write the Markdown if asked."""
    names = [
        "hooks",
        "dividing",
        "leftovers",
        "instrument",
        "planning",
        "layouts",
        "set_runners",
        "stalls",
        "sums",
        "loader",
        "chain",
        *GROUPS,
    ]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(names)}")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there too")
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(names)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    machine = f"{describe_machine()}, {describe_load()} at the beginning"
    print(f"{machine}\n", flush=True)
    begun = time.monotonic()
    parts = [f"{time.strftime('%Y-%m-%d')}: {machine}.\n"]
    for measured in measure(arguments.groups or names):
        load = f"At the end of this: {describe_load()}."
        section = dataclasses.replace(measured, notes=(*measured.notes, load))
        print(render_plain(section), flush=True)
        parts.append(render_markdown(section))
    print(f"{time.monotonic() - begun:.0f} s in all, {describe_load()} at the end")
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
