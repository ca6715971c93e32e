"""A calibration's measurements on this machine, made in order until the time is over."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError, NodeError, UsageProblem
from slurm_colloc_lab.calibration.calibrated_gpu import CalibrationPlace, list_needs
from slurm_colloc_lab.calibration.cells import COLUMNS, Group, shorten
from slurm_colloc_lab.calibration.choose_cells import choose_design
from slurm_colloc_lab.calibration.gpu_bench import Bench
from slurm_colloc_lab.calibration.measured_packs import read_rows
from slurm_colloc_lab.calibration.workloads import FULL, TINY

_TINY_TIMES_S = (0.05, 0.2)
# A try does with every second training: each loads torch.
_TINY_EACH = 2
# Ending a group and closing files.
_RESERVE_S = 6.0
# A start is worth while only if some cells can follow.
_CELLS_WORTH_S = 10.0

Say = Callable[[str], None]


def measure(
    place: CalibrationPlace,
    out: Path,
    *,
    minutes: float,
    say: Say,
    scale: str = FULL,
    seed: int = 1,
) -> int:
    """Measure the design in a time, and write rows.

    Args:
        place: Where.
        out: CSV file that rows are appended to.
        minutes: How long it may take.
        say: Is told how it goes.
        scale: `full`, or `tiny` for a try with half of the trainings.
        seed: For drawing packs.

    Returns:
        How many cells were measured.

    Raises:
        NodeError: Nothing could be measured, or the GPU tells nothing of what it does.
    """
    started = time.monotonic()
    needs = list_needs()
    if scale == TINY:
        needs = dict(list(needs.items())[::_TINY_EACH])
    groups = choose_design(needs, place.room, seed=seed, minutes=minutes)
    if scale == TINY:
        groups = shorten(groups, *_TINY_TIMES_S)
    gpu = place.gpu
    # Two on the GPUs of one machine may begin in the same second.
    run = f"{socket.gethostname()}-{time.time():.0f}-{os.getpid()}"
    with Bench(
        gpu.uuid if gpu is not None else None,
        place.cores,
        out,
        run=run,
        gpu_model=place.gpu_model,
        driver=place.driver,
        scale=scale,
        say=say,
    ) as bench:
        if gpu is not None and bench.readings_problem:
            raise NodeError(
                f"{gpu.name or gpu.uuid} does not tell what it does: {bench.readings_problem}",
                hint="SM, DRAM and engine activity are told from Hopper on (H100, H200)",
            )
        bench.measure_idle()
        return measure_groups(bench, groups, started + 60 * minutes, say)


def measure_groups(bench: Bench, groups: Sequence[Group], deadline: float, say: Say) -> int:
    """Measure groups in order until a deadline, and say for each how it went.

    Args:
        bench: Where.
        groups: What.
        deadline: Monotonic seconds; a cell that would end later is not begun.
        say: Is told how it goes.

    Returns:
        How many cells were measured.

    Raises:
        NodeError: No cell could be measured.
    """
    total = 0
    problems: list[str] = []
    hopeless: set[str] = set()
    for group in groups:
        if group.mode in hopeless:
            continue
        if time.monotonic() + group.estimate_start_s() + _CELLS_WORTH_S > deadline:
            say(f"{group.name}: not begun, the time is over")
            problems.append("the time is too short")
            continue
        begun = time.monotonic()
        try:
            opened = bench.open(group)
        except CollocError as error:
            say(f"{group.name}: not measured: {error}")
            problems.append(error.message)
            hopeless.add(group.mode)
            bench.close_group()
            continue
        for problem, count in Counter(opened.problems).items():
            say(f"{group.name}: left out: {problem}{f' ({count} times)' if count > 1 else ''}")
        problems += opened.problems
        if not opened.workers:
            hopeless.add(group.mode)
        done = missing = 0
        for number, cell in enumerate(group.cells):
            if time.monotonic() + cell.estimate_s() + _RESERVE_S > deadline:
                break
            is_measured = bench.run_cell(cell, number)
            done += is_measured
            missing += not is_measured
        bench.close_group()
        total += done
        failed = f", {missing} failed" if missing else ""
        say(
            f"{group.name}: {opened.workers} trainings in {opened.start_s:.1f} s, "
            f"{done} of {len(group.cells)} cells{failed}, {time.monotonic() - begun:.1f} s in all"
        )
    if not total:
        why = problems[0] if problems else "there is nothing to measure"
        raise NodeError(f"nothing could be measured: {why}")
    return total


def check_table(path: Path, gpu_model: str) -> None:
    """See that rows of this GPU can be appended to a table, before hours of a GPU go into them.

    Args:
        path: The table; it may be missing, or empty.
        gpu_model: NVML's name of the GPU.

    Raises:
        UsageProblem: It cannot be written, has other columns, or rows of another GPU model.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            is_new = file.tell() == 0
    except OSError as error:
        raise UsageProblem(f"cannot write {path}: {error.strerror or error}") from error
    if is_new:
        return
    first = read_rows([path])[0]
    if tuple(first) != COLUMNS:
        raise UsageProblem(f"{path}: its columns are not those that are written now")
    if first["gpu_model"] != gpu_model:
        raise UsageProblem(f"{path} holds rows of {first['gpu_model']!a}, this is {gpu_model}")
