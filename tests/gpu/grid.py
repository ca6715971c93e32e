"""Is what csub chooses for many equal trainings the best that their GPU can do? On one real GPU.

As a program: `python -m tests.gpu.grid --gpu 0 --cores 0-15 --kind small --bounds 1.5,2
--seconds 430 --csv OUT.csv --json OUT.json`. Several may run at once, a GPU and cores each.

The training is measured alone, which is what csub would know of it after a first run, and csub's
planner is asked, with the calibration that comes with csub, how many of so many jobs of equal
length it puts into one pack, in which mode and under which limits. Then the grid is measured: mode
by limit by degree, as far as there is time. At last what csub chose and the best three others that
keep the bound are measured in turn, several times: of many cells of seconds, the best was partly
lucky.

Throughput is in steps per second of all copies, so comparing two ways of sharing needs no rate
alone. Slowdowns do: all are against the fastest cell of the training alone in this run, as in
csub's own calibration. A host can only slow a training down, and a rate taken beside each cell
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
from typing import Any

from slurm_colloc.calibration.bench import Bench
from slurm_colloc.calibration.design import MPS, TIMESLICE
from slurm_colloc.calibration.measuring import CPU, check_table
from slurm_colloc.errors import CollocError, NodeError
from slurm_colloc.host.nvml import probe_gpus
from slurm_colloc.model.plan import Capacity, SharingMode
from slurm_colloc.store.calibrations import (
    SHIPPED,
    calibration_path,
    read_calibration,
    shipped_folder,
)

from .grid_arguments import build_ask, parse_arguments
from .grid_choice import Choice, Known, build_alone
from .grid_design import (
    Sharing,
    SharingRow,
    build_grid,
    complete_usual,
    estimate_s,
    make_group,
)
from .grid_report import describe_run, render_run
from .grid_running import GridRunner
from .grid_table import choose_rivals, compute_results, list_alone_rates
from .policies import INVENTED, say

_NVML_S = 60.0
# Ending the last group and closing files.
_RESERVE_S = 4.0


class Grid:
    """One call: a training on a GPU.

    Args:
        arguments: The command line.
        started: When the program began, in monotonic seconds.

    Raises:
        CollocError: There is no such GPU, or no calibration, or the table is another one's.
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
        path = arguments.calibration or calibration_path(shipped_folder(), SHIPPED)
        self._calibration = read_calibration(path)
        self._driver = ""
        self._uuid, self._model, self._capacity = self._find_gpu()
        check_table(arguments.csv, self._model)
        modes = (TIMESLICE,) if self._uuid is None else (MPS, TIMESLICE)
        self._ask = build_ask(arguments, self._capacity, modes)

    def _find_gpu(self) -> tuple[str | None, str, Capacity]:
        cores = len(self._arguments.cores)
        if self._arguments.device == CPU:
            return None, CPU, Capacity(cpus_per_gpu=max(16, cores), gpu_memory_mb=80_000)
        answer = probe_gpus(_NVML_S)
        self._driver = answer.driver_version or ""
        for known in answer.gpus:
            if known.uuid and self._arguments.gpu in (known.uuid, str(known.nvml_index)):
                capacity = Capacity(cpus_per_gpu=cores, gpu_memory_mb=known.gpu_memory_total_mb)
                return known.uuid, known.name or "", capacity
        why = answer.problem or "NVML does not show it"
        raise NodeError(f"there is no GPU {self._arguments.gpu}: {why}")

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
            first_until = self._until - arguments.reserve * arguments.seconds
            runner.measure_grid(
                self._ask, self._grid, self._get_chosen(), first_until, arguments.alone_every
            )
            self._measure_in_turn(runner)
            runner.measure_alone(self._ask, self._until)
        self._write()
        if not any(cell.sharing.degree > 1 for cell in runner.read_cells()):
            raise NodeError("nothing of the grid could be measured: " + self._said[-1])
        say(render_run(runner.read_cells(), self._choices, self._grid, runner.done))

    def _plan(self, runner: GridRunner) -> None:
        """Learn from the training alone, and ask csub's planner."""
        arguments = self._arguments
        rows = [row for cell in runner.read_cells() for row in cell.rows]
        if not rows:
            raise NodeError(f"nothing could be measured: {self._said[-1]}")
        alone = build_alone(rows, runner.read_idle_w())
        modes: tuple[SharingMode, ...] = (SharingMode.MPS, SharingMode.TIMESLICE)
        model = self._model
        if self._uuid is None:
            self._say("without a GPU, loads are invented and MPS is left out")
            alone = dataclasses.replace(INVENTED, steps_per_s=alone.steps_per_s)
            modes, model = (SharingMode.TIMESLICE,), self._calibration.gpu_model
        if alone.load is None:
            raise NodeError("what it takes of the GPU could not be read, so nothing can be planned")
        if alone.gpu_memory_mb is not None:
            need = dataclasses.replace(self._ask.need, gpu_memory_mb=round(alone.gpu_memory_mb))
            self._ask = dataclasses.replace(self._ask, need=need)
        known = self._known = Known(
            arguments.kind, alone, self._calibration, self._capacity, model, arguments.length, modes
        )
        most = arguments.most or complete_usual(arguments.kind)[0]
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
        cells = [cell for cell in runner.read_cells() if not cell.is_again]
        results = compute_results(cells, max(list_alone_rates(cells)))
        compared = [(each.sharing, choose_rivals(results, each)) for each in self._choices]
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
            "capacity": vars(self._capacity),
            "calibration": self._calibration.gpu_model,
            "pace": runner.pace,
            "turns": vars(runner.turns) | {"starts": runner.rounds} if runner.turns else None,
            **describe_run(
                runner.read_cells(), self._choices, self._grid, runner.done, self._known
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
    arguments = parse_arguments(argv, __doc__)
    signal.signal(signal.SIGTERM, _end)
    try:
        Grid(arguments, started).measure()
    except CollocError as error:
        say(str(error))
        return 1
    return 0


def _end(number: int, _: Any) -> None:
    # Once is enough: what follows is the way out.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
