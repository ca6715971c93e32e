"""Running one training for a given time, and counting what it did in a window of that time."""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc_lab.calibration.workloads import BY_NAME

_UNIT_S = 0.02
_UNIT_STEPS_MAX = 10_000
_FIRST_STEPS = 2
_WARM_UP_MAX_S = 2.5
_MIB = 1 << 20
# The clock of another process is asked by its pid (CPUCLOCK_SCHED of the kernel's posix-timers.h).
_CLOCK_OF_PROCESS = 2

Point = tuple[float, float, float]
"""Monotonic time in seconds, steps so far, CPU seconds so far."""


@dataclass(frozen=True)
class Ran:
    """What a training did in a window.

    Args:
        steps: Steps, by straight lines between the moments at which they were counted.
        cpu_s: CPU seconds of all its threads and processes, likewise.
        units: At how many moments within the window they were counted.
        window_s: How long the window was: shorter than asked for where the worker was late.
    """

    steps: float
    cpu_s: float
    units: int
    window_s: float


def measure(points: Sequence[Point], begin: float, end: float) -> Ran:
    """What was done between two moments; pure.

    Args:
        points: Rising in time; the first no later than `begin`, the last no earlier than `end`.
        begin: Monotonic seconds.
        end: Monotonic seconds, after `begin`.

    Raises:
        ValueError: The points do not reach over the window.
    """
    first, last = _read_at(points, begin), _read_at(points, end)
    units = sum(begin <= moment <= end for moment, _, _ in points)
    return Ran(last[0] - first[0], last[1] - first[1], units, end - begin)


def _read_at(points: Sequence[Point], moment: float) -> tuple[float, float]:
    times = [point[0] for point in points]
    if not times or not times[0] <= moment <= times[-1]:
        raise ValueError("the training was not counted over the whole window")
    index = bisect_left(times, moment)
    if times[index] == moment:
        return points[index][1:]
    before, after = points[index - 1], points[index]
    part = (moment - before[0]) / (after[0] - before[0])
    return (
        before[1] + part * (after[1] - before[1]),
        before[2] + part * (after[2] - before[2]),
    )


def choose_unit(step_s: float) -> int:
    """After how many steps to wait for the GPU: about 20 ms, and one step at least; pure."""
    if step_s <= 0:
        return 1
    return max(1, min(_UNIT_STEPS_MAX, round(_UNIT_S / step_s)))


class Stepper:
    """A training in this process.

    Args:
        name: Its workload.
        device: `cuda` or `cpu`.
        scale: `full` or `tiny`.
        cores: Where it may run at first.
    """

    def __init__(self, name: str, device: str, scale: str, cores: Sequence[int]) -> None:
        if cores:
            os.sched_setaffinity(0, cores)
        import torch

        torch.set_num_threads(1)
        self._torch: Any = torch
        self._on_gpu = device != "cpu"
        self._step_s = 0.0
        self._training = BY_NAME[name].build(device, scale)

    def close(self) -> None:
        """End what the training has started."""
        with contextlib.suppress(Exception):
            self._training.close()

    def warm_up(self, seconds: float, steps: int) -> float | None:
        """Step until nothing is done for the first time any more, then give memory back.

        Args:
            seconds: For so long at least.
            steps: So many at least, but not for more than 2.5 s: with others under a tight limit
                steps are slow.

        Returns:
            The most gpu_memory that torch held, in MiB, without what the first steps tried; None
            on a CPU.
        """
        for _ in range(_FIRST_STEPS):
            self._training.step()
        self._synchronize()
        cuda = self._torch.cuda
        if self._on_gpu:
            cuda.empty_cache()
            cuda.reset_peak_memory_stats()
        begin = now = time.monotonic()
        done = 0
        while now < begin + seconds or (done < steps and now < begin + _WARM_UP_MAX_S):
            self._training.step()
            done += 1
            self._synchronize()
            now = time.monotonic()
        if done:
            self._step_s = (now - begin) / done
        if not self._on_gpu:
            return None
        peak_mb = float(cuda.max_memory_reserved()) / _MIB
        cuda.empty_cache()
        return peak_mb

    def run(self, begin: float, mark: float, end: float, cores: Sequence[int]) -> Ran:
        """Step from `begin` on until `end`, and tell what was done from `mark` to `end`.

        The GPU is waited for one unit of steps behind what has been launched, so that it does not
        run dry at the end of each.

        Args:
            begin: Monotonic seconds; likewise the others.
            mark: When the window begins.
            end: When it ends.
            cores: Where all threads and processes of the training have to run.
        """
        pids = (os.getpid(), *self._training.helpers)
        pin(pids, cores)
        time.sleep(max(0.0, begin - time.monotonic()))
        points = [self._count(0)]
        launched, before = 0, None
        unit = choose_unit(self._step_s)
        while points[-1][0] < end:
            for _ in range(unit):
                self._training.step()
            launched += unit
            if self._on_gpu:
                event = self._torch.cuda.Event()
                event.record()
                before, noted = (event, launched), before
                if noted is not None:
                    noted[0].synchronize()
                    points.append(self._count(noted[1]))
            else:
                points.append(self._count(launched))
            if points[-1][1]:
                # Over all of the run: what is counted is behind what was launched, so a single unit
                # says little of the next one.
                step_s = (points[-1][0] - points[0][0]) / points[-1][1]
                unit = min(2 * unit, choose_unit(step_s))
        self._synchronize()
        return measure(points, max(mark, points[0][0]), end)

    def _count(self, steps: int) -> Point:
        cpu_s = time.process_time()
        for pid in self._training.helpers:
            with contextlib.suppress(OSError):
                cpu_s += time.clock_gettime((~pid << 3) | _CLOCK_OF_PROCESS)
        return time.monotonic(), steps, cpu_s

    def _synchronize(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()


def pin(pids: Sequence[int], cores: Sequence[int]) -> None:
    """Let all threads of some processes run on some cores only; later threads inherit it.

    Args:
        pids: Processes of this user; one that has ended is passed over.
        cores: Empty to leave all as it is.
    """
    if not cores:
        return
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), cores)
