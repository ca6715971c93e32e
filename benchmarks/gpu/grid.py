"""Is what csub chooses for many equal trainings the best that their GPU can do? On one real GPU.

As a program: `python -m benchmarks.gpu.grid --gpu 0 --cores 0-15 --kind small --bounds 1.5,2
--seconds 430 --csv OUT.csv --json OUT.json`. Several may run at once, a GPU and cores each.

The training is measured alone, which is what csub would know of it after a first run, and csub's
planner is asked, with the calibration that comes with csub, how many of so many jobs of equal
length it puts into one pack, in which mode and under which limits. Then the grid is measured: mode
by limit by degree, as far as there is time. At last what csub chose and the best three others that
keep the bound are measured in turn, several times: of many cells of seconds, the best was partly
lucky.

Throughput is in steps per second of all copies, so comparing two ways of sharing needs no rate
alone. Slowdowns do: all are against the fastest cell of the training alone in this run, as in
csub's own calibration. A host can only slow a training down, and a rate taken next to each cell
would let one way keep the bound and an equal one not, by what the host did meanwhile. It is
measured now and then, and all its rates are in the JSON, so that a host that drifts is seen.

Rows are those of `csub calibrate`; groups called `again` are those that were measured in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.grid_choice import Choice, Known, build_alone
from benchmarks.gpu.grid_design import (
    OTHER,
    USUAL,
    Ask,
    Sharing,
    SharingRow,
    Times,
    build_grid,
    estimate_s,
    make_group,
)
from benchmarks.gpu.grid_report import describe_run, render_run
from benchmarks.gpu.grid_running import GridRunner
from benchmarks.gpu.grid_table import compute_outcome
from benchmarks.gpu.mix_readings import find_gpu
from benchmarks.gpu.policies import INVENTED, end_by_signal, parse_cores, say
from slurm_colloc.errors import CollocError, NodeError
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.store.calibrations import (
    SHIPPED,
    calibration_path,
    read_calibration,
    shipped_folder,
)
from slurm_colloc_lab.calibration.calibrated_gpu import CPU
from slurm_colloc_lab.calibration.cells import MPS, TIMESLICE
from slurm_colloc_lab.calibration.gpu_bench import Bench
from slurm_colloc_lab.calibration.measure_cells import check_table
from slurm_colloc_lab.calibration.workloads import BY_NAME, FULL, TINY, Room, WorkloadNeed

# Ending the last group and closing files.
_RESERVE_S = 4.0
# Of all the time, for measuring in turn.
_IN_TURN = 0.3
_TINY_TIMES = Times(0.05, 0.2, 0.2)


def parse_degrees(text: str) -> tuple[int, ...]:
    """Read `4,8,12`.

    Raises:
        ValueError: One is not a number above 0.
    """
    degrees = {int(item) for item in text.split(",")}
    if min(degrees) < 1:
        raise ValueError("they must be above 0")
    return tuple(sorted(degrees))


def parse_bounds(text: str) -> tuple[float, ...]:
    """Read `1.5,2`.

    Raises:
        ValueError: One is no slowdown.
    """
    bounds = tuple(float(item) for item in text.split(","))
    if not all(1.0 <= bound < 1000.0 for bound in bounds):
        raise ValueError("a slowdown is at least 1")
    return tuple(dict.fromkeys(bounds))


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.grid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gpu", default="0", help="UUID or index of NVML")
    add("--device", choices=("cuda", CPU), default="cuda")
    add("--cores", type=parse_cores, default="0-15", help="such as 0-15")
    add("--kind", choices=tuple(BY_NAME), default="small")
    add("--bounds", type=parse_bounds, default="1.5,2", help="on slowdowns")
    add("--most", type=int, help="jobs; usual for small 16, medium 8, large 4")
    add("--degrees", type=parse_degrees, help="of the grid, such as 4,8,12")
    add("--rounds", type=int, default=12, help="starts for measuring in turn, at most")
    add("--seconds", type=float, default=430.0, help="for all of it")
    add("--scale", choices=(FULL, TINY), default=FULL)
    add("--csv", type=Path, required=True)
    add("--json", type=Path)
    return parser.parse_args(argv)


class Grid:
    """One call: a training on a GPU.

    Args:
        arguments: The command line.
        started: When the program began, in monotonic seconds.

    Raises:
        CollocError: There is no such GPU, or the table is another one's.
    """

    def __init__(self, arguments: argparse.Namespace, started: float) -> None:
        self._arguments = arguments
        self._until = started + arguments.seconds - _RESERVE_S
        self._run = f"{socket.gethostname()}-{time.time():.0f}-{os.getpid()}"
        self._said: list[str] = []
        self._known: Known | None = None
        self._choices: list[Choice] = []
        self._grid: tuple[SharingRow, ...] = ()
        self._runner: GridRunner | None = None
        self._calibration = read_calibration(calibration_path(shipped_folder(), SHIPPED))
        gpu = find_gpu(arguments)
        self._uuid, self._capacity = gpu.uuid, gpu.capacity
        self._model, self._driver = gpu.model, gpu.driver or ""
        check_table(arguments.csv, self._model)
        self._usual = USUAL.get(arguments.kind, OTHER)
        self._ask = self._build_ask()

    def _build_ask(self) -> Ask:
        arguments, capacity = self._arguments, self._capacity
        workload = BY_NAME[arguments.kind]
        modes = (TIMESLICE,) if self._uuid is None else (MPS, TIMESLICE)
        return Ask(
            arguments.kind,
            WorkloadNeed(workload.cpus, workload.gpu_memory_mb),
            arguments.degrees or self._usual.degrees,
            self._usual.limits,
            Room(capacity.cpus_per_gpu or 1, capacity.gpu_memory_mb, modes),
            _TINY_TIMES if arguments.scale == TINY else Times(),
        )

    def measure(self) -> None:
        """Measure as much as there is time for, and say what it comes to.

        Raises:
            NodeError: Nothing could be measured.
        """
        arguments = self._arguments
        with Bench(
            self._uuid,
            arguments.cores,
            arguments.csv,
            run=self._run,
            gpu_model=self._model,
            driver=self._driver,
            scale=arguments.scale,
            say=self._say,
        ) as bench:
            if self._uuid is not None and bench.readings_problem:
                raise NodeError(f"the GPU does not tell what it does: {bench.readings_problem}")
            runner = self._runner = GridRunner(
                bench, arguments.csv, self._run, say=self._say, keep=self._write
            )
            bench.measure_idle()
            runner.measure_alone(self._ask, self._until)
            self._plan(runner)
            first_until = self._until - _IN_TURN * arguments.seconds
            runner.measure_grid(self._ask, self._grid, self._get_chosen(), first_until)
            self._measure_in_turn(runner)
            runner.measure_alone(self._ask, self._until)
        self._write()
        outcome = compute_outcome(runner.read_cells(), self._choices)
        if not any(sharing.degree > 1 for sharing in {*outcome.first, *outcome.again}):
            raise NodeError("nothing of the grid could be measured: " + self._said[-1])
        say(render_run(outcome, self._grid, runner.done))

    def _plan(self, runner: GridRunner) -> None:
        """Learn from the training alone, and ask csub's planner."""
        arguments = self._arguments
        rows = [row for cell in runner.read_cells() for row in cell.rows]
        if not rows:
            raise NodeError(f"nothing could be measured: {self._said[-1]}")
        alone = build_alone(rows, runner.read_idle_w())
        model = self._model
        if self._uuid is None:
            self._say("without a GPU, loads are invented and MPS is left out")
            alone = dataclasses.replace(INVENTED, steps_per_s=alone.steps_per_s)
            model = self._calibration.gpu_model
        if alone.load is None:
            raise NodeError("what it takes of the GPU could not be read, so nothing can be planned")
        if alone.gpu_memory_mb is not None:
            need = dataclasses.replace(self._ask.need, gpu_memory_mb=round(alone.gpu_memory_mb))
            self._ask = dataclasses.replace(self._ask, need=need)
        modes = tuple(SharingMode(mode) for mode in self._ask.room.modes)
        known = self._known = Known(
            arguments.kind, alone, self._calibration, self._capacity, model, modes
        )
        most = arguments.most or self._usual.most
        for bound in arguments.bounds:
            choice = known.choose(most, bound)
            self._choices.append(choice)
            self._say(
                f"bound {bound:g}: of {most} csub chooses {choice.sharing}, predicted "
                f"{choice.multiple:.2f} times at slowdown {choice.slowdown:.2f}"
            )
        self._grid = build_grid(self._ask, self._get_chosen())
        cells = sum(len(row) for row in self._grid)
        whole_s = sum(estimate_s(make_group(self._ask, "", row)) for row in self._grid)
        self._say(f"the whole grid: {cells} cells, about {whole_s:.0f} s")

    def _get_chosen(self) -> set[Sharing]:
        return {choice.sharing for choice in self._choices}

    def _measure_in_turn(self, runner: GridRunner) -> None:
        verdicts = compute_outcome(runner.read_cells(), self._choices).verdicts
        compared = [(verdict.choice.sharing, verdict.rivals) for verdict in verdicts]
        runner.measure_in_turn(self._ask, compared, self._until, self._arguments.rounds)
        if runner.turns is None:
            self._say("nothing was measured in turn: the time is over")
        else:
            self._say(
                f"in turn: what csub chose and the best {runner.turns.rivals} others, "
                f"{runner.rounds} starts, each {runner.turns.cycles} times after a start"
            )

    def _write(self) -> None:
        path, runner = self._arguments.json, self._runner
        if path is None or runner is None:
            return
        results: dict[str, Any] = {
            "run": self._run,
            "arguments": {key: str(value) for key, value in vars(self._arguments).items()},
            "gpu": {"uuid": self._uuid, "model": self._model, "driver": self._driver},
            "capacity": dataclasses.asdict(self._capacity),
            "calibration": self._calibration.gpu_model,
            "pace": runner.pace,
            "turns": runner.turns._asdict() | {"starts": runner.rounds} if runner.turns else None,
            **describe_run(
                compute_outcome(runner.read_cells(), self._choices),
                self._grid,
                runner.done,
                self._known,
            ),
            "said": self._said,
        }
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        new.replace(path)

    def _say(self, text: str) -> None:
        self._said.append(text)
        say(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a grid.

    Returns:
        0, or 1 where nothing could be measured.
    """
    started = time.monotonic()
    arguments = parse_arguments(argv)
    signal.signal(signal.SIGTERM, end_by_signal)
    try:
        Grid(arguments, started).measure()
    except CollocError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
