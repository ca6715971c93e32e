"""Copies of one training on one GPU, or on the CPU: alone, over a grid, and in turn."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from benchmarks.gpu.grid_design import (
    ALONE_SHARING,
    Ask,
    Sharing,
    SharingRow,
    choose_next,
    estimate_s,
    make_group,
)
from benchmarks.gpu.grid_table import Measured, read_cells
from benchmarks.gpu.grid_turns import Compared, Turns, build_turns, choose_turns, estimate_turns_s
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc_lab.calibration.cells import Group
from slurm_colloc_lab.calibration.gpu_bench import Bench
from slurm_colloc_lab.calibration.measured_packs import IDLE, read_number, read_rows

_ALONE_FIRST, _ALONE_LATER = 3, 2
_ALONE_EVERY_S = 120.0


class GridRunner:
    """Measures groups and keeps what it learns of how long they take.

    Args:
        bench: The GPU.
        path: The table that it writes.
        run: What its rows call this run.
        say: Is told, in words, how it goes.
        keep: Called after every group, to write down what there is.

    Attributes:
        done: The ways of sharing that were tried.
        rounds: How often all that is measured in turn was started.
        turns: How much of it; None where there was no time for any.
    """

    def __init__(
        self,
        bench: Bench,
        path: Path,
        run: str,
        *,
        say: Callable[[str], None],
        keep: Callable[[], None],
    ) -> None:
        self.done: set[Sharing] = {ALONE_SHARING}
        self.rounds = 0
        self.turns: Turns | None = None
        self._bench, self._path, self._run = bench, path, run
        self._say, self._keep = say, keep
        self._paces: list[float] = []
        self._hopeless: set[str] = set()
        self._names: Counter[str] = Counter()
        self._alone_at: float | None = None

    @property
    def pace(self) -> float:
        """How many times as long as is usual it takes to start and end processes."""
        return statistics.median(self._paces) if self._paces else 1.0

    def measure_alone(self, ask: Ask, until: float, every_s: float = 0.0) -> None:
        """Measure the training alone if that is due and there is time; the first time always.

        Args:
            ask: What is measured.
            until: Monotonic seconds.
            every_s: It is due so long after the last time.
        """
        cells = _ALONE_FIRST if self._alone_at is None else _ALONE_LATER
        group = make_group(ask, "alone", [ALONE_SHARING] * cells)
        if self._alone_at is not None:
            now = time.monotonic()
            is_due = now - self._alone_at >= every_s
            if not is_due or now + estimate_s(group, self.pace) > until:
                return
        self.run_group(group, until)
        self._alone_at = time.monotonic()

    def measure_grid(
        self,
        ask: Ask,
        grid: Sequence[SharingRow],
        chosen: Collection[Sharing],
        until: float,
    ) -> None:
        """The first pass: as many cells as there is time for."""
        while True:
            self.measure_alone(ask, until, _ALONE_EVERY_S)
            left = [row for row in grid if row[0].mode not in self._hopeless]
            row = choose_next(
                ask,
                left,
                self.done,
                chosen=chosen,
                seconds=until - time.monotonic(),
                pace=self.pace,
            )
            if not row:
                return
            limit = "" if row[0].limit is None else str(row[0].limit)
            tried, _ = self.run_group(make_group(ask, f"grid-{row[0].mode}{limit}", row), until)
            self.done.update(row[:tried])

    def measure_in_turn(
        self,
        ask: Ask,
        compared: Compared,
        until: float,
        most: int,
    ) -> None:
        """What csub chose and its rivals, in turn, as often as there is time.

        Args:
            ask: What is measured.
            compared: What is compared.
            until: Monotonic seconds.
            most: How often all is started, at most.
        """
        self.turns = choose_turns(ask, compared, until - time.monotonic(), self.pace)
        while self.turns is not None and self.rounds < most:
            groups = build_turns(ask, compared, self.turns, self.rounds)
            if estimate_turns_s(groups, self.pace) > until - time.monotonic():
                return
            self.rounds += 1
            if not sum(self.run_group(group, until)[1] for group in groups):
                return

    def run_group(self, group: Group, until: float) -> tuple[int, int]:
        """Measure a group under a name of its own.

        Returns:
            How many of its cells were tried, all where it cannot be started; and how many are
            measured.
        """
        is_first = not self._names
        self._names[group.name] += 1
        group = dataclasses.replace(group, name=f"{group.name}-{self._names[group.name]}")
        begun = time.monotonic()
        try:
            opened = self._bench.open(group)
        except CollocError as error:
            self._say(f"{group.name}: not measured: {error}")
            self._hopeless.add(group.mode)
            self._bench.close_group()
            return len(group.cells), 0
        for problem, times in Counter(opened.problems).items():
            self._say(f"{group.name}: left out: {problem} ({times} times)")
        tried = done = 0
        cells_s = 0.0
        for number, cell in enumerate(group.cells):
            before = time.monotonic()
            if tried and before + cell.estimate_s() > until:
                break
            tried += 1
            done += self._bench.run_cell(cell, number)
            cells_s += time.monotonic() - before
        self._bench.close_group()
        took_s = time.monotonic() - begun
        # The first start loads torch, too.
        if not is_first:
            self._paces.append((took_s - cells_s) / group.estimate_start_s())
        best = max((cell.rate_per_s for cell in self.read_cells(group.name)), default=0.0)
        self._say(
            f"{group.name}: {opened.workers} processes in {opened.start_s:.1f} s, {done} of "
            f"{len(group.cells)} cells, {took_s:.1f} s in all; at best {best:.5g} steps/s"
        )
        self._keep()
        return tried, done

    def read_cells(self, group: str = "") -> list[Measured]:
        """What this run, or one group of it, has written."""
        cells = read_cells(self._read_rows(), self._run)
        return [cell for cell in cells if group in ("", cell.group)]

    def read_idle_w(self) -> float | None:
        """Power of the GPU when nothing runs, in watts; None where it was not told."""
        rows = [row for row in self._read_rows() if row["run"] == self._run]
        told = (read_number(row, "power_w") for row in rows if row["label"] == IDLE)
        return next(told, None)

    def _read_rows(self) -> list[dict[str, str]]:
        try:
            return [dict(row) for row in read_rows([self._path])]
        except UsageProblem:
            # Only its header so far.
            return []
