"""Trainings submitted alone and as many as csub plans to put into one pack, and what they did."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode
from .throughput import (
    Series,
    choose_fullest,
    choose_window,
    compute_lost_s,
    compute_rates,
    compute_wall_s,
    parse_series,
)
from .trainings import read_printed
from .watched import leave_simulated_gpu, use_simulated_gpu

LOADER = "loader"
CORES = {LOADER: 3}
# About what one alone does in a second; hosts differ by a third, so each machine is looked at.
IMAGES_PER_S: dict[str, float] = {
    "small": 17000,
    "medium": 11000,
    "large": 900,
    "hog": 270,
    LOADER: 4800,
}
SIMULATED_PER_S = {LOADER: 400}
_LOOK_S = 4.0
# As many times the batch in one process as h200.md took for the limit.
FUSED = {"small": 12, "medium": 6, "large": 4}
FUSED_PER_S = {"small": 155_000, "medium": 33_000, "large": 1350}
LOCK = threading.Lock()
_PATIENCE_S = 1500.0


@dataclass(frozen=True)
class Batch:
    """Trainings that are alike.

    Args:
        part: What is done with them.
        training: Their kind.
        members: As many may be submitted together.
        bound: `--max-slowdown`.
    """

    part: str
    training: str
    members: int
    bound: float

    @classmethod
    def parse(cls, text: str) -> Batch:
        """Read `rounds:small:12:1.5`."""
        part, training, members, bound = text.split(":")
        return cls(part, training, int(members), float(bound))

    def __str__(self) -> str:
        return f"{self.part} {self.training} at {self.bound:g}"

    @property
    def name(self) -> str:
        """What files are called by."""
        return f"{self.part}-{self.training}-{self.bound:g}"

    @property
    def asked(self) -> list[str]:
        """What every one of them asks Slurm and csub for, alone or not."""
        cores = CORES.get(self.training, 1)
        # No other job may come into what is measured.
        return ["--gres=gpu:1", f"--cpus-per-task={cores}", "--mem=4G", "--time=45", "--join=never"]


def look_at_speeds(bed: GpuNode, trainings: Iterable[str]) -> dict[str, float]:
    """What one alone does on this machine in a second; it also fills the page cache."""
    program = [sys.executable, str(HERE / "train_sized.py"), "--progress", f"{bed.user.home}/look"]
    program += ["--device", "cpu"] if bed.is_simulated else []
    for training in sorted(set(trainings) - {LOADER}):
        images = 128 if bed.is_simulated else int(_LOOK_S * IMAGES_PER_S[training])
        ended = bed.user.run([*program, "--size", training, "--images", str(images)])
        told = json.loads(ended.stdout.splitlines()[-1])
        if not bed.is_simulated:
            IMAGES_PER_S[training] = told["images"] / told["training_s"]
    return IMAGES_PER_S


def write_script(bed: GpuNode, batch: Batch, seconds: float, *, fused: int = 1) -> Path:
    """The script of a training with about so many seconds of work alone.

    It is the same for one alone and for every member of a pack, and no other batch's: what csub
    knows of one it does not know of another.
    """
    name = batch.name + (f"-fused{fused}" if fused > 1 else "")
    folder = bed.user.home / f"{name}.progress"
    folder.mkdir(exist_ok=True)
    os.chown(folder, bed.user.uid, bed.user.gid)
    per_s = FUSED_PER_S if fused > 1 else IMAGES_PER_S
    if bed.is_simulated:
        per_s = {batch.training: SIMULATED_PER_S.get(batch.training, 70_000)}
    images = str(int(seconds * per_s[batch.training]))
    if batch.training == LOADER:
        program = [sys.executable, str(HERE / "train_small.py"), "--images", images]
        program += ["--files", str(bed.user.home / "images")]
        program += ["--device", "cpu", "--batch", "2"] if bed.is_simulated else []
    else:
        program = [sys.executable, str(HERE / "train_sized.py"), "--size", batch.training]
        program += ["--images", images, "--fused", str(fused)]
        program += ["--device", "cpu"] if bed.is_simulated else []
    file = f"{folder}/$SLURM_JOB_ID.${{SLURM_ARRAY_TASK_ID:-0}}"
    lines = [
        f"# {name}",
        *use_simulated_gpu(bed),
        f'{shlex.join(program)} --progress "{file}"',
        *leave_simulated_gpu(bed),
    ]
    return bed.user.script(f"{name}.sh", "\n".join(lines))


def plan(
    bed: GpuNode, batch: Batch, script: Path, count: int, more: Sequence[str] = ()
) -> dict[str, Any]:
    """What csub would do with so many of them."""
    words = ["plan", "--json", *batch.asked, f"--max-slowdown={batch.bound:g}", *more]
    planned: dict[str, Any] = json.loads(
        bed.user.csub(*words, f"--array=1-{count}", str(script)).stdout
    )
    return planned


def choose_members(bed: GpuNode, batch: Batch, script: Path) -> tuple[int, dict[str, Any]]:
    """The most trainings that csub plans to put into one pack, and that plan."""
    planned: dict[str, Any] = {}
    for count in range(batch.members, 1, -1):
        planned = plan(bed, batch, script, count)
        if len(planned["packs"]) == 1:
            return count, planned
    pytest.fail(f"csub plans to let {batch.training} run alone: {planned['packs'][0]['reasons']}")


def run_together(
    bed: GpuNode,
    batch: Batch,
    script: Path,
    name: str,
    *,
    members: int,
    window_s: float,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Run so many trainings of a batch; what was measured.

    Args:
        bed: Where.
        batch: What they are.
        script: Their script.
        name: What this run is called in planner.csv, and its logs.
        members: How many; several are an array.
        window_s: Length of the common window, or what there is.
        more: Further options.
    """
    words = [*batch.asked, *more]
    if members > 1:
        words += [f"--array=1-{members}", f"--max-slowdown={batch.bound:g}"]
    job_id = bed.submit(name, *words, str(script))
    rows = bed.finish(job_id, patience_s=_PATIENCE_S)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}, bed.user.describe(job_id)
    folder = bed.user.home / f"{script.stem}.progress"
    files = sorted(folder.glob(f"{job_id}.*"), key=lambda path: int(path.suffix[1:]))
    texts = {path.name: path.read_text() for path in files}
    everybody = [parse_series(text) for text in texts.values()]
    # In a pack that was held back, some begin only when others have ended.
    series = choose_fullest(everybody)
    window = choose_window(series, window_s)
    with LOCK, (bed.out / "planner.csv").open("a", newline="") as file:
        writer = csv.writer(file)
        for member, text in texts.items():
            writer.writerows([name, member, *line.split()] for line in text.splitlines())
    rates = compute_rates(series, window)
    printed = [read_printed(bed, job_id, number) for number in rows]
    log = (bed.sandbox.layout.log / "slurmctld.log").read_text(errors="replace")
    begin_s = min(
        one.times_s[0] - each["to_first_step_s"]
        for one, each in zip(everybody, printed, strict=True)
    )
    return {
        "job_id": job_id,
        "members": len(rows),
        "together": len(series),
        "images_per_s_sum": sum(rates),
        "images_per_s": rates,
        "window_s": window.length_s,
        "wall_s": compute_wall_s(log, job_id),
        "lost_s": compute_lost_s(everybody, begin_s, window),
        "gpus": sorted({each["gpu"] for each in printed if each.get("gpu")}),
        "thread_percentages": sorted({str(each["thread_percentage"]) for each in printed}),
        "to_first_step_s": [each["to_first_step_s"] for each in printed],
        "training_s": [each["training_s"] for each in printed],
        "begins_s": _list_begins(everybody),
        "modes": sorted({row["mode"] for row in rows.values()}),
        "report": json.loads(bed.user.csub("report", "--json", job_id).stdout),
    }


def _list_begins(series: list[Series]) -> list[float]:
    """When each began to train, in seconds after the first."""
    first = min(one.times_s[0] for one in series)
    return [round(one.times_s[0] - first, 3) for one in series]
