"""The words of the grid's command line, and what they ask for; pure."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.calibration.design import Need
from slurm_colloc.calibration.measuring import CPU
from slurm_colloc.calibration.workloads import BY_NAME, FULL, TINY
from slurm_colloc.model.plan import Capacity

from .grid_design import Ask, Times, complete_usual
from .policies import parse_cores

_TINY_TIMES = Times(0.05, 0.2, 0.2)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read `4,8,12`; empty for none.

    Raises:
        ValueError: One is no number above 0.
    """
    numbers = tuple(int(item) for item in text.split(",") if item)
    if any(number < 1 for number in numbers):
        raise ValueError("they must be above 0")
    return tuple(sorted(set(numbers)))


def parse_bounds(text: str) -> tuple[float, ...]:
    """Read `1.5,2`.

    Raises:
        ValueError: One is no slowdown.
    """
    bounds = tuple(float(item) for item in text.split(","))
    if not all(1.0 <= bound < 1000.0 for bound in bounds):
        raise ValueError("a slowdown is at least 1")
    return tuple(dict.fromkeys(bounds))


def parse_arguments(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.grid",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gpu", default="0", help="UUID or index of NVML")
    add("--device", choices=("cuda", CPU), default="cuda")
    add("--cores", type=parse_cores, default="0-15", help="such as 0-15")
    add("--kind", choices=tuple(BY_NAME), default="small")
    add("--bounds", type=parse_bounds, default="1.5,2", help="on slowdowns")
    add("--most", type=int, help="jobs; usual for small 16, medium 8, large 4")
    add("--degrees", type=parse_numbers, help="of the grid, such as 4,8,12")
    add("--limits", type=parse_numbers, help="of the grid in percent, such as 16,25,50")
    add("--length", type=float, default=600.0, help="of a job alone in seconds, for planning")
    add("--settle", type=float, help="seconds before each window")
    add("--window", type=float, help="seconds, of a cell of the grid")
    add("--again", type=float, help="seconds, of a cell that is measured in turn with others")
    add("--alone-every", type=float, default=120.0, help="seconds between measurements alone")
    add("--reserve", type=float, default=0.3, help="part of the time for measuring in turn")
    add("--rounds", type=int, default=12, help="starts for measuring in turn, at most")
    add("--seconds", type=float, default=430.0, help="for all of it")
    add("--scale", choices=(FULL, TINY), default=FULL)
    add("--calibration", type=Path, help="a file; else the one shipped with csub")
    add("--csv", type=Path, required=True)
    add("--json", type=Path)
    return parser.parse_args(argv)


def build_ask(arguments: argparse.Namespace, capacity: Capacity, modes: tuple[str, ...]) -> Ask:
    """What is to be measured: what was given, and what is usual for the training and the scale."""
    _, degrees, limits = complete_usual(arguments.kind)
    usual = _TINY_TIMES if arguments.scale == TINY else Times()
    given = (arguments.settle, arguments.window, arguments.again)
    pairs = zip(given, dataclasses.astuple(usual), strict=True)
    workload = BY_NAME[arguments.kind]
    return Ask(
        kind=arguments.kind,
        need=Need(workload.cpus, workload.gpu_memory_mb),
        degrees=degrees if arguments.degrees is None else arguments.degrees,
        limits=limits if arguments.limits is None else arguments.limits,
        modes=modes,
        cpus=capacity.cpus_per_gpu or 1,
        gpu_memory_mb=capacity.gpu_memory_mb,
        times=Times(*(own if value is None else value for value, own in pairs)),
    )
